package owner

import (
	"math"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// TestOwnershipOnDemand requires that a key with a request gets its ownership and its counter at once, before its
// transfer arrives.
func TestOwnershipOnDemand(t *testing.T) {
	w := newNetwork(t, 2, Options{}, "a")
	for i := range 40 {
		w.ask("a", ask(i, 10, time.Hour, 6), func(Result) {})
	}
	w.still = true
	w.boot("b", membership.Joining)
	w.adopt()
	w.run(50 * time.Millisecond)
	w.states["b"], w.nref = membership.Active, 2
	w.adopt()
	w.run(50 * time.Millisecond)
	moved := 0
	for i := range 80 { // the last forty were never charged
		w.ask("b", ask(i, 10, time.Hour, 1), func(res Result) {
			want := uint64(6)
			if i >= 40 {
				want = 0
			}
			if res.Authority != Full || res.Before != want {
				t.Errorf("key %d: %+v", i, res)
			}
		})
		if r := w.ring(); r.At(r.Owner(ask(i, 1, 1, 1).RingPos)).ID == "b" {
			moved++
		}
	}
	if w.given != moved || moved < 20 {
		t.Errorf("%d keys moved, %d tokens came", moved, w.given)
	}
	w.still = false
	w.run(3 * time.Second)
	if p := w.nodes["b"].Progress(); !p.Complete() {
		t.Errorf("%+v", p)
	}
}

// TestOwnershipThatDoesNotArrive requires that a request stops waiting when its caller does, and is decided from the
// local share if the holder is silent.
func TestOwnershipThatDoesNotArrive(t *testing.T) {
	w := newNetwork(t, 2, Options{}, "a")
	w.still = true
	w.boot("b", membership.Joining)
	w.adopt()
	w.run(50 * time.Millisecond)
	w.states["b"], w.nref = membership.Active, 2
	w.adopt()
	w.cut = func(_, _ ring.ID) bool { return true }
	req := ask(ownedBy(t, w.ring(), "b", 0), 10, time.Hour, 1)
	w.ask("b", req, func(res Result) {
		if res.Authority != Share {
			t.Errorf("%+v", res)
		}
	})
	if f := w.nodes["b"].Stats(w.now); f.Pending != 0 {
		t.Errorf("%+v", f)
	}
}

// pairOf returns member "a", alone in the ring with full authority, and a function that sends it messages of "b".
func pairOf(t *testing.T, o Options) (*Node, func(now int64, k protocol.MessageKind, cs ...protocol.CounterRecord) Ready) {
	t.Helper()
	o.Self, o.BootID = "a", 0x101
	n := New(o)
	n.SetMembership(t0, &membership.View{
		Self: "a", BootID: 0x101, Ring: ring.New([]ring.Member{{ID: "a", BootID: 0x101}}), NRef: 1, Joined: true,
		Members: []membership.Member{{ID: "a", BootID: 0x101, State: membership.Active}, {ID: "b", BootID: 0x201}},
	})
	return n, func(now int64, k protocol.MessageKind, cs ...protocol.CounterRecord) Ready {
		return n.Step(now, "b", 0x201, &protocol.Message{Kind: k, Seq: 1, Counters: cs})
	}
}

func counterOf(req Request, slots ...limit.Slot) protocol.CounterRecord {
	return protocol.CounterRecord{Key: req.Key, RingPos: req.RingPos, Domain: req.Domain, Rule: req.Rule, State: limit.State{Slots: slots}}
}

func TestMergedSlots(t *testing.T) {
	req := ask(1, 100, time.Minute, 0)
	w := req.Rule.Index(t0)
	for _, c := range []struct {
		name    string
		slots   []limit.Slot
		want    uint64 // of 5 own hits and those
		refused uint64
	}{
		{"another writer's", []limit.Slot{{Writer: 0x201, At: w, Charged: 7, Refunded: 2}}, 10, 0},
		{"two writers'", []limit.Slot{{Writer: 0x201, At: w, Charged: 7}, {Writer: 0x301, At: w, Charged: 1}}, 13, 0},
		{"own, raised", []limit.Slot{{Writer: 0x101, At: w, Charged: 1 << 40}}, 5, 0},
		{"own, refunded", []limit.Slot{{Writer: 0x101, At: w, Charged: 5, Refunded: 5}}, 5, 0},
		{"own, of another window", []limit.Slot{{Writer: 0x101, At: w + 1, Charged: 5}}, 5, 0},
		{"any value", []limit.Slot{{Writer: 0x201, At: w, Charged: math.MaxUint64}}, math.MaxUint64, 0},
		{"the window before", []limit.Slot{{Writer: 0x201, At: w - 1, Charged: 9}}, 5, 0},
		{"the window after", []limit.Slot{{Writer: 0x201, At: w + 1, Charged: 9}}, 5, 0},
		{"a window too far ahead", []limit.Slot{{Writer: 0x201, At: w + 2, Charged: 9}}, 5, 1},
		{"a window that has ended, as in a handoff", []limit.Slot{{Writer: 0x201, At: w - 2, Charged: 9}}, 5, 0},
		{"the end of time", []limit.Slot{{Writer: 0x201, At: math.MaxInt64, Charged: 9}}, 5, 1},
	} {
		n, send := pairOf(t, Options{})
		take(n, t0, ask(1, 100, time.Minute, 5))
		fx := send(t0, protocol.Replica, counterOf(req, c.slots...))
		if len(fx.Messages) != 1 || fx.Messages[0].To != "b" || fx.Messages[0].Msg.Kind != protocol.ReplicaAck || fx.Messages[0].Msg.Seq != 1 {
			t.Errorf("%s: %+v", c.name, fx.Messages)
		}
		if res := take(n, t0+1, withOp(req, DryRun)); res.Before != c.want || res.Reset > time.Minute {
			t.Errorf("%s: %+v, want %d", c.name, res, c.want)
		}
		if f := n.Stats(t0); f.SlotsRefused != c.refused {
			t.Errorf("%s: %d refused", c.name, f.SlotsRefused)
		}
	}
}

// TestWindowAheadIsKept requires that hits counted in the next window by a faster clock count when that window begins.
func TestWindowAheadIsKept(t *testing.T) {
	n, send := pairOf(t, Options{})
	req := ask(1, 100, time.Minute, 5)
	w := req.Rule.Index(t0)
	take(n, t0, req)
	send(t0+second, protocol.Replica, counterOf(req, limit.Slot{Writer: 0x201, At: w + 1, Charged: 30}))
	for _, c := range []struct {
		at   int64
		want uint64
	}{{2 * second, 5}, {59 * second, 10}, {60*second - 200*milli, 30}, {61 * second, 35}, {121 * second, 0}} {
		if res := take(n, t0+c.at, req); res.Before != c.want {
			t.Errorf("after %v: %+v, want %d", time.Duration(c.at), res, c.want)
		}
	}
}

func TestRefusedCounters(t *testing.T) {
	n, send := pairOf(t, Options{MaxKeys: 4})
	req := ask(1, 100, time.Minute, 0)
	w := req.Rule.Index(t0)
	slot := limit.Slot{Writer: 0x201, At: w, Charged: 7}
	bad := []protocol.CounterRecord{counterOf(req, slot), counterOf(req, slot), counterOf(req, make([]limit.Slot, maxSlots+1)...)}
	bad[0].Rule.Algorithm = 99
	bad[1].Rule.Window = -1
	send(t0, protocol.Chunk, bad...)
	n.Step(t0, "b", 0x203, &protocol.Message{Kind: protocol.Replica, Counters: []protocol.CounterRecord{counterOf(req, slot)}})
	n.Step(t0, "x", 0x201, &protocol.Message{Kind: protocol.Replica, Counters: []protocol.CounterRecord{counterOf(req, slot)}})
	if f := n.Stats(t0); f.SlotsRefused != 5 || f.Replicas != 0 || f.CopiesMerged != 0 {
		t.Errorf("%+v", f)
	}
	for i := range 10 {
		send(t0, protocol.Replica, counterOf(ask(i, 100, time.Minute, 0), slot))
	}
	// Twice MaxKeys copies have room; the others are counted in the sketch.
	if f := n.Stats(t0); f.Replicas != 8 || f.CopiesDropped != 2 || f.OverflowKeys != 2 {
		t.Errorf("%+v", f)
	}
	for i := range 10 {
		req := ask(i, 100, time.Minute, 0)
		req.Op = DryRun
		s, hash := n.shard(req.Key)
		if est := s.sketches.Estimate(counter.Ref{Key: req.Key, Hash: hash, Domain: req.Domain, Now: t0, Rule: req.Rule}); s.counters.Owned.Find(hash, req.Key) == nil && est != 7 {
			t.Errorf("key %d: the sketch counts %d of 7", i, est)
		}
	}
}

// TestLateConfirmation requires that a late confirmation does not confirm charges that were made after another member
// had confirmed the same batch.
func TestLateConfirmation(t *testing.T) {
	w := newNetwork(t, 3, Options{}, "a", "b", "c")
	n := w.nodes["a"]
	req := ask(ownedBy(t, w.ring(), "a", 0), 1000, time.Hour, 5)
	w.queue = nil
	take(n, w.now, req)
	first := n.Flush(w.now).Messages[0]
	w.now += 11 * milli
	second := n.Flush(w.now).Messages[0]
	if first.To == second.To {
		t.Fatalf("both went to %s", first.To)
	}
	got := func(o protocol.Outbound) {
		n.Step(w.now, o.To, w.insts[o.To]|1, &protocol.Message{Kind: protocol.ReplicaAck, Seq: o.Msg.Seq})
	}
	got(second)
	if f := n.Stats(w.now); f.UnreplicatedIn != 0 {
		t.Fatalf("%+v", f)
	}
	take(n, w.now, req)
	got(first)
	if f := n.Stats(w.now); f.UnreplicatedIn != 5 {
		t.Errorf("%+v", f)
	}
}

// TestShareWithoutRoom requires that hits admitted from a local share while the table was full count when there is
// room.
func TestShareWithoutRoom(t *testing.T) {
	for _, alg := range algorithms {
		n, send := pairOf(t, Options{MaxKeys: 2, DomainQuota: 2})
		for i := range 4 { // twice as many as it may own
			send(t0, protocol.Replica, counterOf(ask(10+i, 9, time.Second, 0), limit.Slot{Writer: 0x201, At: t0 / second, Charged: 7}))
		}
		req := ask(1, 10, time.Hour, 4)
		req.Rule.Algorithm = alg
		if res := n.Degrade(t0, &req); res.Over {
			t.Fatalf("%v: %+v", alg, res)
		}
		if f := n.Stats(t0); f.ShareUnreported != 4 {
			t.Errorf("%v: %+v", alg, f)
		}
		if res := take(n, t0, req); res.Before != 4 || res.Over {
			t.Errorf("%v: %+v", alg, res)
		}
		if res := take(n, t0, req); res.Before != 8 || !res.Over {
			t.Errorf("%v: %+v", alg, res)
		}
	}
}
