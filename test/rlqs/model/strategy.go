package model

import (
	"math"
	"time"
)

// Kind is a kind of rate limit strategy.
type Kind uint8

// The kinds of envoy.type.v3.RateLimitStrategy.
const (
	Unset       Kind = iota // no strategy: a response with it has no effect
	AllowAll                // admits every request
	DenyAll                 // refuses every request
	TokenBucket             // a token bucket; a new one is full
	PerUnit                 // requests_per_time_unit, which Envoy does not implement: a response with it has no effect
)

// Strategy is a rate limit strategy as a response or Envoy's configuration has it. The zero value is none.
type Strategy struct {
	Kind    Kind
	Max     uint32        // tokens of a full bucket
	PerFill uint32        // tokens added in each interval
	Every   time.Duration // the interval
}

// never is the interval in which a lease's bucket gets its one token: 116 days.
const never = 10_000_000 * time.Second

// Lease returns a token bucket of n tokens that is not filled again while it is in use.
func Lease(n uint32) Strategy { return Strategy{Kind: TokenBucket, Max: n, PerFill: 1, Every: never} }

// equals reports whether Envoy takes two token buckets for the same. It compares only the part of the interval below a
// second.
func (s Strategy) equals(t Strategy) bool {
	return s.Kind == t.Kind && s.Max == t.Max && s.PerFill == t.PerFill && s.Every%time.Second == t.Every%time.Second
}

// leastRate is the lowest rate of a token bucket in Envoy, in tokens a second: one token a year.
const leastRate = 1.0 / (365 * 24 * 60 * 60)

// limiter is a token bucket in use. All workers share it.
type limiter struct {
	max   float64
	rate  float64 // tokens a second; infinite if the interval is below a second
	level float64 // tokens at the time at
	at    int64
}

// newLimiter returns the token bucket for s. Envoy cuts the interval to whole seconds. A bucket that replaces another
// one starts with the other one's fill ratio, and one that replaces none is full.
func newLimiter(now int64, s Strategy, replaced *limiter) *limiter {
	l := &limiter{max: float64(s.Max), at: now}
	l.rate = max(leastRate, float64(s.PerFill)/float64(s.Every/time.Second)) // no tokens in no seconds: NaN, as in Envoy
	l.level = l.max
	if replaced != nil {
		l.level = math.Floor(l.max * (replaced.tokens(now) / replaced.max))
	}
	return l
}

func (l *limiter) tokens(now int64) float64 {
	if math.IsInf(l.rate, 1) {
		return l.max
	}
	return min(l.max, l.level+l.rate*time.Duration(now-l.at).Seconds())
}

// take takes one token if there is one.
func (l *limiter) take(now int64) bool {
	n := l.tokens(now)
	if n < 1 {
		return false
	}
	l.level, l.at = n-1, now
	return true
}
