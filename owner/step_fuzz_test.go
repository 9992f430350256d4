package owner

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// FuzzStep sends one member arbitrary messages between requests. It requires that nothing panics, that memory stays
// bounded, and that other members never change its own slots.
func FuzzStep(f *testing.F) {
	f.Add([]byte("the quick brown fox jumps over the lazy dog, once and again, until the member has had enough of it"))
	f.Add([]byte{5, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21})
	f.Add([]byte{8, 1, 1, 0, 255, 255, 255, 255, 255, 255, 255, 127, 3, 3, 3, 3, 3, 3, 3, 3, 7, 2, 1, 0, 4, 4, 4, 4})
	ids := []ring.ID{"a", "b", "c"}
	var ms []ring.Member
	for i, id := range ids {
		ms = append(ms, ring.Member{ID: id, BootID: uint64(i)*0x100 + 0x101, Incarnation: 1, Weight: 1})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n := New(Options{Self: "a", BootID: 0x101, MaxKeys: 8, DomainQuota: 8, MaxWaiting: 16})
		v := &membership.View{Self: "a", BootID: 0x101, Ring: ring.New(ms), NRef: 3, Joined: true}
		for _, m := range ms {
			v.Members = append(v.Members, membership.Member{ID: m.ID, BootID: m.BootID, State: membership.Active, Weight: 1})
		}
		now := t0
		r := v.Ring
		n.SetMembership(now, v)
		for p := range v.Peers() { // both confirm it, and have nothing for it
			n.Step(now, p.ID, p.BootID, &protocol.Message{Kind: protocol.Ping, Ring: r.Fingerprint(), Seq: 1, Flags: protocol.NeverOwned, Sent: now, Now: now})
			n.Step(now, p.ID, p.BootID, &protocol.Message{Kind: protocol.Pong, Ring: r.Fingerprint(), Seq: 1, Flags: protocol.Confirmed, Sent: now, Now: now})
			n.Step(now, p.ID, p.BootID, &protocol.Message{Kind: protocol.Ack, Ring: r.Fingerprint(), Seq: 1, SinceLost: 1e18})
		}
		g := &generator{data: data}
		for len(g.data) > 0 {
			before := ownSlots(n)
			p := v.Members[1+g.byte()%2]
			msg := g.message(now, n, r)
			if op := g.byte(); op%4 == 0 {
				req := g.request()
				if res := n.Decide(now, &req); res.Kind == Pending && op%8 == 0 {
					n.Cancel(req.Key, nil)
				}
				continue
			} else if op%32 == 1 {
				now += int64(g.byte()) * int64(time.Millisecond)
				n.Tick(now)
				continue
			} else if op%32 == 2 {
				n.Pull(now, p.ID, nil)
				continue
			} else if op%32 == 3 {
				n.Flush(now)
				continue
			}
			fx := n.Step(now, p.ID, p.BootID, &msg)
			if len(fx.Done) == 0 { // otherwise pending requests were charged
				for k, was := range before {
					if is, ok := ownSlots(n)[k]; ok && is != was {
						t.Fatalf("%+v\nmade own slot %v %d of %d", msg, k, is, was)
					}
				}
			}
			if f := n.Stats(now); f.Keys > 8 || f.Replicas > 8 || f.Pending > 16 {
				t.Fatalf("%+v", f)
			}
		}
	})
}

type ownSlot struct {
	key    Key
	writer uint64
	at     int64
}

// ownSlots returns the charges in n's own slots, except those of buckets, whose slots' times change.
func ownSlots(n *Node) map[ownSlot]uint64 {
	out := map[ownSlot]uint64{}
	for i := range n.shards {
		s := &n.shards[i]
		s.counters.Owned.Each(0, math.MaxInt32, func(e *counter.Owned) {
			if s.counters.Rule(e).Algorithm.Bucket() {
				return
			}
			var c protocol.CounterRecord
			s.counters.Export(e, &c)
			for _, f := range c.State.Slots {
				if f.Writer&^1 == s.bootID&^1 {
					out[ownSlot{e.Key(), f.Writer, f.At}] = f.Charged
				}
			}
		})
	}
	return out
}

// generator makes values of bytes.
type generator struct{ data []byte }

func (g *generator) byte() byte {
	if len(g.data) == 0 {
		return 0
	}
	b := g.data[0]
	g.data = g.data[1:]
	return b
}

func (g *generator) number() uint64 {
	switch b := g.byte(); {
	case b < 200:
		return uint64(b % 8)
	default:
		var x [8]byte
		for i := range x {
			x[i] = g.byte()
		}
		return binary.LittleEndian.Uint64(x[:])
	}
}

func (g *generator) request() Request {
	req := ask(int(g.byte()%12), uint32(g.byte()%16), time.Minute, uint64(g.byte()%5))
	req.Op, req.Rule.Algorithm, req.Strict = Op(g.byte()%4), limit.Algorithm(g.byte()%5), g.byte()%3 == 0
	return req
}

func (g *generator) message(now int64, n *Node, r *ring.Ring) protocol.Message {
	m := protocol.Message{
		Kind: protocol.MessageKind(g.byte() % 10), Flags: protocol.MessageFlags(g.byte()), Status: protocol.ReplyStatus(g.byte() % 6),
		Ring: r.Fingerprint(), Seq: g.number(), BaseRing: r.Fingerprint(), ChunkIndex: uint32(g.number()), Sent: now, Now: int64(g.number()), SinceLost: int64(g.number()),
		Member: []ring.ID{"", "a", "b", "x"}[g.byte()%4],
	}
	if g.byte()%8 == 0 {
		m.Ring, m.Sent = g.number(), int64(g.number())
	}
	for range g.byte() % 4 {
		req := g.request()
		c := protocol.CounterRecord{Key: req.Key, RingPos: req.RingPos, Domain: g.number(), Rule: req.Rule}
		if g.byte()%16 == 0 {
			c.Rule.Algorithm, c.Rule.Window = limit.Algorithm(g.byte()), time.Duration(g.number())
		}
		for range g.byte() % 5 {
			at := now
			switch {
			case req.Rule.Algorithm <= limit.SlidingWindow:
				at = req.Rule.Index(now) + int64(g.byte()%5) - 2
			case g.byte()%4 == 0:
				at = int64(g.number())
			}
			c.State.Slots = append(c.State.Slots, limit.Slot{Writer: []uint64{1, 0x101, 0x100, 0x201, 0x301, g.number()}[g.byte()%6], At: at, Charged: g.number(), Refunded: g.number()})
		}
		c.State.TAT = now + int64(g.number())
		m.Counters = append(m.Counters, c)
	}
	return m
}
