package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// One member counts without faults, and many hits are refunded: the oracle finds no violation in what limit admits.
// If a refund is counted twice, it does.
func TestOracleChecksRefunds(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog, limit.InFlight} {
		t.Run(algorithm.String(), func(t *testing.T) {
			found := 0
			for seed := range uint64(300) {
				if failure := giveBack(seed, algorithm, 1); failure != "" {
					t.Fatalf("seed %d: %s", seed, failure)
				}
				if giveBack(seed, algorithm, 2) != "" {
					found++
				}
			}
			if found < 150 {
				t.Errorf("double refunds were found in %d of 300 runs", found)
			}
		})
	}
}

// giveBack charges one counter, applies each refund the given number of times, and returns the violation that the
// oracle found.
func giveBack(seed uint64, algorithm limit.Algorithm, times int) string {
	rnd := rand.New(rand.NewPCG(seed, 2))
	w := &world{o: options{Slots: 1}, now: epoch, slots: make([]slot, 1), stats: newSummary()}
	w.unblockLinks()
	w.oracle.init(w)
	m := &member{w: w, view: &membership.View{Ring: ring.New(nil)}}
	rule := limit.Rule{Algorithm: algorithm, Window: 2 * time.Second, Limit: 1 + rnd.Uint32N(20)}
	var s limit.State
	for id := uint64(1); id <= 600 && w.failure == ""; id++ {
		w.now += rnd.Int64N(int64(4*rule.Window) / int64(rule.Limit) / 4)
		q := &request{id: id, from: m, req: owner.Request{Rule: rule, Hits: 1 + rnd.Uint64N(3)}}
		var d limit.Decision
		if rnd.IntN(5) == 0 {
			q.req.Op = owner.Refund
			d = rule.Refund(&s, w.now, 3, q.req.Hits*uint64(times))
		} else if seed%2 == 0 && rule.Peek(&s, w.now, q.req.Hits).Over {
			continue // so that nothing is refunded that was not admitted
		} else {
			d = rule.Take(&s, w.now, 3, q.req.Hits)
		}
		v := &decision{by: m, earliest: w.now, latest: w.now, result: owner.Result{Kind: owner.Decided, Authority: owner.Full, Decision: d}}
		if times > 1 && q.req.Op == owner.Refund {
			v.result.After = max(d.After, d.Before-min(d.Before, q.req.Hits)) // as reported
		}
		w.oracle.decided(q, v)
		w.oracle.answered(q, v)
	}
	if w.failure != "" {
		return fmt.Sprintf("%+v: %s", rule, w.failure)
	}
	return ""
}
