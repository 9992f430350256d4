package owner

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/ring"
)

// TestTakeBackConserves requires that the owner's count never falls below what it and the share have admitted in a window,
// however often and with whatever hits and times late replies are processed, when each is that of a charge of the owner.
func TestTakeBackConserves(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := newNetwork(t, 3, Options{}, "a", "b", "c")
		base := ask(ownedBy(t, w.ring(), "b", 0), 30, time.Hour, 1)
		admitted, doubled := uint64(0), []struct {
			at  int64
			req Request
		}{}
		apart := func(from, to ring.ID) bool { return from == "a" || to == "a" }
		w.cut = apart
		for range 40 {
			req := base
			req.Hits = []uint64{0, 1, 2, 5, math.MaxUint64}[rnd.IntN(5)]
			switch rnd.IntN(6) {
			case 0: // by the owner, for another member
				w.ask("c", req, func(r Result) {
					if !r.Over {
						admitted += req.Hits
					}
				})
			case 1: // by the share alone
				w.ask("a", req, func(r Result) {
					if !r.Over && r.Authority == Share {
						admitted += req.Hits
					}
				})
			case 2: // by both, for one request
				owned := false
				w.ask("c", req, func(r Result) { owned = r.Authority == Full && !r.Over })
				at := w.now
				w.ask("a", req, func(r Result) {
					if !r.Over {
						admitted += req.Hits
					}
				})
				if owned && ChargesTwice(&req) {
					doubled = append(doubled, struct {
						at  int64
						req Request
					}{at, req})
				}
			case 3:
				if n := len(doubled); n > 0 {
					d := doubled[n-1]
					doubled = doubled[:n-1]
					w.nodes["a"].TakeBack(w.now, d.at, &d.req)
				}
			case 4:
				w.run(time.Duration(rnd.IntN(300)) * time.Millisecond)
			case 5:
				if w.cut = apart; rnd.IntN(3) == 0 {
					w.cut = nil
					w.run(300 * time.Millisecond)
					w.cut = apart
				}
			}
		}
		w.cut = nil
		w.run(3 * time.Second)
		probe := base
		probe.Hits = 0
		w.ask("c", probe, func(r Result) {
			if r.Authority == Full && r.Before < min(admitted, 1<<40) {
				t.Errorf("seed %d: a count of %d, %d hits were admitted", seed, r.Before, admitted)
			}
		})
	}
}
