package federation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// world is regions with an escrow each, a coordinator, and messages that are late, lost and repeated. Every clock is off.
type world struct {
	*rand.Rand
	now     int64
	rule    limit.Rule
	set     EscrowSettings
	account PoolAccount
	offset  int64 // of the coordinator's clock
	regions []*region
	mail    []func()
	skewed  bool
	fair    bool             // regions have tenants, and some send notes that no region sends
	spent   map[int64]uint64 // by window, as the coordinator names it
	wall    map[int64]uint64 // by window of the true time
	boots   uint64
	key     Key
}

type region struct {
	name   string
	offset int64
	link   CoordinatorLink
	escrow *Escrow
}

func newWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &world{Rand: r, now: int64(time.Hour), spent: map[int64]uint64{}, wall: map[int64]uint64{}}
	w.rule = limit.Rule{Window: time.Duration(1+r.IntN(3)) * time.Second, Limit: uint32(1 + r.IntN(200)), Algorithm: limit.Algorithm(r.IntN(2))}
	w.set = EscrowSettings{Pool: uint64(r.IntN(int(w.rule.Limit) + 1)), Batch: time.Duration(r.IntN(2000)) * time.Millisecond}
	skew := []int64{0, int64(100 * time.Millisecond), int64(5 * time.Second)}[r.IntN(3)]
	off := func() int64 {
		if skew == 0 {
			return 0
		}
		return r.Int64N(2*skew) - skew
	}
	w.skewed, w.offset, w.fair = skew > 0, off(), seed%2 == 1
	for i := range 1 + r.IntN(4) {
		w.boots++
		w.regions = append(w.regions, &region{name: fmt.Sprint("r", i), offset: off(), escrow: NewEscrow(w.boots)})
	}
	return w
}

// later delivers f after a while, not at all, or twice.
func (w *world) later(f func()) {
	for n := w.IntN(10); n < 11; n += 5 + w.IntN(10) {
		if n == 0 {
			return
		}
		w.mail = append(w.mail, f)
	}
}

func (w *world) step() {
	w.now += w.Int64N(int64(20 * time.Millisecond))
	for w.IntN(3) > 0 && len(w.mail) > 0 {
		i := w.IntN(len(w.mail))
		f := w.mail[i]
		w.mail = append(w.mail[:i], w.mail[i+1:]...)
		f()
	}
	x := w.regions[w.IntN(len(w.regions))]
	now, rtt := w.now+x.offset, x.link.RTT()
	if w.IntN(300) == 0 { // the key's owner dies, and the next one begins with nothing
		w.boots++
		x.escrow = NewEscrow(w.boots)
	}
	hits := uint64(1 + w.IntN(5))
	x.escrow.Offer(now, w.rule, w.set, hits)
	switch w.decide(x, now, hits) {
	case Admitted:
		w.spent[x.escrow.window] += hits
		w.wall[w.rule.Index(w.now)] += hits
	case Wait:
		x.escrow.AddWaiting(hits)
	}
	if x.escrow.Due(now, 0, rtt) {
		w.send(x, x.escrow.Request(now, rtt))
		x.escrow.TakeWaiting()
	}
}

// decide decides hits of a region's client, who is one of four tenants if the limit is divided.
func (w *world) decide(x *region, now int64, hits uint64) Verdict {
	if !w.fair {
		return x.escrow.Decide(now, w.rule, w.set, hits)
	}
	tenant := 1 + w.Uint64N(4)
	x.escrow.OfferTenant(now, tenant, uint32(tenant), hits, true)
	v := x.escrow.TenantMay(now, tenant)
	if v == Admitted {
		v = x.escrow.Decide(now, w.rule, w.set, hits)
	}
	if v == Admitted {
		x.escrow.TenantSpent(now, tenant, hits)
	}
	return v
}

// hostileNote returns n, or now and then a note that no region sends.
func (w *world) hostileNote(n []byte) []byte {
	n = slices.Clone(n)
	switch w.IntN(8) {
	case 0:
		for range 3 * min(1, len(n)) {
			n[w.IntN(len(n))] = byte(w.IntN(256)) | byte(255*w.IntN(2))
		}
	case 1:
		n = make([]byte, w.IntN(MaxNote))
		for i := range n {
			n[i] = byte(w.IntN(256))
		}
	}
	return n
}

func (w *world) send(x *region, r PoolRequest) {
	r.Key = w.key
	if w.fair {
		r.Note = w.hostileNote(r.Note)
	}
	w.later(func() {
		g, ok := w.account.Grant(w.now+w.offset, x.name, &r)
		if !ok {
			return
		}
		w.later(func() { x.escrow.Accept(w.now+x.offset, &g, x.link.RTT()) })
	})
}

// In each window, by its index, the regions admit at most the pool, whatever the clocks, and whatever happens to messages
// and owners (F1).
func TestNoWindowExceedsThePool(t *testing.T) {
	var admitted, available uint64
	for seed := range uint64(2000) {
		w := newWorld(seed)
		for range 3000 {
			w.step()
		}
		for i, n := range w.spent {
			if n > w.set.Pool {
				t.Fatalf("seed %d: %d of %d admitted in window %d", seed, n, w.set.Pool, i)
			}
			admitted, available = admitted+n, available+w.set.Pool
		}
		for i, n := range w.wall {
			if n > w.set.Pool && !w.skewed {
				t.Fatalf("seed %d: %d of %d admitted in window %d of the true time", seed, n, w.set.Pool, i)
			}
		}
	}
	if admitted < available/4 {
		t.Errorf("only %d of %d admitted", admitted, available)
	}
	t.Logf("%d of %d admitted", admitted, available)
}
