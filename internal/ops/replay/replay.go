// Package replay runs an access log through rules on a virtual clock: lines become requests in the order of their times
// ([Reader]), requests become the descriptors that Envoy would make of them ([Asking]), and [Run] puts those to the service
// itself, rls.Service over the counters of package limit, so that what it says is what the rules would have done.
package replay

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
)

// counters are the counters of one cluster, all of them exact, at a time that the log tells.
type counters struct {
	states map[owner.Key]*limit.State
	now    int64
	over   []bool // of the questions of the last call
}

// writer is who charges: there is one only.
const writer = 3

// Decide answers as the owner of all keys does.
func (c *counters) Decide(_ owner.Deadline, stop bool, qs []owner.Request, as []owner.Result) {
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

// stop charges all, or only those that go over when there is one.
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

// Side is one set of rules to try.
type Side struct {
	Name      string // for people
	Rules     *config.Rules
	Templates []DescriptorTemplate
	Stop      bool         // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
	Switches  rls.Switches // SHADOW_MODE and QUOTA_MODE
}

// run is one side at work.
type run struct {
	Side
	log      *Log
	counters counters
	service  *rls.Service
	asks     []ask
	refused  []bool // of the log's requests
	rules    map[*config.RuleSpec]*ruleCount
	keys     map[owner.Key]*keyCount
	entries  []config.Entry
	match    config.Match
}

// ask is all that is asked of one domain for one request.
type ask struct {
	domain      string
	descriptors []descriptor
}

type descriptor struct {
	keys    []string
	columns []int // of the log; -1: a constant
	values  []string
}

func newRun(log *Log, side Side) *run {
	r := &run{
		Side: side, log: log, refused: make([]bool, len(log.requests)),
		counters: counters{states: map[owner.Key]*limit.State{}},
		rules:    map[*config.RuleSpec]*ruleCount{}, keys: map[owner.Key]*keyCount{},
	}
	r.service = rls.New(rls.Options{Decider: &r.counters, Stats: stats.New(stats.Options{}), Registerer: prometheus.NewRegistry(), Stop: side.Stop})
	r.service.SetRules(side.Rules, side.Switches)
	for _, q := range side.Templates {
		d := descriptor{keys: q.keys, values: make([]string, len(q.keys))}
		for i, s := range q.sources {
			d.columns = append(d.columns, slices.Index(log.columns, s.text))
			d.values[i] = s.name
		}
		if n := len(r.asks); n == 0 || r.asks[n-1].domain != q.Domain {
			r.asks = append(r.asks, ask{domain: q.Domain})
		}
		last := &r.asks[len(r.asks)-1]
		last.descriptors = append(last.descriptors, d)
	}
	return r
}

// replay puts every request to the service. progress is told how many are done.
func (r *run) replay(progress func(done int)) {
	for i := range r.log.requests {
		if progress != nil && i%8192 == 0 {
			progress(i)
		}
		q := &r.log.requests[i]
		r.counters.now = q.at
		for a := range r.asks {
			// One filter after the other: who is refused by the first is not counted by the second.
			if r.refused[i] = r.ask(&r.asks[a], q); r.refused[i] {
				break
			}
		}
	}
}

// ask puts one request to one domain and says whether it was refused.
func (r *run) ask(a *ask, q *logged) bool {
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
		c.Request.Descriptors = append(c.Request.Descriptors, rls.Descriptor{Entries: r.entries[from:to:to], HasAddend: true, Addend: uint64(q.hits)})
	}
	if len(c.Request.Descriptors) == 0 {
		return false
	}
	r.service.Decide(c, rls.Caller{})
	r.count(c, q)
	return c.Response.Code == rls.OverLimit
}

// fill appends the entries of a descriptor; false when Envoy would leave it out.
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
