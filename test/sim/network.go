package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/protocol"
)

// delay returns the random delay of a message.
func (w *world) delay() time.Duration {
	d := 50*time.Microsecond + w.randomBelow(w.o.Delay)
	if !w.healed && w.chance(w.o.Reorder) {
		d += w.randomBelow(time.Second)
	}
	return d
}

// connected reports whether messages from one slot reach another.
func (w *world) connected(from, to int) bool { return !w.blocked[from][to] }

// deliver runs fn with the boot that runs in slot to now, after d, unless the link is blocked.
func (w *world) deliver(m *member, to int, d time.Duration, fn func(*member)) {
	there := w.slots[to].now
	if there == nil || !w.connected(m.slot, to) {
		return
	}
	w.after(d, there, func() {
		if w.connected(m.slot, to) {
			fn(there)
		}
	})
}

// send sends a message of the core to another member, with loss, repetition and reordering.
func (w *world) send(m *member, o *protocol.Outbound) {
	to := slotOf(o.To)
	w.stats.count(kindName(&o.Msg))
	w.oracle.sent(m, &o.Msg)
	if to < 0 || to >= len(w.slots) {
		w.fail("message to unknown member %q", o.To)
		return
	}
	if w.verbose {
		w.trace("%s -> %s  %s", m.name(), o.To, msgText(&o.Msg))
	}
	if w.sabotageSend(m, w.slots[to].now, &o.Msg) {
		return
	}
	if !w.healed && w.chance(w.o.Loss) {
		w.stats.count("fault: lost message")
		return
	}
	times := 1
	if !w.healed && w.chance(w.o.Double) {
		w.stats.count("fault: repeated message")
		times = 2
		w.repeatMessage(m, to, &o.Msg)
	}
	for range times {
		msg := copyOf(&o.Msg)
		w.deliver(m, to, w.delay(), func(there *member) { there.receive(m, msg) })
	}
}

func (w *world) repeatMessage(m *member, to int, msg *protocol.Message) {
	late := copyOf(msg)
	w.repeatLater(m, to, msg.Kind == protocol.Ack || msg.Kind == protocol.OwnershipReply,
		func(there *member) { there.receive(m, late) })
}

// repeatLater delivers a message a second time, perhaps much later, or when the receiver has adopted another ring and
// could misinterpret the message.
func (w *world) repeatLater(m *member, to int, haunts bool, again func(*member)) {
	if w.rnd.IntN(2) == 0 {
		w.deliver(m, to, w.randomBelow(8*time.Second), again)
	}
	if haunts {
		w.held[to] = append(w.held[to], heldMessage{m, w.slots[to].now, again})
	}
}

// heldMessage is a message that the network has kept.
type heldMessage struct {
	from, to *member
	again    func(*member)
}

// replayHeld delivers old messages to a member that has just adopted a ring.
func (w *world) replayHeld(m *member) {
	for _, h := range w.held[m.slot] {
		if h.to == m && !w.healed && w.rnd.IntN(2) == 0 {
			w.deliver(h.from, m.slot, w.randomBelow(20*time.Millisecond), h.again)
		}
	}
	w.held[m.slot] = w.held[m.slot][:0]
}

// slotOf returns the slot of a member, or -1 if there is none of that name.
func slotOf[T ~string](id T) int {
	if len(id) != 2 {
		return -1
	}
	return strings.IndexByte(letters, id[1])
}

// copyOf returns a copy of a message that shares no memory with its sender.
func copyOf(m *protocol.Message) *protocol.Message {
	c := *m
	c.Counters = slices.Clone(m.Counters)
	for i := range c.Counters {
		c.Counters[i].State.Slots = slices.Clone(c.Counters[i].State.Slots)
	}
	return &c
}

var kindNames = [...]string{"?", "Ping", "Pong", "Chunk", "Ack", "Replica", "Got", "SealReq", "Sealed"}

var statusNames = [...]string{"Given", "Kept", "Gone", "Unknown", "Refused"}

func kindName(m *protocol.Message) string {
	name := "message: " + kindNames[min(int(m.Kind), len(kindNames)-1)]
	switch {
	case m.Kind == protocol.OwnershipReply:
		return name + " " + statusNames[min(int(m.Status), len(statusNames)-1)]
	case m.Kind == protocol.Pong && m.Flags&protocol.Confirmed != 0:
		return name + " Confirmed"
	case m.Kind == protocol.Ping && m.Flags&protocol.NeedsAck != 0:
		return name + " Owed"
	case m.Flags&protocol.Prefetch != 0:
		return name + " Shadow"
	case m.Flags&protocol.SuccessorCopy != 0:
		return name + " Extra"
	}
	return name
}

func msgText(m *protocol.Message) string {
	s := fmt.Sprintf("%s ring %04x seq %d", kindName(m)[9:], m.Ring>>48, m.Seq)
	if m.Flags != 0 {
		s += fmt.Sprintf(" flags %02x", m.Flags)
	}
	if m.Kind == protocol.Ack {
		s += fmt.Sprintf(" base %04x parts %d quiet %v", m.BaseRing>>48, m.ChunkIndex, time.Duration(m.SinceLost))
	}
	if m.Member != "" {
		s += " member " + string(m.Member)
	}
	for i := range m.Counters {
		c := &m.Counters[i]
		s += fmt.Sprintf(" {%04x", c.Key[0]>>48)
		if c.State.TAT != 0 {
			s += fmt.Sprintf(" tat %d", c.State.TAT)
		}
		for _, x := range c.State.Slots {
			s += fmt.Sprintf(" %x@%d:%d-%d", x.Writer, x.At, x.Charged, x.Refunded)
		}
		for j := range c.Claims {
			x := &c.Claims[j]
			s += fmt.Sprintf(" hold %d state %d amount %d", x.ID[1], x.State(), x.Amount)
		}
		s += "}"
	}
	return s
}
