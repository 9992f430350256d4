package app

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"testing"

	"github.com/keyward/keyward/internal/api"
)

// read decodes the document at path of p into v.
func (p *process) read(t *testing.T, path string, v any) {
	t.Helper()
	if code, b := p.get(path); code != http.StatusOK || json.Unmarshal(b, v) != nil {
		t.Fatalf("%s: %s: %d %s", p.name, path, code, b)
	}
}

func (p *process) events(t *testing.T) []api.TimelineEvent {
	t.Helper()
	var got struct{ Events []api.TimelineEvent }
	p.read(t, "/v1/timeline", &got)
	return got.Events
}

// All members serve the same ring and rules, and record the failure of a member.
func TestRingRulesAndTimeline(t *testing.T) {
	t.Parallel()
	all := trio(t)
	for i := range 3 {
		all[0].hit(t, "x", uint32(600*(i+1))) // of 3600 hits 1000 fit
	}
	var first api.RingMap
	for i, p := range all {
		var m api.RingMap
		p.read(t, "/v1/ring", &m)
		if i == 0 {
			first = m
		}
		sum := 0.0
		for _, x := range m.Members {
			sum += x.Share
			if x.State != "active" {
				t.Errorf("%s has %s as %s", p.name, x.ID, x.State)
			}
		}
		if m.Fingerprint == "" || m.Fingerprint != first.Fingerprint || !slices.Equal(m.Sectors, first.Sectors) || len(m.Members) != 3 || math.Abs(sum-1) > 1e-9 {
			t.Errorf("%s draws %+v, %s %+v", all[0].name, first, p.name, m)
		}
	}
	var tree api.RuleTree
	all[0].read(t, "/v1/rules", &tree)
	if r := tree.Domains[0].Rules[0]; tree.Domains[0].Domain != "d" || r.Path[0] != "k" || r.RuleTotals == nil || r.TotalHits != 3600 || r.OverLimit != 2600 {
		t.Errorf("rules %+v, totals %+v", tree, r.RuleTotals)
	}
	if v := tree.Versions; len(v) != 1 || v[0].State != "in force" || v[0].Reason != "first" || v[0].Hash != tree.InForce {
		t.Errorf("versions %+v", v)
	}

	_ = all[2].cmd.Process.Kill()
	<-all[2].ended
	p := all[1]
	eventually(t, "the failure is in the timeline", func() bool {
		return slices.ContainsFunc(p.events(t), func(e api.TimelineEvent) bool {
			return e.Kind == api.MemberEvent && e.Member == "c-2" && e.State == "lost"
		})
	})
	eventually(t, "a ring of two is in the timeline", func() bool {
		e := p.events(t)
		i := slices.IndexFunc(e, func(e api.TimelineEvent) bool { return e.Kind == api.RingEvent })
		var m api.RingMap
		p.read(t, "/v1/ring", &m)
		return len(m.Members) == 2 && e[i].Fingerprint == m.Fingerprint && e[i].Moved > 0.2
	})
	eventually(t, "the end of the handoff is in the timeline", func() bool {
		var m api.RingMap
		p.read(t, "/v1/ring", &m)
		return slices.ContainsFunc(p.events(t), func(e api.TimelineEvent) bool {
			return e.Kind == api.HandoffEvent && e.Fingerprint == m.Fingerprint
		})
	})
	kinds := map[api.EventKind]int{}
	events := p.events(t)
	for i, e := range events {
		kinds[e.Kind]++
		if i > 0 && e.Time.After(events[i-1].Time) {
			t.Errorf("%+v is below an older event", e)
		}
	}
	if kinds[api.RulesEvent] != 1 || kinds[api.RingEvent] < 2 {
		t.Errorf("%v: %+v", kinds, events)
	}
}
