//go:build !race

package owner

import (
	"context"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/federationtest"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// soleCoordinator lends from the counters of one member that is alone.
type soleCoordinator struct {
	n *Node
	o federationtest.Options
}

func (c *soleCoordinator) Lease(_ context.Context, region string, rs []federation.PoolRequest) (gs []federation.PoolGrant, err error) {
	for i := range rs {
		now := c.o.Now()
		c.n.Tick(now)
		if res, _ := c.n.StepPool(now, region, &rs[i], nil); res.Lent {
			gs = append(gs, res.Grant)
		}
	}
	return gs, nil
}

func (c *soleCoordinator) Reconcile(ctx context.Context, region string, rs []federation.PoolRequest) error {
	_, err := c.Lease(ctx, region, rs)
	return err
}

func (c *soleCoordinator) Healthy(context.Context) error { return nil }

// A cluster fulfills the contract of coordinators, apart from three points: it does not know when its memory began, its
// count stops at the pool, and its clock does not go back, so a window that has begun stays the present one.
func TestClusterCoordinates(t *testing.T) {
	federationtest.Run(t, func(t *testing.T, o federationtest.Options) federation.Coordinator {
		place := FederationPlace{Schedule: scheduleOf(0, layoutOf(o.Epoch, regionNames[0], "", 1, 1, 1), layoutOf(o.Epoch+1, regionNames[0], from(o.Change), 1, 1))}
		return &soleCoordinator{member(Options{Self: "a", BootID: 1001, Federation: place}, o.Now(), "a"), o}
	}, "RestOfWindow", "LostWrite", "CountStops", "FixedWindowEnds")
}

// poolWorld is a cluster that coordinates a pool, and regions that spend it. Messages are late, lost and repeated.
type poolWorld struct {
	*network
	rule  limit.Rule
	set   federation.EscrowSettings
	homes []*poolRegion
	mail  []func()
	boots uint64
	spent map[int64]uint64
}

type poolRegion struct {
	name   string
	link   federation.CoordinatorLink
	escrow *federation.Escrow
}

func newPoolWorld(t *testing.T, seed uint64) *poolWorld {
	lender := FederationPlace{Schedule: scheduleOf(0, layoutOf(7, regionNames[0], "", 1, 1, 1))}
	w := &poolWorld{network: newNetwork(t, seed, Options{Federation: lender}, "a", "b", "c"), spent: map[int64]uint64{}}
	r := w.rnd
	w.rule = limit.Rule{Window: time.Duration(1+r.IntN(3)) * time.Second, Limit: uint32(50 + r.IntN(400)), Algorithm: limit.Algorithm(r.IntN(2))}
	w.set = federation.EscrowSettings{Pool: uint64(w.rule.Limit) - uint64(r.IntN(40)), Batch: time.Duration(r.IntN(500)) * time.Millisecond}
	for _, name := range []string{"r0", "r1", "r2"} {
		w.homes = append(w.homes, &poolRegion{name: name, escrow: w.newEscrow()})
	}
	return w
}

func (w *poolWorld) newEscrow() *federation.Escrow {
	w.boots++
	return federation.NewEscrow(w.boots)
}

// later delivers f after a while, not at all, or twice.
func (w *poolWorld) later(f func()) {
	for n := w.rnd.IntN(10); n < 11; n += 5 + w.rnd.IntN(10) {
		if n == 0 {
			return
		}
		w.mail = append(w.mail, f)
	}
}

// serve has member at process r, a request for escrow e of x, or the member that it names.
func (w *poolWorld) serve(at ring.ID, x *poolRegion, e *federation.Escrow, r federation.PoolRequest) {
	r.Epoch = 7
	reply := func(d PoolDone) {
		if d.Lent {
			w.later(func() { e.Accept(w.now, &d.Grant, x.link.RTT()) })
		}
	}
	for range 3 {
		n := w.nodes[at]
		if n == nil {
			return
		}
		res, fx := n.StepPool(w.clock(at), x.name, &r, reply)
		w.effects(at, fx)
		switch {
		case res.Kind == Decided && res.Lent:
			reply(PoolDone{Grant: res.Grant, Lent: true})
			return
		case res.Kind != Forward || res.Member == "":
			return
		}
		at = res.Member
	}
}

func (w *poolWorld) spend(times int) {
	for range times {
		if w.rnd.IntN(3) == 0 {
			w.run(2 * time.Millisecond)
		}
		w.step(true)
		for w.rnd.IntN(3) > 0 && len(w.mail) > 0 {
			i := w.rnd.IntN(len(w.mail))
			f := w.mail[i]
			w.mail = append(w.mail[:i], w.mail[i+1:]...)
			f()
		}
		x := w.homes[w.rnd.IntN(len(w.homes))]
		if w.rnd.IntN(400) == 0 { // the key's owner in the region dies
			x.escrow = w.newEscrow()
		}
		hits := uint64(1 + w.rnd.IntN(4))
		x.escrow.Offer(w.now, w.rule, w.set, hits)
		switch x.escrow.Decide(w.now, w.rule, w.set, hits) {
		case federation.Admitted:
			w.spent[w.rule.Index(w.now)] += hits
		case federation.Wait:
			x.escrow.AddWaiting(hits)
		}
		if x.escrow.Due(w.now, 0, x.link.RTT()) {
			r := x.escrow.Request(w.now, x.link.RTT())
			r.Key = federation.Key{1, 2}
			x.escrow.TakeWaiting()
			ids, e := w.ids(), x.escrow
			w.later(func() { w.serve(ids[w.rnd.IntN(len(ids))], x, e, r) })
		}
	}
}

// A pool that a cluster lends is never exceeded, while members join, leave and crash, and whatever happens to messages.
func TestPoolOfAClusterIsNotExceeded(t *testing.T) {
	var admitted, available, lent uint64
	for seed := range seeds(300) {
		w := newPoolWorld(t, seed)
		w.spend(1500)
		w.boot("d", membership.Joining)
		w.adopt()
		w.run(time.Second)
		w.states["d"] = membership.Active
		for _, id := range w.ids() {
			w.adoptAt(id, w.ring())
			w.spend(40)
		}
		w.spend(1500)
		_, at := poolOf(federation.Key{1, 2})
		lender := w.ring().At(w.ring().Owner(at)).ID
		if seed%2 == 0 {
			w.leave(t, lender, func(n int) { w.spend(n) })
		} else {
			delete(w.nodes, lender)
			w.adopt()
		}
		w.spend(4000)
		for i, n := range w.spent {
			if n > w.set.Pool {
				t.Errorf("seed %d (%v): %d of %d admitted in window %d", seed, w.rule.Algorithm, n, w.set.Pool, i)
			}
			admitted, available = admitted+n, available+w.set.Pool
		}
		for _, n := range w.nodes {
			lent += n.Stats(w.now).PoolLent
		}
	}
	t.Logf("%d of %d admitted, %d lent", admitted, available, lent)
	if admitted < available/4 {
		t.Errorf("only %d of %d admitted", admitted, available)
	}
}

// Pools of long windows without requests do not keep those of other keys out, and what was lent of them still counts.
func TestPoolsOfLongWindowsAreForgotten(t *testing.T) {
	const year = 365 * 24 * time.Hour
	now := int64(1_700_000_000 * time.Second)
	place := FederationPlace{Schedule: scheduleOf(0, layoutOf(7, regionNames[0], "", 1, 1))}
	n := member(Options{Self: "a", BootID: 1001, Federation: place}, now, "a")
	request := func(key uint64, window time.Duration) federation.PoolRequest {
		return federation.PoolRequest{
			Key: federation.Key{key * 0x9e3779b97f4a7c15, key}, Rule: limit.Rule{Window: window, Limit: 100}, Pool: 100, Epoch: 7, Boot: 1, Seq: uint64(now),
		}
	}
	n.Tick(now)
	first := request(1, year)
	first.Tokens = 60
	n.StepPool(now, "r0", &first, nil)
	for key := range uint64(200_000) {
		r := request(key+1, year)
		n.StepPool(now, "hostile", &r, nil)
	}
	for range 3 * 3600 {
		now += int64(time.Second)
		n.Tick(now)
	}
	if kept := n.Stats(now).Pools; kept > 0 {
		t.Errorf("%d pools are kept", kept)
	}
	r := request(300_000, time.Minute)
	if res, _ := n.StepPool(now, "r0", &r, nil); !res.Lent {
		t.Error("another key's request is refused")
	}
	second := request(1, year)
	second.Tokens = 100
	if res, _ := n.StepPool(now, "r1", &second, nil); res.Grant.Total != 40 {
		t.Errorf("%d lent, after 60 of 100", res.Grant.Total)
	}
}
