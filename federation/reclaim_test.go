package federation

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// reclaiming is a world whose regions' unspent hits can be reclaimed, and in which regions are cut off for a while.
type reclaiming struct {
	*world
	lent   map[int64]uint64 // what was credited of regions that had ended or were silent, by window
	dies   bool
	cut    map[*region]int64 // until when
	silent uint64            // the part of lent of silent ones
}

func newReclaiming(seed uint64) *reclaiming {
	w := &reclaiming{world: newWorld(seed), lent: map[int64]uint64{}, dies: seed%2 == 0, cut: map[*region]int64{}}
	w.rule.Window = time.Duration(3+w.IntN(10)) * time.Second
	w.set.Store = StoreTerms{Reclaim: time.Duration(100+w.IntN(900)) * time.Millisecond}
	if len(w.regions) == 1 {
		w.regions = append(w.regions, &region{name: "more", escrow: NewEscrow(1 << 20)})
	}
	return w
}

func (w *reclaiming) step() {
	w.now += w.Int64N(int64(30 * time.Millisecond))
	for w.IntN(3) > 0 && len(w.mail) > 0 {
		i := w.IntN(len(w.mail))
		f := w.mail[i]
		w.mail = append(w.mail[:i], w.mail[i+1:]...)
		f()
	}
	x := w.regions[w.IntN(len(w.regions))]
	if w.IntN(200) == 0 {
		w.cut[x] = w.now + w.Int64N(int64(4*time.Second))
	}
	now, rtt := w.now+x.offset, x.link.RTT()
	if w.dies && w.IntN(300) == 0 {
		w.boots++
		x.escrow = NewEscrow(w.boots)
	}
	if hits := uint64(1 + w.IntN(3)); w.IntN(2) == 0 {
		x.escrow.Offer(now, w.rule, w.set, hits)
		switch x.escrow.Decide(now, w.rule, w.set, hits) {
		case Admitted:
			w.spent[x.escrow.window] += hits
		case Wait:
			x.escrow.AddWaiting(hits)
		}
	}
	if x.escrow.rule.Window > 0 && x.escrow.Due(now, 0, rtt) {
		w.send(x, x.escrow.Request(now, rtt))
		x.escrow.TakeWaiting()
	}
}

// send delivers a request, unless the region is cut off, and counts what its coordinator credits.
func (w *reclaiming) send(x *region, r PoolRequest) {
	r.Key = w.key
	e := x.escrow
	w.later(func() {
		if w.now < w.cut[x] {
			return
		}
		now := w.now + w.offset
		window := w.rule.Index(now)
		before := w.account.current
		before.lines = append([]line(nil), before.lines...)
		same := window == w.account.window
		g, ok := w.account.Grant(now, x.name, &r)
		if !ok {
			return
		}
		for i := range before.lines {
			l, after := before.lines[i], w.account.current
			switch at, found := after.find(l.region); {
			case !same || !found:
			case l.region == x.name && l.boot != r.Boot:
				w.lent[window] += l.left
			case l.region != x.name && after.lines[at].have < l.have:
				w.lent[window] += l.left
				w.silent += l.left
			}
		}
		w.later(func() {
			if w.now >= w.cut[x] {
				e.Accept(w.now+x.offset, &g, x.link.RTT())
			}
		})
	})
}

// At most what was credited of regions that had ended, or were cut off for so long, is admitted above the pool: they may
// have spent it after their newest report.
func TestReclaimStaysWithinItsBound(t *testing.T) {
	var silent, lent, over, under, pools uint64
	for seed := range uint64(1000) {
		w := newReclaiming(seed)
		for range 4000 {
			w.step()
		}
		for i, n := range w.spent {
			if n > w.set.Pool+w.lent[i] {
				t.Fatalf("seed %d: %d of %d admitted in window %d, at most %d more", seed, n, w.set.Pool, i, w.lent[i])
			}
			over += n - min(n, w.set.Pool)
			under += w.set.Pool - min(n, w.set.Pool)
			pools += w.set.Pool
			lent += w.lent[i]
		}
		silent += w.silent
	}
	if silent == 0 || over == 0 || under > pools/2 {
		t.Errorf("%d hits reclaimed of silent regions, %d admitted above pools of %d: the bound is not tested", silent, over, pools)
	}
	t.Logf("pools of %d, %d above, %d unused, %d reclaimed", pools, over, under, lent)
}

// A holder whose reports have no reply stops spending before the coordinator lends its hits to others.
func TestUnconfirmedHitsExpire(t *testing.T) {
	now, rule := int64(time.Hour), limit.Rule{Window: time.Minute, Limit: 1000}
	set := EscrowSettings{Pool: 1000, Store: StoreTerms{Reclaim: 3 * time.Second}}
	var account PoolAccount
	x := NewEscrow(1)
	ask := func(answered bool) {
		t.Helper()
		r := x.Request(now, 0)
		if g, ok := account.Grant(now, "a", &r); !ok || answered && !x.Accept(now, &g, 0) {
			t.Fatalf("%+v", g)
		}
	}
	x.Offer(now, rule, set, 100)
	x.AddWaiting(100)
	ask(true)
	x.TakeWaiting()
	due := now
	for !x.Due(due, 1000, time.Millisecond) {
		x.Offer(due, rule, set, 0)
		due += int64(time.Millisecond)
	}
	if after := time.Duration(due - now); after != time.Second {
		t.Errorf("the first report is due after %v", after)
	}
	now = due
	ask(true) // confirmed for three more seconds
	now += int64(2500 * time.Millisecond)
	if v := x.Decide(now, rule, set, 10); v != Admitted {
		t.Errorf("confirmed hits: %v", v)
	}
	now += int64(500 * time.Millisecond)
	if v := x.Decide(now, rule, set, 1); v != Wait {
		t.Errorf("expired hits: %v", v)
	}
	if r := x.Request(now, 0); r.Have != 10 || r.Left != 0 {
		t.Errorf("%+v", r)
	}
}
