//go:build !race

package handoff

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// model explores two Machines, one key, and three ring changes that move the key from a to b, back, and to b again: the
// first ring and the third have the same version. Each member adopts the rings at any time. A message may be delivered
// never, once or several times, at any later time. Every reachable state is visited.
type model struct {
	rings [2]*ring.Ring // a owns the key on the first, b on the second
	key   uint64
	// deliver changes or drops a message in transit. Broken variants of the protocol replace it.
	deliver func(to *Machine, msg protocol.Message) (protocol.Message, bool)
	changes int
}

// world is one state of the model.
type world struct {
	machines [2]*Machine
	at       [2]int // the ring that each member uses: 0 to changes
	soup     map[string]letter
}

type letter struct {
	from, to int
	msg      protocol.Message
}

var names = []ring.ID{"a", "b"}

const modelNow = int64(1_000_000_000_000)

func newModel(changes int) *model {
	a := ring.Member{ID: "a", BootID: 1, Incarnation: 1, Weight: 1}
	b := ring.Member{ID: "b", BootID: 3, Incarnation: 1, Weight: 1}
	mo := &model{rings: [2]*ring.Ring{ring.New([]ring.Member{a, b}), ring.New([]ring.Member{b})}, changes: changes}
	for mo.rings[0].At(mo.rings[0].Owner(mo.key)).ID != "a" {
		mo.key += 0x9E3779B97F4A7C15
	}
	mo.deliver = func(_ *Machine, msg protocol.Message) (protocol.Message, bool) { return msg, true }
	return mo
}

// start returns both members on the first ring, which is complete.
func (mo *model) start() *world {
	w := &world{soup: map[string]letter{}}
	for i, id := range names {
		w.machines[i] = NewMachine(Options{Self: id, BootID: uint64(1 + 2*i)})
	}
	var queue []letter
	push := func(from int, outs []protocol.Outbound) {
		for _, o := range outs {
			queue = append(queue, letter{from, 1 - from, o.Msg})
		}
	}
	for i := range names {
		push(i, mo.setRing(w, i))
	}
	for range 100 {
		for len(queue) > 0 {
			l := queue[0]
			queue = queue[1:]
			push(l.to, w.machines[l.to].Step(modelNow, names[l.from], uint64(1+2*l.from), &l.msg))
		}
		for i, m := range w.machines {
			for _, t := range m.Transfers() {
				if msg, ok := m.Finish(modelNow, t, 0); ok {
					push(i, []protocol.Outbound{{To: t.To, Msg: msg}})
				}
			}
		}
	}
	return w
}

func (mo *model) setRing(w *world, i int) []protocol.Outbound {
	n := w.at[i] % 2
	v := &membership.View{Self: names[i], BootID: uint64(1 + 2*i), Ring: mo.rings[n], NRef: 2, Joined: true}
	for j, id := range names {
		v.Members = append(v.Members, membership.Member{ID: id, BootID: uint64(1 + 2*j), State: membership.Active, Weight: 1})
	}
	if n == 1 {
		v.Members[0].State = membership.Leaving
	}
	return w.machines[i].SetMembership(modelNow, v)
}

func (w *world) clone() *world {
	c := &world{at: w.at, soup: maps.Clone(w.soup)}
	for i, m := range w.machines {
		c.machines[i] = m.clone()
	}
	return c
}

// send adds messages to the soup. Indistinguishable messages are one.
func (w *world) send(from int, outs []protocol.Outbound) {
	for _, o := range outs {
		if o.Msg.Kind == protocol.Pong {
			continue // time does not advance, so no confirmation expires
		}
		w.soup[fmt.Sprint(from, o.Msg)] = letter{from, 1 - from, o.Msg}
	}
}

func fp(r *ring.Ring) uint64 {
	if r == nil {
		return 0
	}
	return r.Fingerprint() % 1000
}

