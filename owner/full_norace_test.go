//go:build !race

package owner

import (
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// roll restarts all members, one after the other.
func (w *network) roll(t *testing.T) {
	t.Helper()
	for _, id := range w.ids() {
		w.states[id] = membership.Leaving
		w.adopt()
		for i := 0; !w.nodes[id].Progress().HandedOff; i++ {
			if i > 300 {
				t.Fatalf("%s still has keys: %+v", id, w.nodes[id].Progress())
			}
			w.run(100 * time.Millisecond)
		}
		w.left = []ring.ID{id}
		delete(w.nodes, id)
		w.nref = len(w.nodes)
		w.adopt()
		w.run(2 * time.Second)
		w.left = nil
		w.boot(id, membership.Joining)
		w.adopt()
		w.run(2 * time.Second)
		w.states[id] = membership.Active
		w.nref = len(w.nodes)
		w.adopt()
		w.run(3 * time.Second)
	}
}

// TestRollingRestartOfFullTables requires that a rolling restart of members with full tables loses no counts: a spent
// limit refuses afterwards, with a counter in the table or without.
func TestRollingRestartOfFullTables(t *testing.T) {
	const most = 700 // keys a member
	for _, members := range []int{3, 5} {
		for _, fill := range []int{50, 72, 90, 110} {
			for _, alg := range []limit.Algorithm{limit.FixedWindow, limit.SlidingLog, limit.TokenBucket} {
				t.Run(fmt.Sprintf("%d members, %d %%, %v", members, fill, alg), func(t *testing.T) {
					ids := []ring.ID{"a", "b", "c", "d", "e"}[:members]
					w := newNetwork(t, 3, Options{MaxKeys: most, DomainQuota: most * 6 / 10}, ids...)
					request := func(i int) Request {
						req := ask(i, 3, 365*24*time.Hour, 1)
						req.Rule.Algorithm, req.Domain = alg, uint64(i%2)
						return req
					}
					keys := most * members * fill / 100
					for i := range keys {
						for range 4 {
							w.ask(ids[i%members], request(i), func(Result) {})
						}
						if i%20 == 0 {
							w.run(4 * time.Millisecond)
						}
					}
					w.run(2 * time.Second)
					w.roll(t)
					again := 0
					for i := range keys {
						w.ask(ids[i%members], request(i), func(res Result) {
							if !res.Over {
								again++
							}
						})
					}
					var bound uint64
					for _, n := range w.nodes {
						bound += n.Stats(w.now).Bound()
					}
					if again > 0 {
						t.Errorf("%d of %d spent keys were admitted again (bound %d)", again, keys, bound)
					}
				})
			}
		}
	}
}
