package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
)

// approximate returns three holders of a limit with mechanism approximate and that slack each.
func approximate(t *testing.T, slack uint32, watermark uint8) *regions {
	w := newRegions(t, 1, 1, 1)
	w.terms.Floor = 0
	w.terms.Store = federation.StoreTerms{Approximate: true, Slack: 3 * slack, Watermark: watermark}
	return w
}

// spend offers hits to the regions in turn, one each millisecond, and returns how many are admitted.
func (w *regions) spend(q Request, hits int, nodes ...int) (admitted int) {
	count := func(done []Done) {
		for _, d := range done {
			if d.Result.Kind == Decided && !d.Result.Over {
				admitted++
			}
		}
	}
	for i := range hits {
		q.Waiter = i
		if res := take(w.nodes[nodes[i%len(nodes)]], w.now, q); res.Kind == Decided && !res.Over {
			admitted++
		}
		count(w.wait(1))
	}
	count(w.wait(1000))
	return admitted
}

// Holders admit hits without asking, and together at most the limit and the slack of all but one. Below the watermark, they
// wait for the store, so that all that is left is used and no more.
func TestApproximateAgainstAStore(t *testing.T) {
	w := approximate(t, 20, 0)
	q := w.ask(300, time.Hour)
	if res := take(w.nodes[0], w.now, q); res.Kind != Decided || res.Over || res.Authority != Escrow {
		t.Fatalf("the first hit: %+v", res)
	}
	if n := 1 + w.spend(q, 3000, 0, 1, 2); n < 300 || n > 340 {
		t.Errorf("%d of 300 admitted", n)
	}
	if w.calls > 60 {
		t.Errorf("%d calls", w.calls)
	}
	w = approximate(t, 20, 40)
	if n := w.spend(w.ask(300, time.Hour), 3000, 0, 1, 2); n != 300 {
		t.Errorf("%d of 300 admitted with a watermark", n)
	}
}

// A holder that cannot reach the store admits its slack, and then what the rule's outage policy says.
func TestApproximateWithoutTheStore(t *testing.T) {
	for outage, want := range map[federation.Outage]int{federation.FailClosed: 20, federation.RegionalOnly: 120} {
		w := approximate(t, 20, 0)
		w.terms.Outage = outage
		w.cut[0] = true
		q := w.ask(300, time.Hour)
		admitted := 0
		for i := range 5000 {
			q.Waiter = i
			if res := take(w.nodes[0], w.now, q); res.Kind == Decided && !res.Over {
				admitted++
			}
			for _, d := range w.wait(1) {
				if d.Result.Kind == Decided && !d.Result.Over {
					admitted++
				}
			}
		}
		if admitted < want-20 || admitted > want {
			t.Errorf("%v: %d admitted, want %d", outage, admitted, want)
		}
	}
}

// Neither dry runs nor reads are counted, and a rule whose mechanism changes begins again.
func TestApproximateDryRunsCountNothing(t *testing.T) {
	w := approximate(t, 20, 0)
	q := w.ask(300, time.Hour)
	for range 100 {
		for _, op := range []Op{DryRun, Read} {
			if res := take(w.nodes[0], w.now, withOp(q, op)); res.Kind != Decided || res.Over {
				t.Fatalf("%+v", res)
			}
		}
	}
	w.terms.Store = federation.StoreTerms{}
	q.Waiter = 1
	if res := take(w.nodes[0], w.now, q); res.Kind != Pending {
		t.Errorf("a lease needs the coordinator: %+v", res)
	}
}

// Members that are holders of their own have no floors.
func TestHoldersHaveNoFloor(t *testing.T) {
	n := member(Options{Self: "a", Federation: holdersPlace(4)}, t0, "a")
	q := ask(1, 100, time.Hour, 1)
	q.Federation = &federation.RuleTerms{Authority: federation.AuthorityID("home"), Floor: 5}
	q.Waiter = 1
	if res := take(n, t0, q); res.Kind != Pending {
		t.Errorf("%+v", res)
	}
	q.Federation = &federation.RuleTerms{Authority: federation.AuthorityID("home"), Named: true}
	q.Key[0]++
	if res := take(n, t0, q); res.Kind != Decided || !res.Over {
		t.Errorf("without the name that the store needs: %+v", res)
	}
}

// holdersPlace returns the place of a member that is one of about n holders.
func holdersPlace(n uint16) FederationPlace {
	l := &federation.Layout{Name: "test", Epoch: 7, Coordinator: "home", Holders: n}
	return FederationPlace{Schedule: scheduleOf(0, l), Authorities: []string{"home"}}
}
