package peer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
)

// frameMsg + a protocol.MessageKind is the type of a frame with a protocol.Message, since version 2.
const frameMsg = 32

const (
	maxCounters = 512  // in one message
	maxSlots    = 4096 // in one counter
	msgHead     = 57   // bytes of the head with an empty Member
	minSlotSize = 4    // bytes of a slot, at least
)

var (
	errUnsorted = errors.New("slots not in order")
	errCounters = errors.New("too many counters")
	errSlots    = errors.New("too many slots")
	errWriter   = errors.New("unknown writer")
)

// msgKind returns the kind of message in a frame of type typ, or false if the frame has none.
func msgKind(typ byte) (k protocol.MessageKind, ok bool) {
	k = protocol.MessageKind(typ - frameMsg)
	return k, typ >= frameMsg && k >= protocol.Ping && k <= protocol.OwnershipReply
}

// writerTable lists the writers in a message's slots in ascending order. Slots refer to a writer by its index in the
// table.
type writerTable []uint64

// of returns the table for counters, in t's memory.
func (t writerTable) of(counters []protocol.CounterRecord) writerTable {
	t = t[:0]
	for i := range counters {
		t = t.with(counters[i].State.Slots)
	}
	return t
}

// with adds the writers of slots.
func (t writerTable) with(slots []limit.Slot) writerTable {
	for _, s := range slots {
		if at, known := slices.BinarySearch(t, s.Writer); !known {
			t = slices.Insert(t, at, s.Writer)
		}
	}
	return t
}

func (t writerTable) append(w wire.Writer) wire.Writer {
	w = w.U16(uint16(len(t)))
	for _, id := range t {
		w = w.U64(id)
	}
	return w
}

// appendMsg appends m as one frame. On an error it returns b unchanged. writers is scratch memory.
func appendMsg(b []byte, m *protocol.Message, writers *writerTable) ([]byte, error) {
	if len(m.Counters) > maxCounters {
		return b, errCounters
	}
	*writers = writers.of(m.Counters)
	w, at := beginFrame(b, frameMsg+byte(m.Kind))
	w = appendMsgHead(w, m)
	w = writers.append(w)
	for i := range m.Counters {
		if len(m.Counters[i].State.Slots) > maxSlots {
			return b, errSlots
		}
		w = appendCounter(w, &m.Counters[i], *writers)
	}
	switch m.Kind {
	case protocol.Ack, protocol.OwnershipReply:
		w = appendLosses(w, m.Losses, at+4+maxFrame)
	case protocol.Chunk:
		w = appendOverflow(w, m.Sketch)
	}
	if n := len(w) - at - 4; n > maxFrame {
		return b, fmt.Errorf("%w: %d bytes", errTooLong, n)
	}
	w.EndLen32(at)
	return w, nil
}

func appendMsgHead(w wire.Writer, m *protocol.Message) wire.Writer {
	w = w.U16(uint16(msgHead + min(len(m.Member), maxID)))
	w = w.U8(byte(m.Flags)).U8(byte(m.Status)).U16(uint16(len(m.Counters))).U32(m.ChunkIndex)
	w = w.U64(m.Ring).U64(m.Seq).U64(m.BaseRing).I64(m.Sent).I64(m.Now).I64(m.SinceLost)
	return appendID(w, m.Member)
}

func appendCounter(w wire.Writer, c *protocol.CounterRecord, writers writerTable) wire.Writer {
	at := len(w)
	w = w.U32(0).U64(c.Key[0]).U64(c.Key[1]).U64(c.RingPos).U64(c.Domain)
	w = w.I64(int64(c.Rule.Window)).U32(c.Rule.Limit).U32(c.Rule.Burst).I64(c.ExpiresAt).I64(c.State.TAT)
	w = w.U16(uint16(len(c.State.Slots))).U8(byte(c.Rule.Algorithm)).U8(0)
	w = appendSlots(w, c.State.Slots, writers)
	w.EndLen32(at)
	return w
}

func appendSlots(w wire.Writer, slots []limit.Slot, writers writerTable) wire.Writer {
	last := int64(0)
	for _, s := range slots {
		i, _ := slices.BinarySearch(writers, s.Writer)
		w = w.Uvarint(uint64(i)).Varint(s.At - last).Uvarint(s.Charged).Uvarint(s.Refunded)
		last = s.At
	}
	return w
}