// String describes everything that affects which events can follow.
func (w *world) String() string {
	var b strings.Builder
	for i, m := range w.machines {
		v := m.view
		fmt.Fprint(&b, i, w.at[i], m.seq, m.neverOwned, m.unconfirmed, fp(v.base), v.baseSelf)
		for _, s := range v.steps {
			fmt.Fprint(&b, fp(s.ring), s.released, s.allOwned, len(s.proofs))
			for _, p := range s.proofs {
				fmt.Fprint(&b, fp(p.ring), p.from)
			}
		}
		for id, p := range m.peers {
			in, out := &p.counters, &p.sending
			fmt.Fprint(&b, id, p.State, p.reported, p.ringVersion%1000, p.seq, p.neverOwned, p.needsAck, p.confirmedAt, p.added,
				p.acked, p.prefetched, in.startedAt, in.next, fp(in.proof.ring),
				out.stage, out.seq, out.startedAt, out.ackReceived, fp(out.deliveredFor))
		}
		for _, r := range m.history {
			fmt.Fprint(&b, " ", fp(r))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(w.soup)) {
		b.WriteString(k)
	}
	return b.String()
}

// next returns the worlds one event later.
func (mo *model) next(w *world) (out []*world) {
	for i := range names {
		if w.at[i] < mo.changes {
			c := w.clone()
			c.at[i]++
			c.send(i, mo.setRing(c, i))
			out = append(out, c)
		}
		for _, t := range w.machines[i].Transfers() {
			c := w.clone()
			// Replicas do not move ownership, so their Acks may be lost.
			if msg, ok := c.machines[i].Finish(modelNow, t, 0); ok && !t.SuccessorCopy {
				c.send(i, []protocol.Outbound{{To: t.To, Msg: msg}})
			}
			out = append(out, c)
		}
	}
	for _, l := range w.soup {
		c := w.clone()
		if msg, ok := mo.deliver(c.machines[l.to], l.msg); ok {
			c.send(l.to, c.machines[l.to].Step(modelNow, names[l.from], uint64(1+2*l.from), &msg))
			out = append(out, c)
		}
	}
	return out
}

// owns reports whether member i owns the key.
func (mo *model) owns(w *world, i int) bool {
	return w.machines[i].View().Ownership(mo.key, 0).State == OwnedHere
}

// explore visits all worlds. It returns their number, and whether both members own the key in one of them.
func (mo *model) explore(most int) (visited int, both bool) {
	first := mo.start()
	seen := map[string]bool{first.String(): true}
	for queue := []*world{first}; len(queue) > 0 && visited < most; visited++ {
		w := queue[0]
		queue = queue[1:]
		if mo.owns(w, 0) && mo.owns(w, 1) {
			return visited, true
		}
		for _, c := range mo.next(w) {
			if s := c.String(); !seen[s] {
				seen[s] = true
				queue = append(queue, c)
			}
		}
	}
	return visited, false
}

func TestEveryOrderOfEvents(t *testing.T) {
	const most, changes = 400_000, 3
	n, both := newModel(changes).explore(most)
	if both || n == most {
		t.Fatalf("%d states, both own the key: %v", n, both)
	}
	t.Logf("%d states", n)
	broken := map[string]func(m *Machine, msg protocol.Message) (protocol.Message, bool){
		"an Ack counts for any ring": func(m *Machine, msg protocol.Message) (protocol.Message, bool) {
			if msg.Kind == protocol.Ack {
				msg.Ring, msg.Seq = m.view.ring.Fingerprint(), m.seq
			}
			return msg, true
		},
		"an Ack counts for any adoption": func(m *Machine, msg protocol.Message) (protocol.Message, bool) {
			if msg.Kind == protocol.Ack {
				msg.Seq = m.seq
			}
			return msg, true
		},
		"an Ack is not required": func(m *Machine, msg protocol.Message) (protocol.Message, bool) {
			if msg.Kind == protocol.Ping {
				return protocol.Message{Kind: protocol.Ack, Ring: m.view.ring.Fingerprint(), Seq: m.seq, SinceLost: 1 << 60}, true
			}
			return msg, true
		},
	}
	for name, deliver := range broken {
		t.Run(name, func(t *testing.T) {
			mo := newModel(changes)
			mo.deliver = deliver
			if n, both := mo.explore(most); !both {
				t.Fatalf("not found in %d states", n)
			}
		})
	}
}
