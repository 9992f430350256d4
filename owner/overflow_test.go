package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
)

// pieces returns the sketch pieces of a member that has counted hits of q at now.
func pieces(now int64, req Request, hits uint64) (out []*protocol.SketchPart) {
	k := &counter.New(counter.Config{}).Sketches
	k.Add(counter.Ref{Key: req.Key, Domain: req.Domain, Table: counter.TableOwned, Now: now, Rule: req.Rule}, hits)
	for i := range counter.Shards {
		out = append(out, k.Export(i, now)...)
	}
	return out
}

// TestCopyCountsWhatSketchesCounted gives a member a replica of a key that a later owner has counted in its sketch. It
// requires that the member counts both when it begins to decide the key, and no sketch afterwards.
func TestCopyCountsWhatSketchesCounted(t *testing.T) {
	const charged, share = 0x201, 0x200
	for _, alg := range algorithms {
		for _, c := range []struct {
			name   string
			writer uint64
			copied uint64 // hits in the copy
			at     int64  // when the owner in between counted, by its clock
			want   uint64
		}{
			{"as much as the copy or more", charged, 3, t0, 9},
			{"more of it in the copy", charged, 20, t0, 20},
			{"with a reported share", share, 3, t0, 12},
			{"by a clock that is ahead", charged, 3, t0 + 60*second, 9},
		} {
			req := ask(1, 100, time.Minute, 1)
			req.Rule.Algorithm = alg
			n, send := pairOf(t, Options{})
			var in limit.State
			req.Rule.Take(&in, t0, c.writer, c.copied)
			m := counterOf(req)
			m.State = in
			send(t0, protocol.Replica, m)
			for _, o := range pieces(c.at, req, 9) {
				if !n.counters.Sketches.Import(o, t0) {
					t.Fatal("a piece was refused")
				}
			}
			now, want := t0, c.want
			if c.at > now && alg == limit.FixedWindow {
				take(n, now, req) // the count of the next window is kept from the first decision on
				now = c.at
			}
			res := take(n, now, req)
			if alg.Bucket() && c.writer == share {
				want-- // levels are rounded up, both
			}
			if res.Before < want || res.Before > want+1 {
				t.Errorf("%v, %s: %d hits before, want %d", alg, c.name, res.Before, want)
			}
			for _, o := range pieces(now, req, 90) {
				n.counters.Sketches.Import(o, now)
			}
			if b := take(n, now, req); b.Before != res.After {
				t.Errorf("%v, %s: a sketch that comes later makes %d of %d", alg, c.name, b.Before, res.After)
			}
		}
	}
}

// TestCopyWithoutRoomIsCountedBySketch requires that a sketch counts a key, including its replica, if there is no room
// to add the sketch's count to the replica.
func TestCopyWithoutRoomIsCountedBySketch(t *testing.T) {
	req := ask(1, 100, time.Minute, 1)
	req.Rule.Algorithm = limit.SlidingLog
	n, send := pairOf(t, Options{DomainQuota: 1})
	send(t0, protocol.Replica, counterOf(req, limit.Slot{Writer: 0x200, At: t0, Charged: 30}))
	take(n, t0, ask(2, 100, time.Minute, 1)) // takes the only place of the domain
	i, dropped := 10, uint64(0)
	for _, size := range []int64{64, 8, 1} { // logs take all records that the domain may have
		for dropped++; n.Stats(t0).CopiesDropped < dropped; i++ {
			other := ask(i, 64, time.Minute, 1)
			other.Rule.Algorithm = limit.SlidingLog
			var slots []limit.Slot
			for at := range size {
				slots = append(slots, limit.Slot{Writer: 0x201, At: t0 - at*second/2, Charged: 1})
			}
			send(t0, protocol.Replica, counterOf(other, slots...))
		}
	}
	for _, o := range pieces(t0, req, 40) {
		n.counters.Sketches.Import(o, t0)
	}

	if res := take(n, t0, req); res.Before != 70 || res.Authority != Overflow {
		t.Errorf("%+v", res)
	}
}

// TestOwnershipGoesWithTheSketchCount requires that a key that is released alone takes along what this member's sketch
// has counted, also in a window that has ended by this member's clock only, and with an old replica.
func TestOwnershipGoesWithTheSketchCount(t *testing.T) {
	for _, stale := range []bool{false, true} {
		w := newNetwork(t, 2, Options{}, "a", "b")
		n := w.nodes["a"]
		req := ask(ownedBy(t, w.ring(), "a", 0), 100, time.Minute, 1)
		end := req.Rule.End(req.Rule.Index(w.now))
		if stale {
			n.Step(w.now, "b", w.insts["b"], &protocol.Message{Kind: protocol.Replica, Counters: []protocol.CounterRecord{counterOf(req, limit.Slot{Writer: w.insts["b"], At: req.Rule.Index(w.now), Charged: 3})}})
		}
		for _, o := range pieces(w.now, req, 9) {
			n.counters.Sketches.Import(o, w.now)
		}
		s, hash := n.shard(req.Key)
		for _, now := range []int64{w.now, end + 100*milli} {
			c := counterOf(req)
			x := shardOp{Request: &req, now: now, hash: hash, table: counter.TableOwned, rule: req.Rule}
			if e := s.counters.Owned.Find(hash, req.Key); e != nil {
				s.counters.Export(s.completeEntry(&x, e), &c)
			} else {
				s.exportSketch(hash, now, &c)
			}
			if used := req.Rule.Used(&c.State, end-1); used != 9 {
				t.Errorf("stale copy %v, %v after the window's end: %d of 9 hits go along", stale, time.Duration(now-end), used)
			}
		}
	}
}
