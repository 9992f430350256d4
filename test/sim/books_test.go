package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// An abandoned request may be the first of its window that the oracle sees: requests decided before it still wait for
// replicas, and the member that received it decides by its share at the same time.
func TestAbandonedBeforeWindowIsSeen(t *testing.T) {
	type step struct{ before, after uint64 }
	for _, c := range []struct {
		name  string
		op    owner.Op
		after time.Duration // until the first decision that is seen
		steps []step
		fails string
	}{
		{"at once", owner.Take, 0, []step{{0, 8}, {9, 10}}, ""},
		{"later", owner.Take, time.Millisecond, []step{{0, 8}, {9, 10}}, ""},
		{"one is not two", owner.Take, 0, []step{{0, 8}, {9, 10}, {11, 12}}, "3 chains"},
		{"long before", owner.Take, time.Second, []step{{0, 8}, {9, 10}}, "2 chains"},
		{"a refund", owner.Refund, 0, []step{{0, 1}, {0, 1}}, ""},
		{"no refund", owner.Take, 0, []step{{0, 1}, {0, 1}}, "both decided at count 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options{
				Seed: 1, Members: 3, Slots: 3, Keys: 1, Length: time.Second, Deadline: time.Second, Decay: time.Minute,
				Serial: true, Algorithms: []limit.Algorithm{limit.FixedWindow},
			}
			w := newRunner(false).newWorld(o, noBug)
			m, r := w.slots[0].now, &w.rules[0][0]
			r.limit = limit.Rule{Algorithm: limit.FixedWindow, Limit: 1000, Window: time.Minute}
			ask := func(op owner.Op) *request {
				return &request{from: m, req: owner.Request{Key: r.digest, RingPos: r.owner, Rule: r.limit, Hits: 1, Op: op}}
			}
			w.oracle.unseen(ask(c.op), m)
			w.now += int64(c.after)
			for _, s := range c.steps {
				v := decision{by: m, earliest: m.clock(), latest: m.clock(), result: owner.Result{Kind: owner.Decided, Authority: owner.Full}}
				v.result.Before, v.result.After = s.before, s.after
				v.result.Reset = wholeSeconds(r.limit.End(r.limit.Index(v.earliest)) - v.earliest)
				w.oracle.decided(ask(owner.Take), &v)
			}
			w.oracle.finish()
			if f := w.failure; (f == "") != (c.fails == "") || !strings.Contains(f, c.fails) {
				t.Errorf("failure %q, want %q", f, c.fails)
			}
		})
	}
}
