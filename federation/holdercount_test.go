package federation

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// countingWorld are holders with mechanism approximate, a coordinator, and messages that are late, lost and repeated. Clocks are
// off by less than lateReport.
type countingWorld struct {
	*rand.Rand
	now     int64
	rule    limit.Rule
	set     EscrowSettings
	account CountAccount
	holders []*countingHolder
	mail    []func()
	loses   bool
	life    uint64
	// by window, as holders count them
	admitted map[int64]uint64
	lives    map[int64]map[uint64]bool // those that admitted something
	offered  map[int64]uint64
}

type countingHolder struct {
	name   string
	offset int64
	count  *HolderCount
}

func newCountingWorld(seed uint64, algorithm limit.Algorithm) *countingWorld {
	r := rand.New(rand.NewPCG(seed, 2))
	w := &countingWorld{Rand: r, now: int64(time.Hour), admitted: map[int64]uint64{}, lives: map[int64]map[uint64]bool{}, offered: map[int64]uint64{}}
	w.rule = limit.Rule{Window: time.Duration(1+r.IntN(4)) * time.Second, Limit: uint32(20 + r.IntN(400)), Algorithm: algorithm}
	w.loses = r.IntN(2) == 0
	n := 1 + r.IntN(5)
	w.set = EscrowSettings{Pool: uint64(w.rule.Limit), Store: StoreTerms{
		Approximate: true, Slack: uint32(r.IntN(int(w.rule.Limit)/n + 1)), Sync: time.Duration(100+r.IntN(400)) * time.Millisecond,
		Watermark: uint8(r.IntN(2) * r.IntN(101)),
	}}
	for i := range n {
		w.life++
		w.holders = append(w.holders, &countingHolder{fmt.Sprint("h", i), r.Int64N(int64(time.Second)), NewHolderCount(w.life)})
	}
	return w
}

// later delivers f after a while, and perhaps not at all or twice.
func (w *countingWorld) later(f func()) {
	if w.loses && w.IntN(8) == 0 {
		return
	}
	w.mail = append(w.mail, f)
	if w.IntN(8) == 0 {
		w.mail = append(w.mail, f)
	}
}

func (w *countingWorld) step(restarts bool) {
	w.now += w.Int64N(int64(10 * time.Millisecond))
	for w.IntN(3) > 0 && len(w.mail) > 0 {
		i := w.IntN(len(w.mail))
		f := w.mail[i]
		w.mail = append(w.mail[:i], w.mail[i+1:]...)
		f()
	}
	h := w.holders[w.IntN(len(w.holders))]
	if restarts && w.IntN(400) == 0 {
		w.life++
		h.count = NewHolderCount(w.life)
	}
	now, t := w.now+h.offset, h.count
	if hits := uint64(1 + w.IntN(5)); w.IntN(2) == 0 {
		t.Offer(now, w.rule, w.set, hits)
		i := w.rule.Index(now)
		w.offered[i] += hits
		switch t.Decide(now, w.rule, w.set, hits) {
		case Admitted:
			w.admitted[i] += hits
			if w.lives[i] == nil {
				w.lives[i] = map[uint64]bool{}
			}
			w.lives[i][t.boot] = true
		case Wait:
			t.AddWaiting(hits)
		}
	}
	if t.rule.Window > 0 && t.Due(now, 0, time.Millisecond) {
		w.send(h, t, t.Request(now, 0))
		t.TakeWaiting()
	}
}

func (w *countingWorld) send(h *countingHolder, t *HolderCount, r PoolRequest) {
	w.later(func() {
		if g, ok := w.account.Grant(w.now, h.name, &r); ok {
			w.later(func() { t.Accept(w.now+h.offset, &g, 0) })
		}
	})
}

// bound returns how many hits more than the limit holders can admit in window i: the unreported ones of each life but one.
func (w *countingWorld) bound(i int64) uint64 {
	return uint64(max(1, len(w.lives[i]))-1) * uint64(w.set.Store.Slack)
}

