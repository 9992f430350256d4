package rlqs

import (
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/test/rlqs/model"
)

var (
	reported  = shared(listener{name: "reported", assign: admits})
	reported2 = shared(listener{name: "reported-2", domain: "reported", assign: admits})
	streams   = shared(listener{name: "streams", assign: admits})
)

// The first hit of an id is reported at once. Then all ids are reported every 5 s, whatever reporting_interval says, with the time since
// the last report of each in whole seconds. A second listener of the same domain has the same ids and the same stream.
func TestReports(t *testing.T) {
	reported.each(t, func(s *site) {
		c := s.dial(1)[0]
		for range 3 {
			c.get("a")
		}
		first := s.await("the first message", func(all []report) bool { return len(all) > 0 })[0]
		if u, _ := first.find("a"); len(first.usages) != 1 || u != (model.ReportedUsage{ID: "a", Allowed: 1}) {
			s.Errorf("the first message: %+v", first.usages)
		}
		second := dial("127.0.0.1:" + s.ports[reported2.name])
		second.get("a")
		s.introduce(second, "b")
		all := s.await("three reports of all ids", func(all []report) bool { return len(all) >= 5 })
		s.want("hits of a", int(total(all, "a").Allowed), 4)
		s.want("hits of b", int(total(all, "b").Allowed), 1)
		for i, r := range all {
			if r.stream != first.stream || !r.exact {
				s.Errorf("message %d is on stream %d, not on %d, or a time is not in whole seconds: %+v", i, r.stream, first.stream, r.usages)
			}
		}
		for i, r := range all[2:] {
			if len(r.usages) != 2 {
				s.Errorf("report %d is not about all ids: %+v", i, r.usages)
			}
			if i == 0 {
				continue
			}
			// The messages' times depend on the machine; Envoy's own do not.
			for _, u := range r.usages {
				if d := r.at.Sub(all[2+i-1].at); u.Elapsed < 4*time.Second || u.Elapsed > 6*time.Second || d < 4*time.Second {
					s.Errorf("report %d came after %v, and has %v", i, d, u.Elapsed)
				}
			}
		}
	})
}

// All workers and connections share one stream for each domain, and what several count of a new id is in one sum.
func TestOneStreamForEachDomain(t *testing.T) {
	streams.each(t, func(s *site) {
		conns := s.dial(32)
		s.want("admitted", s.hits(conns, "a", 400), 400)
		all := s.await("400 hits", func(all []report) bool { return total(all, "a").Allowed >= 400 })
		s.want("reported", int(total(all, "a").Allowed), 400)
		for _, r := range all {
			if r.stream != all[0].stream {
				s.Errorf("messages on streams %d and %d", all[0].stream, r.stream)
			}
		}
		st := s.server.stream(s, s.domainName())
		if got := st.metadata.Get("x-keyward-envoy"); len(got) != 1 || got[0] != "pod-7" {
			s.Errorf("initial_metadata: %v", got)
		}
	})
}

var (
	slipped = shared(listener{name: "slipped", assign: admits})
	blocked = shared(listener{name: "blocked", assign: denies})
)

// Requests that are decided before the first assignment of an id get no_assignment_behavior, and all of them are reported.
func TestNewIdsAreCounted(t *testing.T) {
	t.Parallel()
	for _, l := range []*listener{slipped, blocked} {
		t.Run(l.name, func(t *testing.T) {
			l.each(t, func(s *site) { newIDs(s, l == slipped) })
		})
	}
}

// newIDs sends 300 requests of each of 8 ids, while the server assigns the opposite of no_assignment_behavior.
func newIDs(s *site, slips bool) {
	const requests, lease = 300, 100
	seen := map[string]bool{}
	s.server.mu.Lock()
	s.server.answer[s.domainName()] = func(u model.ReportedUsage) []model.Action {
		if seen[u.ID] {
			return nil
		}
		seen[u.ID] = true
		if slips {
			return []model.Action{{ID: u.ID, TTL: minute, Strategy: model.Strategy{Kind: model.DenyAll}}}
		}
		return model.Pair(u.ID, lease, minute)
	}
	s.server.mu.Unlock()
	conns := s.dial(16)
	admitted := map[string]int{}
	for i := range 8 {
		id := fmt.Sprint("s", i)
		admitted[id] = s.hits(conns, id, requests)
	}
	for id, n := range admitted {
		all := s.await("all hits of "+id, func(all []report) bool { u := total(all, id); return u.Allowed+u.Denied >= requests })
		u := total(all, id)
		if int(u.Allowed) != n || int(u.Denied) != requests-n {
			s.Errorf("%s: %d admitted, %d refused are reported; %d of %d were admitted", id, u.Allowed, u.Denied, n, requests)
		}
		if slips && n < 1 || !slips && n != lease && n > lease {
			s.Errorf("%s: %d of %d admitted", id, n, requests)
		}
	}
}

var abandoned = shared(listener{name: "abandoned", assign: denies})

// ABANDON forgets the id and its usage that no report had. In one response with PAIR it leaves no id for the PAIR.
func TestAbandonForgetsUsage(t *testing.T) {
	abandoned.each(t, func(s *site) {
		c := s.dial(1)
		s.introduce(c[0], "a")
		s.fenced(c, model.Pair("a", 100, minute)...)
		// Between two reports, which are 5 s apart.
		var before int
		for range 5 {
			all := s.tick()
			before = int(total(all, "a").Allowed)
			s.want("the lease", s.hits(c, "a", 4), 4)
			s.fenced(c, model.Action{ID: "a", Abandon: true})
			if len(s.reports()) == len(all) {
				break
			}
			s.introduce(c[0], "a") // a report came between: once more
			s.fenced(c, model.Pair("a", 100, minute)...)
		}
		all := s.tick()
		if _, ok := all[len(all)-1].find("a"); ok {
			s.Error("the id is still reported")
		}
		s.want("reported after ABANDON", int(total(all, "a").Allowed), before)
		s.want("the next request", c[0].get("a"), 429)
		all = s.await("the new id", func(now []report) bool { return len(now) > len(all) })
		if u, _ := all[len(all)-1].find("a"); u != (model.ReportedUsage{ID: "a", Denied: 1}) {
			s.Errorf("the first report of the new id: %+v", u)
		}
		s.fenced(c, append([]model.Action{{ID: "a", Abandon: true}}, model.Pair("a", 10, minute)...)...)
		s.want("after ABANDON and PAIR in one response", s.hits(c, "a", 20), 0)
		s.fenced(c, model.Pair("a", 10, minute)...)
		s.want("PAIR", s.hits(c, "a", 20), 10)
	})
}

var many = shared(listener{name: "many", assign: denies})

// One response may have the leases of thousands of ids.
func TestManyIds(t *testing.T) {
	many.each(t, func(s *site) {
		conns := s.dial(8)
		ids := rounds(500, 10_000)
		for i := range ids {
			conns[0].get(fmt.Sprint("id-", i))
		}
		s.await("all ids", func(all []report) bool { return len(all) >= ids })
		var as []model.Action
		for i := range ids {
			as = append(as, model.Pair(fmt.Sprint("id-", i), 2, minute)...)
		}
		s.fenced(conns, as...)
		for _, i := range []int{0, ids / 2, ids - 1} {
			s.want("a lease of 2", s.hits(conns, fmt.Sprint("id-", i), 20), 2)
		}
		all := s.tick()
		if got := len(all[len(all)-1].usages); got != ids+1 {
			s.Errorf("the report is about %d ids, not %d and the marker", got, ids)
		}
	})
}
