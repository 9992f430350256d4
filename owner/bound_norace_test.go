//go:build !race

package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// TestAdmittedWithinTheReportedBound runs members without handoff that join, leave, pause, lose contact and forward
// requests to any member, each with a ring of its own age. It requires that the hits admitted on a key in a window are
// at most the limit plus the sum of the bounds that the members report.
func TestAdmittedWithinTheReportedBound(t *testing.T) {
	exceeded := 0
	for seed := range uint64(20) {
		exceeded += runCluster(t, seed)
	}
	if exceeded == 0 {
		t.Error("no run ever admitted more than a limit: the test shows nothing")
	}
}

type simulated struct {
	*Node
	id   ring.ID
	due  []adoption
	next int64 // time of its next Tick
}

// adoption is a ring that a member will use.
type adoption struct {
	at  int64
	ids []ring.ID
	n   int
}

func runCluster(t *testing.T, seed uint64) (exceeded int) {
	rnd := random(seed)
	ids := names(5)
	live := 3
	var ms []*simulated
	for _, id := range ids {
		m := &simulated{Node: New(Options{Self: id, MaxKeys: 400}), id: id}
		move(m.Node, t0-10*second, ids[:live]...)
		ms = append(ms, m)
	}
	admitted := twin{}
	now := t0
	for range 20_000 {
		now += rnd.Int64N(second / 100)
		if rnd.IntN(700) == 0 { // the ring changes, and everybody learns it in his own time
			live = 2 + rnd.IntN(4)
			for _, m := range ms {
				m.due = append(m.due, adoption{now + rnd.Int64N(second), ids[:live], live + rnd.IntN(2)})
			}
		}
		m := ms[rnd.IntN(live)]
		for _, o := range ms {
			o.step(now)
			if rnd.IntN(3000) == 0 {
				o.next += 4 * second // a pause
			}
		}
		req := ask(rnd.IntN(12), 20, []time.Duration{time.Second, 10 * time.Second}[rnd.IntN(2)], 1+rnd.Uint64N(3))
		req.Key[0] ^= uint64(req.Rule.Window)
		req.Degraded = policy.Degraded(rnd.IntN(2) * 2)
		res := m.Decide(now, &req)
		if res.Kind == Pending {
			m.Cancel(req.Key, nil)
			res = m.Degrade(now, &req)
		}
		if res.Kind == Forward {
			res = askOwner(now, ms, res, m, &req, rnd.IntN(10) == 0)
		}
		if res.Over {
			continue
		}
		sum := admitted.admit(now, &req)
		bound := uint64(0)
		if sum > uint64(req.Rule.Limit) {
			for _, o := range ms {
				bound += o.Stats(now).Bound()
			}
		}
		if sum > uint64(req.Rule.Limit)+bound {
			t.Fatalf("seed %d: admitted %d of %d, bound %d, last by %s: %+v", seed, sum, req.Rule.Limit, bound, m.id, res)
		}
		if sum > uint64(req.Rule.Limit) {
			exceeded++
		}
	}
	return exceeded
}

func askOwner(now int64, ms []*simulated, res Result, from *simulated, req *Request, lost bool) Result {
	results := make([]Result, 1)
	for _, o := range ms {
		if o.id == res.Member && !lost {
			o.Serve(now, false, []Request{*req}, results)
			if results[0].Kind == Decided {
				from.Observe(now, req, &results[0])
				return results[0]
			}
			if results[0].Kind == Pending {
				o.Cancel(req.Key, nil)
			}
		}
	}
	return from.Degrade(now, req)
}

func (m *simulated) step(now int64) {
	for len(m.due) > 0 && m.due[0].at <= now {
		st := standing(m.id, m.due[0].ids...)
		st.NRef = m.due[0].n
		m.SetMembership(now, st)
		m.due = m.due[1:]
	}
	if now >= m.next {
		m.Tick(now)
		m.next = now + second/2
	}
}
