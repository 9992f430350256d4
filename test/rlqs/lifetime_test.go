package rlqs

import (
	"net/http"
	"testing"
	"time"

	"github.com/keyward/keyward/test/rlqs/model"
)

// watch sends requests of ids in turn, until none of them gets status any more. It returns when each got it for the last time, and the
// longest time between two requests of one id, since a time.
func watch(s *site, c *conn, since time.Time, status int, ids ...string) (last map[string]time.Time, gap time.Duration) {
	s.Helper()
	last = map[string]time.Time{}
	open, before := ids, since
	for end := time.Now().Add(time.Minute); len(open) > 0; {
		var next []string
		for _, id := range open {
			if c.get(id) == status {
				next = append(next, id)
				last[id] = time.Now()
			}
		}
		gap, before, open = max(gap, time.Since(before)), time.Now(), next
		if time.Now().After(end) {
			s.Fatalf("%v still get %d after a minute", open, status)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return last, gap
}

// calmly runs a measurement of times, and again if the machine left a gap in it.
func calmly(s *site, run func() (gap time.Duration)) {
	s.Helper()
	for range 5 {
		if gap := run(); gap < 200*time.Millisecond {
			return
		}
	}
	s.Log("no measurement without a gap")
}

var lifetimes = shared(listener{name: "lifetimes", assign: denies})

// Lifetimes are cut to whole seconds, and none is a lifetime of zero. Then no_assignment_behavior decides; the id is still reported.
func TestLifetimesAreWholeSeconds(t *testing.T) {
	ttls := map[string]time.Duration{"unset": unsetTTL, "0s": 0, "1s": time.Second, "1.9s": 1900 * time.Millisecond, "2s": 2 * time.Second}
	lifetimes.each(t, func(s *site) {
		c := s.dial(1)[0]
		var ids []string
		for id := range ttls {
			s.introduce(c, id)
			ids = append(ids, id)
		}
		calmly(s, func() time.Duration {
			var as []model.Action
			for id, ttl := range ttls {
				as = append(as, model.Action{ID: id, TTL: ttl, Strategy: model.Strategy{Kind: model.AllowAll}})
			}
			pushed := time.Now()
			s.fenced([]*conn{c}, as...)
			last, gap := watch(s, c, pushed, http.StatusOK, ids...)
			if gap > 200*time.Millisecond {
				return gap
			}
			after := func(id string) time.Duration { return last[id].Sub(pushed) }
			if !last["unset"].IsZero() && after("unset") > 500*time.Millisecond || !last["0s"].IsZero() && after("0s") > 500*time.Millisecond {
				s.Errorf("no lifetime: %v, 0 s: %v", after("unset"), after("0s"))
			}
			one, cut, two := after("1s"), after("1.9s"), after("2s")
			if one < 700*time.Millisecond || two < 1700*time.Millisecond {
				s.Errorf("1 s ended after %v, 2 s after %v", one, two)
			}
			if (cut - one).Abs() > (two - cut).Abs() {
				s.Errorf("1.9 s ended after %v: nearer to the end of 2 s, %v, than to that of 1 s, %v", cut, two, one)
			}
			return gap
		})
		if _, ok := s.tick()[len(s.reports())-1].find("1s"); !ok {
			s.Error("an id is not reported after the end of its assignment")
		}
	})
}

var extended = shared(listener{name: "extended", assign: denies})

// The identical bucket keeps the rest of a lease and starts its lifetime again.
func TestSameExtends(t *testing.T) {
	extended.each(t, func(s *site) {
		conns := s.dial(4)
		s.introduce(conns[0], "a")
		s.introduce(conns[0], "short")
		for range 5 {
			begin := time.Now()
			s.fenced(conns, append(model.Pair("a", 30, 5*time.Second), model.Action{ID: "short", TTL: 5 * time.Second, Strategy: model.Strategy{Kind: model.AllowAll}})...)
			used := s.hits(conns, "a", 10)
			time.Sleep(time.Second)
			again := time.Now()
			s.fenced(conns, model.Same("a", 30, 9*time.Second))
			if time.Since(begin) > 4500*time.Millisecond {
				continue // the machine was too slow: the lease may have ended before
			}
			s.want("the lease", used, 10)
			s.want("the rest after SAME", s.hits(conns, "a", 5), 5)
			watch(s, conns[0], begin, http.StatusOK, "short") // the first lifetime has ended
			rest := s.hits(conns, "a", 100)
			if time.Since(again) > 8500*time.Millisecond {
				continue
			}
			s.want("the rest after the first lifetime", rest, 15)
			return
		}
		s.Error("the machine was too slow in 5 runs")
	})
}

var shortened = shared(listener{name: "shortened", assign: denies})

// The identical bucket with a shorter lifetime keeps the rest of a lease, and ends it earlier.
func TestSameShortens(t *testing.T) {
	shortened.each(t, func(s *site) {
		conns := s.dial(4)
		s.introduce(conns[0], "a")
		for range 5 {
			begin := time.Now()
			s.fenced(conns, model.Pair("a", 1000, 30*time.Second)...)
			used := s.hits(conns, "a", 10)
			s.fenced(conns, model.Same("a", 1000, 2*time.Second))
			rest := s.hits(conns, "a", 5)
			if time.Since(begin) > 1500*time.Millisecond {
				continue // the machine was too slow: the lease may have ended
			}
			s.want("the lease", used, 10)
			s.want("the rest", rest, 5)
			time.Sleep(time.Until(begin.Add(5 * time.Second)))
			s.want("after the shorter lifetime", s.hits(conns, "a", 50), 0)
			return
		}
		s.Error("the machine was too slow in 5 runs")
	})
}

// The fallbacks of expired assignments.
var (
	expiredDeny  = shared(listener{name: "expired-deny", assign: admits, expired: "expired_assignment_behavior_timeout: 3s, fallback_rate_limit: {" + denies + "}"})
	expiredBare  = shared(listener{name: "expired-bare", assign: admits, expired: "fallback_rate_limit: {" + denies + "}"})
	expiredReuse = shared(listener{name: "expired-reuse", assign: admits, expired: "expired_assignment_behavior_timeout: 3s, reuse_last_assignment: {}"})
	expiredFill  = shared(listener{name: "expired-fill", assign: denies,
		expired: "expired_assignment_behavior_timeout: 1000000s, fallback_rate_limit: {token_bucket: {max_tokens: 3, tokens_per_fill: 3, fill_interval: 1s}}"})
)

// An expired assignment is replaced by the fallback for its timeout, and then by no_assignment_behavior. Without a timeout, and with
// reuse_last_assignment, no_assignment_behavior decides at once.
func TestExpiredFallback(t *testing.T) {
	refusedFor := func(l *listener, least, most time.Duration) func(t *testing.T) {
		return func(t *testing.T) {
			l.each(t, func(s *site) {
				c := s.dial(1)[0]
				s.introduce(c, "a")
				calmly(s, func() time.Duration {
					pushed := time.Now()
					s.fenced([]*conn{c}, model.Action{ID: "a", TTL: time.Second, Strategy: model.Strategy{Kind: model.DenyAll}})
					last, gap := watch(s, c, pushed, http.StatusTooManyRequests, "a")
					if d := last["a"].Sub(pushed); gap < 200*time.Millisecond && (d < least || d > most) {
						s.Errorf("DENY_ALL for 1 s: refused for %v, want %v to %v", d, least, most)
					}
					return gap
				})
			})
		}
	}
	t.Parallel()
	t.Run("DENY_ALL for 3 s", refusedFor(expiredDeny, 3*time.Second, 6*time.Second))
	t.Run("without a timeout", refusedFor(expiredBare, 700*time.Millisecond, 2500*time.Millisecond))
	t.Run("reuse_last_assignment", refusedFor(expiredReuse, 700*time.Millisecond, 2500*time.Millisecond))
	t.Run("token bucket", func(t *testing.T) { expiredFill.each(t, expiredToBucket) })
}

// expiredToBucket spends a lease. The fallback's bucket starts with the lease's fill ratio, and a later lease is exact.
func expiredToBucket(s *site) {
	const ttl = 3 * time.Second
	c := s.dial(1)
	s.introduce(c[0], "a")
	for range 5 {
		pushed := time.Now()
		s.fenced(c, model.Pair("a", 5, ttl)...)
		used := s.hits(c, "a", 5)
		if time.Since(pushed) > ttl*3/4 {
			continue // the machine was too slow: the lease may have ended before
		}
		s.want("the lease", used, 5)
		admitted := 0
		s.until("the fallback", func() bool { admitted += s.hits(c, "a", 1); return admitted > 0 })
		if d := time.Since(pushed); d < ttl-300*time.Millisecond {
			s.Errorf("the fallback admits %v after a lease of %v", d, ttl)
		}
		for time.Since(pushed) < ttl+3*time.Second {
			admitted += s.hits(c, "a", 1)
		}
		if most := 3*(time.Since(pushed)-ttl+300*time.Millisecond).Seconds() + 1; float64(admitted) > most || admitted < 3 {
			s.Errorf("3 a second for %v after the lease: %d admitted, want 3 to %.0f", time.Since(pushed)-ttl, admitted, most)
		}
		s.fenced(c, model.Pair("a", 5, minute)...)
		s.want("a new lease", s.hits(c, "a", 50), 5)
		return
	}
	s.Error("the machine was too slow in 5 runs")
}
