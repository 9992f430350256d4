package app

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/envoy/xds"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

// primer has the Envoy next to this sidecar assigned a part of a hot key's limit before the key's route switches from calls
// to the quota: requests then find the assignment. It sends a request for the key's bucket to a listener of that Envoy,
// which answers 200 when it has admitted the request, so when it has the assignment. Envoy gives all of its workers an
// assignment before it gives them a later route.
//
// A nil primer switches the routes with first: allow at once, and no others.
type primer struct {
	address string // of the listener
	rules   func() *config.Rules
	log     *slog.Logger
	changed func() // the routes that switch have changed
	wake    chan struct{}
	client  *http.Client

	mu     sync.Mutex
	states map[primeKey]*primeState // guarded by mu
	failed prometheus.Counter
}

// primeKey identifies a key that is to be switched.
type primeKey struct{ domain, entry, value string }

// primeState is the progress of one key.
type primeState struct {
	prime xds.Prime
	allow bool // its rule has first: allow
	since time.Time
	next  time.Time // of the next request
	ready bool      // Envoy has an assignment, or needs none
}

const (
	primeEvery  = 20 * time.Millisecond // between two requests for a key
	primeSlowly = time.Second           // the same after primeSoon, because the limit is spent or Envoy is away
	primeSoon   = 5 * time.Second       // with a window, the longest that priming takes with an Envoy that works
	primeWait   = time.Second           // for one answer

	// primeRoom is how long the window of a limit must last when a key is primed: the lease must be extended into the next
	// window 5 s before it ends, and the first report of the Envoy's rate, 5 s later, must come before the next window's
	// hits are asked for.
	primeRoom = 7 * time.Second
	// primeAfter is how far into a window a key is primed at the earliest. An Envoy's reports follow its first one every 5 s.
	// So one comes a second or more after the leases of each window, which proves that those before are dead.
	primeAfter = 1500 * time.Millisecond
)

func newPrimer(address string, rules func() *config.Rules, log *slog.Logger, reg prometheus.Registerer) *primer {
	p := &primer{
		address: address, rules: rules, log: log, wake: make(chan struct{}, 1), states: map[primeKey]*primeState{},
		client: &http.Client{Timeout: primeWait, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "keyward_hot_prime_retries_total",
			Help: "Requests to --prime-listener that were not admitted: the Envoy had no assignment yet, the limit was spent, or the Envoy was away.",
		}),
	}
	reg.MustRegister(p.failed)
	for _, ready := range []bool{false, true} {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "keyward_hot_quota_keys", Help: "Hot keys of rules with hot_step: quota: those whose requests this sidecar's Envoy spends " +
				"without calls (switched), and those that wait for an assignment (priming).",
			ConstLabels: prometheus.Labels{"state": stateName(ready)},
		}, func() float64 { return float64(p.count(ready)) }))
	}
	return p
}

func stateName(ready bool) string {
	if ready {
		return api.QuotaSwitched
	}
	return api.QuotaPriming
}

func (p *primer) count(ready bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.states {
		if s.ready == ready {
			n++
		}
	}
	return n
}