// msgReader parses messages into its own memory, which the next message overwrites.
type msgReader struct {
	slotReader
	msg      protocol.Message
	counters []protocol.CounterRecord
}

// slotReader parses the slots of counters and the table of their writers.
type slotReader struct {
	slots   []limit.Slot
	writers writerTable
}

// parse reads the payload of a frame that carries a message of kind k. The result is valid until the next call.
func (r *msgReader) parse(k protocol.MessageKind, b []byte) (*protocol.Message, error) {
	r.counters, r.slots, r.writers = r.counters[:0], r.slots[:0], r.writers[:0]
	in := wire.NewReader(b)
	count, err := r.parseHead(k, in.Record(int(in.U16())))
	if err != nil {
		return nil, err
	}
	r.parseWriters(&in)
	if err := eachRecord(&in, count, r.parseCounter); err != nil {
		return nil, err
	}
	switch k {
	case protocol.Ack, protocol.OwnershipReply:
		r.msg.Losses, err = parseLosses(in)
	case protocol.Chunk:
		r.msg.Sketch, err = parseOverflow(in)
	}
	if err == nil {
		err = in.Err()
	}
	if err != nil {
		return nil, err
	}
	r.msg.Counters = r.counters
	return &r.msg, nil
}

// parseHead returns the number of counters.
func (r *msgReader) parseHead(k protocol.MessageKind, h wire.Reader) (count int, err error) {
	m := &r.msg
	*m = protocol.Message{Kind: k, Flags: protocol.MessageFlags(h.U8()), Status: protocol.ReplyStatus(h.U8())}
	count = int(h.U16())
	m.ChunkIndex = h.U32()
	m.Ring, m.Seq, m.BaseRing = h.U64(), h.U64(), h.U64()
	m.Sent, m.Now, m.SinceLost = h.I64(), h.I64(), h.I64()
	m.Member = readID(&h)
	switch err := h.Err(); {
	case err != nil:
		return 0, err
	case count > maxCounters:
		return 0, errCounters
	}
	return count, nil
}

func (r *slotReader) parseWriters(in *wire.Reader) {
	n := int(in.U16())
	table := in.Record(8 * n)
	for table.Len() > 0 {
		r.writers = append(r.writers, table.U64())
	}
}

func (r *msgReader) parseCounter(in wire.Reader) error {
	var c protocol.CounterRecord
	c.Key[0], c.Key[1] = in.U64(), in.U64()
	c.RingPos, c.Domain = in.U64(), in.U64()
	c.Rule.Window = time.Duration(in.I64())
	c.Rule.Limit, c.Rule.Burst = in.U32(), in.U32()
	c.ExpiresAt, c.State.TAT = in.I64(), in.I64()
	slots := int(in.U16())
	c.Rule.Algorithm = limit.Algorithm(in.U8())
	in.U8() // reserved
	if err := in.Err(); err != nil {
		return err
	}
	if slots > 0 { // a counter without slots has no more than its key
		if err := c.Rule.Validate(); err != nil {
			return err
		}
	}
	var err error
	if c.State.Slots, err = r.parseSlots(&in, slots); err != nil {
		return err
	}
	r.counters = append(r.counters, c)
	return nil
}

// parseSlots reads n slots. It returns nil if n is 0.
func (r *slotReader) parseSlots(in *wire.Reader, n int) ([]limit.Slot, error) {
	switch {
	case n == 0:
		return nil, in.Err()
	case n > maxSlots:
		return nil, errSlots
	case in.Len() < n*minSlotSize:
		return nil, wire.ErrMalformed
	}
	from, at := len(r.slots), int64(0)
	for i := range n {
		place := in.Uvarint()
		at += in.Varint()
		s := limit.Slot{At: at, Charged: in.Uvarint(), Refunded: in.Uvarint()}
		if err := in.Err(); err != nil {
			return nil, err
		}
		if place >= uint64(len(r.writers)) {
			return nil, errWriter
		}
		s.Writer = r.writers[place]
		if i > 0 && !before(r.slots[len(r.slots)-1], s) {
			return nil, errUnsorted
		}
		r.slots = append(r.slots, s)
	}
	return r.slots[from:len(r.slots):len(r.slots)], nil
}

// before reports whether slot a sorts before b in a State.
func before(a, b limit.Slot) bool { return a.At < b.At || a.At == b.At && a.Writer < b.Writer }