// Whatever happens to messages, and whichever holders restart, a window admits at most the limit and, of each life but one,
// the slack that one holder may leave unreported. Without slack it is exact.
func TestApproximateStaysWithinItsBound(t *testing.T) {
	var admitted, wanted, over uint64
	for seed := range uint64(1500) {
		w := newCountingWorld(seed, limit.FixedWindow)
		for range 3000 {
			w.step(seed%3 == 0)
		}
		for i, n := range w.admitted {
			if most := uint64(w.rule.Limit) + w.bound(i); n > most {
				t.Fatalf("seed %d: %d of %d admitted in window %d, at most %d: %d lives with slack %d", seed, n, w.rule.Limit, i, most, len(w.lives[i]), w.set.Store.Slack)
			}
			over = max(over, n-min(n, uint64(w.rule.Limit)))
			admitted, wanted = admitted+n, wanted+min(w.offered[i], uint64(w.rule.Limit))
		}
	}
	if over == 0 || admitted < wanted*9/10 {
		t.Errorf("%d of %d hits admitted, at most %d above a limit: the bound is not tested", admitted, wanted, over)
	}
	t.Logf("%d of %d hits admitted, at most %d above a limit", admitted, wanted, over)
}

// A sliding window also weighs the hits that all holders have reported of the window before, some of them after the next
// window has begun.
func TestApproximateSlidingWindow(t *testing.T) {
	for seed := range uint64(500) {
		w := newCountingWorld(seed, limit.SlidingWindow)
		for range 3000 {
			w.step(false)
		}
		for i, n := range w.admitted {
			if most := uint64(w.rule.Limit) + w.bound(i); n > most {
				t.Fatalf("seed %d: %d of %d admitted in window %d, at most %d", seed, n, w.rule.Limit, i, most)
			}
		}
	}
	now, r := int64(time.Hour), limit.Rule{Window: 10 * time.Second, Limit: 100, Algorithm: limit.SlidingWindow}
	var account CountAccount
	a, b := NewHolderCount(1), NewHolderCount(2)
	set := EscrowSettings{Pool: 100, Store: StoreTerms{Approximate: true, Slack: 50}}
	exchange := func(x *HolderCount, name string) {
		t.Helper()
		q := x.Request(now, 0)
		g, ok := account.Grant(now, name, &q)
		if !ok || !x.Accept(now, &g, 0) {
			t.Fatalf("%+v", g)
		}
	}
	if v := a.Decide(now, r, set, 40); v != Admitted {
		t.Fatal(v)
	}
	now += int64(15 * time.Second) // the report of the window before goes out with the first one of the next
	if v := b.Decide(now, r, set, 1); v != Admitted {
		t.Fatal(v)
	}
	a.Decide(now, r, set, 1)
	exchange(a, "a")
	exchange(b, "b")
	if left := b.Left(now) + b.Rest(now); left != 78 { // 100 - 2 - half of 40
		t.Errorf("%d left", left)
	}
}

// Below the watermark, a holder admits only what the coordinator has reserved for it.
func TestWatermarkChecksEachRequest(t *testing.T) {
	now, r := int64(time.Hour), limit.Rule{Window: time.Minute, Limit: 100}
	set := EscrowSettings{Pool: 100, Store: StoreTerms{Approximate: true, Slack: 100, Watermark: 20}}
	x := NewHolderCount(1)
	if v := x.Decide(now, r, set, 80); v != Admitted {
		t.Fatal(v)
	}
	if v := x.Decide(now, r, set, 1); v != Wait {
		t.Fatalf("below the watermark: %v", v)
	}
	x.AddWaiting(1)
	var account CountAccount
	q := x.Request(now, 0)
	g, _ := account.Grant(now, "a", &q)
	if !x.Accept(now, &g, 0) || g.Total != 81 {
		t.Fatalf("%+v", g)
	}
	x.TakeWaiting()
	if v := x.Decide(now, r, set, 1); v != Admitted {
		t.Errorf("the reserved hit: %v", v)
	}
	if v := x.Decide(now, r, set, 1); v != Wait {
		t.Errorf("the next hit: %v", v)
	}
	if v := x.Decide(now, r, set, 20); v != Refused {
		t.Errorf("more than is left: %v", v)
	}
}