// state returns api.QuotaSwitched or api.QuotaPriming for the route of a key that is switched, or "".
func (p *primer) state(r *hotkey.Route) string {
	if p == nil || r.Mode != hotkey.Quota {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.states[keyOf(r)]; s != nil {
		return stateName(s.ready)
	}
	return ""
}

func keyOf(r *hotkey.Route) primeKey { return primeKey{r.Domain, r.Entries[0].Key, r.Owner} }

// plan returns the routes to serve, and the buckets that the listener must have.
func (p *primer) plan(hot []hotkey.Route) (served []hotkey.Route, primes []xds.Prime) {
	for i := range hot {
		if r := &hot[i]; r.Mode != hotkey.Quota || p == nil && r.Allow {
			served = append(served, *r)
		}
	}
	if p == nil {
		return served, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.states
	p.states = map[primeKey]*primeState{}
	for i := range hot {
		r := &hot[i]
		if r.Mode != hotkey.Quota || r.Validate() != nil {
			continue
		}
		s := known[keyOf(r)]
		if s == nil {
			s = &primeState{since: time.Now(), allow: r.Allow}
		}
		if !s.describe(r, p.rules()) {
			continue
		}
		p.states[keyOf(r)] = s
		primes = append(primes, s.prime)
		if s.ready {
			served = append(served, *r)
		}
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return served, primes
}

// describe sets the bucket by the rule in force. It returns false if that has no such step.
func (s *primeState) describe(r *hotkey.Route, rules *config.Rules) bool {
	var found config.Match
	if rules == nil || whyNoQuota(r.Domain, r.Owner, r.Entries, rules, &found) != "" {
		return false
	}
	s.prime = xds.Prime{Domain: r.Domain, Entry: r.Entries[0].Key, Value: r.Owner, Window: found.Limit.Window}
	s.prime.ExpiredAll, s.prime.ExpiredShare = found.Rule.QuotaExpired()
	return true
}

// whyNoQuota returns why Envoys cannot spend the limit of a key while it is hot, or "" and the match of its descriptor.
func whyNoQuota(domain, owner string, entries []hotkey.RouteEntry, rules *config.Rules, found *config.Match) string {
	descriptor := make([]config.Entry, len(entries))
	for i, e := range entries {
		descriptor[i] = config.Entry(e)
	}
	rules.Match(domain, descriptor, nil, found)
	switch {
	case found.Kind != config.Limited:
		return "it has no limit"
	case found.Rule.Extension.Quota == nil || !found.Rule.Extension.Quota.OnlyHot:
		return "its rule does not have hot_step: quota"
	case found.Rule.Shadow || found.Rule.SharesCounter || rules.Replaced()[found.Rule.Name]:
		return "its rule is in shadow mode, shares a counter between values, or is replaced by another one"
	case len(entries) != 1 || entries[0].Value != owner:
		return "its descriptor has more than the entry whose value is the header that routes match"
	}
	return ""
}

// run primes keys until ctx ends.
func (p *primer) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			p.client.CloseIdleConnections()
			return
		case <-p.wake:
		case <-timer.C:
		}
		again, ready := p.round(ctx, time.Now())
		if ready {
			p.changed()
		}
		if again > 0 {
			timer.Reset(again)
		}
	}
}

// round sends the requests that are due. It returns when the next ones are due, 0 if none is, and whether a key is ready.
func (p *primer) round(ctx context.Context, now time.Time) (again time.Duration, ready bool) {
	for _, s := range p.waiting() {
		if s.next.After(now) {
			continue
		}
		if wait := primeDelay(s.prime.Window, now); wait > 0 {
			p.asked(s.prime, false, now.Add(wait))
			continue
		}
		admitted, late := p.ask(ctx, &s.prime), now.Sub(s.since) > primeSoon+s.prime.Window
		next := now.Add(primeEvery)
		if late {
			next = now.Add(primeSlowly)
		}
		ready = p.asked(s.prime, admitted || late && s.allow, next) || ready
		if admitted {
			p.log.Info("hot key primed; its route switches to the quota", "key", s.prime.Entry+"="+s.prime.Value, "took", time.Since(s.since))
		}
	}
	for _, s := range p.waiting() {
		if wait := max(time.Millisecond, time.Until(s.next)); again == 0 || wait < again {
			again = wait
		}
	}
	return again, ready
}

// primeDelay returns how long to wait until a window of that length has room for priming.
func primeDelay(window time.Duration, now time.Time) time.Duration {
	into := time.Duration(now.UnixNano() % int64(window))
	switch {
	case window-into < primeRoom:
		return window - into + primeAfter
	case into < primeAfter:
		return primeAfter - into
	}
	return 0
}

// asked records the result of a request, and returns ready.
func (p *primer) asked(b xds.Prime, ready bool, next time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.states[primeKey{b.Domain, b.Entry, b.Value}]; s != nil {
		s.ready, s.next = ready, next
	}
	return ready
}

// waiting returns copies of the keys without an assignment.
func (p *primer) waiting() (all []primeState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.states {
		if !s.ready {
			all = append(all, *s)
		}
	}
	slices.SortFunc(all, func(a, b primeState) int { return a.since.Compare(b.since) })
	return all
}

// ask sends one request for a bucket, and reports whether Envoy has admitted it.
func (p *primer) ask(ctx context.Context, b *xds.Prime) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/", http.NoBody)
	if err != nil {
		return false
	}
	req.Header.Set(xds.PrimeHeader, b.ID())
	res, err := p.client.Do(req)
	if err == nil {
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			return true
		}
	}
	p.failed.Inc()
	return false
}
