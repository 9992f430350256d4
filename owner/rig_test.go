package owner

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

const second = int64(time.Second)

var algorithms = []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog, limit.TokenBucket, limit.LeakyBucket, limit.InFlight}

// t0 is the beginning of an hour.
var t0 = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixNano()

func ringOf(ids ...ring.ID) *ring.Ring {
	var ms []ring.Member
	for _, id := range ids {
		ms = append(ms, ring.Member{ID: id, BootID: 1, Incarnation: 1, Weight: 1})
	}
	return ring.New(ms)
}

// standing returns the view of member self, joined, among members without handoff, so that only the ring decides who
// owns a key.
func standing(self ring.ID, ids ...ring.ID) *membership.View {
	v := &membership.View{Self: self, Ring: ringOf(ids...), NRef: len(ids), Joined: true}
	for _, id := range ids {
		v.Members = append(v.Members,
			membership.Member{ID: id, BootID: 1, State: membership.Active, Weight: 1, NoHandoff: true})
	}
	return v
}

// member returns a Node that has been ready for a while in a ring of ids, the others without handoff.
func member(o Options, now int64, ids ...ring.ID) *Node {
	n := New(o)
	move(n, now-int64(time.Hour), ids...)
	n.Tick(now)
	return n
}

// move gives n a ring of ids, and waits until it owns the keys of removed members.
func move(n *Node, now int64, ids ...ring.ID) {
	n.SetMembership(now, standing(n.options.Self, ids...))
	n.Tick(now + int64(n.options.Detection.TakeoverDelay()))
	n.Tick(now)
}

// meet adds a live member that is not on the ring to n's view.
func meet(n *Node, id ring.ID, bootID uint64) {
	v := *n.serial.machine.Membership()
	v.Members = append(slices.Clone(v.Members),
		membership.Member{ID: id, BootID: bootID, State: membership.Active, Weight: 1})
	n.SetMembership(n.ticked.Load(), &v)
}

func alone(o Options) *Node {
	o.Self = "a"
	return member(o, t0, "a")
}

func key(i int) Key {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(i))
	h := fnv.New128a()
	h.Write(b[:])
	s := h.Sum(nil)
	return Key{counter.Mix(binary.LittleEndian.Uint64(s)), counter.Mix(binary.LittleEndian.Uint64(s[8:]))}
}

// ask returns a request for hits on key i.
func ask(i int, lim uint32, window time.Duration, hits uint64) Request {
	k := key(i)
	return Request{Key: k, RingPos: counter.Mix(k[1]), Domain: 7, Hits: hits, Rule: limit.Rule{Window: window, Limit: lim}}
}

// withOp returns req with that operation.
func withOp(req Request, op Op) Request {
	req.Op = op
	return req
}

// withDegraded returns req with that degraded policy.
func withDegraded(req Request, d policy.Degraded) Request {
	req.Degraded = d
	return req
}

// ownedBy returns the number of a key, from on, whose owner in r is id.
func ownedBy(t testing.TB, r *ring.Ring, id ring.ID, from int) int {
	t.Helper()
	for i := from; i < from+10_000; i++ {
		req := ask(i, 1, time.Second, 1)
		if r.At(r.Owner(req.RingPos)).ID == id {
			return i
		}
	}
	t.Fatalf("%s owns nothing", id)
	return 0
}

func take(n *Node, now int64, req Request) Result { return n.Decide(now, &req) }

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 99)) }

// twin counts the admitted hits by key and window.
type twin map[[3]uint64]uint64

func (w twin) admit(now int64, req *Request) uint64 {
	at := [3]uint64{req.Key[0], req.Key[1], uint64(req.Rule.Index(now))}
	w[at] += req.Hits
	return w[at]
}
