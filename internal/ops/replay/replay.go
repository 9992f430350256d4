// Package replay applies rules to an access log on a virtual clock. A [Reader] reads the requests, ordered by time.
// [Actions] describes the descriptors that Envoy would make for them. [Run] decides them with the real service,
// rls.Service, and the counters of package limit, so it reports what the rules would have done.
package replay

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
)

// counters are the exact counters of one cluster, at the time of the current request.
type counters struct {
	states map[owner.Key]*limit.State
	now    int64
	over   []bool // of the requests of the last call
}

// writer is the slot that is charged. There is only one writer.
const writer = 3

// Decide decides like the owner of all keys.
func (c *counters) Decide(_ policy.Deadline, stop bool, qs []owner.Request, as []owner.Result) {
	c.over = c.over[:0]
	stops := false
	for i := range qs {
		q := &qs[i]
		s := c.states[q.Key]
		if s == nil {
			s = new(limit.State)
			c.states[q.Key] = s
		}
		if stop {
			as[i] = owner.Result{Decision: q.Rule.Peek(s, c.now, q.Hits)}
			stops = stops || as[i].Over
			continue
		}
		as[i] = c.take(s, q)
	}
	if stop {
		c.stop(stops, qs, as)
	}
	for i := range as {
		c.over = append(c.over, as[i].Over)
	}
}

// stop charges all requests, or only those over their limit if there is one.
func (c *counters) stop(one bool, qs []owner.Request, as []owner.Result) {
	for i := range qs {
		if q := &qs[i]; !one || as[i].Over {
			as[i] = c.take(c.states[q.Key], q)
		} else {
			as[i] = owner.Result{Decision: q.Rule.Peek(c.states[q.Key], c.now, 0)}
		}
	}
}

func (c *counters) take(s *limit.State, q *owner.Request) owner.Result {
	d := q.Rule.Take(s, c.now, writer, q.Hits)
	q.Rule.Trim(s, c.now)
	return owner.Result{Decision: d}
}

// Side is one set of rules to replay.
type Side struct {
	Name      string // for display
	Rules     *config.Rules
	Templates []DescriptorTemplate
	Stop      bool         // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
	Switches  rls.Switches // SHADOW_MODE and QUOTA_MODE
}

// run is the state of a replay of one side.
type run struct {
	Side
	log      *Log
	counters counters
	service  *rls.Service
	calls    []domainCall
	refused  []bool // by request of the log
	rules    map[*config.RuleSpec]*ruleCount
	keys     map[owner.Key]*keyCount
	entries  []config.Entry
	match    config.Match
}

// domainCall describes the call for one domain.
type domainCall struct {
	domain      string
	descriptors []descriptor
}

type descriptor struct {
	keys    []string
	columns []int // of the log; -1 for a constant
	values  []string
}

func newRun(log *Log, side Side) *run {
	r := &run{
		Side: side, log: log, refused: make([]bool, len(log.requests)),
		counters: counters{states: map[owner.Key]*limit.State{}},
		rules:    map[*config.RuleSpec]*ruleCount{}, keys: map[owner.Key]*keyCount{},
	}
	r.service = rls.New(rls.Options{
		Decider: &r.counters, Stats: stats.New(stats.Options{}), Registerer: prometheus.NewRegistry(), Stop: side.Stop,
	})
	r.service.SetRules(side.Rules, side.Switches)
	for _, q := range side.Templates {
		d := descriptor{keys: q.keys, values: make([]string, len(q.keys))}
		for i, s := range q.sources {
			d.columns = append(d.columns, slices.Index(log.columns, s.text))
			d.values[i] = s.name
		}
		if n := len(r.calls); n == 0 || r.calls[n-1].domain != q.Domain {
			r.calls = append(r.calls, domainCall{domain: q.Domain})
		}
		last := &r.calls[len(r.calls)-1]
		last.descriptors = append(last.descriptors, d)
	}
	return r
}

// replay decides every request. It calls progress with the number of requests done.
func (r *run) replay(progress func(done int)) {
	for i := range r.log.requests {
		if progress != nil && i%8192 == 0 {
			progress(i)
		}
		q := &r.log.requests[i]
		r.counters.now = q.at
		for a := range r.calls {
			// Filters run in sequence: a request that the first one denies is not counted by the second.
			if r.refused[i] = r.decide(&r.calls[a], q); r.refused[i] {
				break
			}
		}
	}
}

// decide makes the call of one request for one domain, and reports whether it was denied.
func (r *run) decide(a *domainCall, q *logged) bool {
	c := r.service.NewCall()
	defer r.service.Release(c)
	c.Request.Domain, c.Request.HitsAddend = a.domain, q.hits
	c.Request.Descriptors, r.entries = c.Request.Descriptors[:0], r.entries[:0]
	for i := range a.descriptors {
		from := len(r.entries)
		if !r.fill(&a.descriptors[i], q) {
			r.entries = r.entries[:from]
			continue
		}
		to := len(r.entries)
		c.Request.Descriptors = append(c.Request.Descriptors,
			rls.Descriptor{Entries: r.entries[from:to:to], HasAddend: true, Addend: uint64(q.hits)})
	}
	if len(c.Request.Descriptors) == 0 {
		return false
	}
	r.service.Decide(c, rls.Caller{})
	r.count(c, q)
	return c.Response.Code == rls.OverLimit
}

// fill appends the entries of a descriptor. It returns false if Envoy would omit the descriptor.
func (r *run) fill(d *descriptor, q *logged) bool {
	for i, k := range d.keys {
		value := d.values[i]
		if at := d.columns[i]; at >= 0 {
			n := r.log.values[q.row+at]
			if n == 0 {
				return false
			}
			value = r.log.texts[n]
		}
		r.entries = append(r.entries, config.Entry{Key: k, Value: value})
	}
	return true
}
