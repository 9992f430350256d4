package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// frameMsg + a handoff.MessageKind is the type of the frame that carries such a message, from version 2 on.
const frameMsg = 32

const (
	maxCounters = 512  // of one message
	maxSlots    = 4096 // of one counter
	msgHead     = 57   // with an empty Member
	counterSize = 68   // without slots
	minSlotSize = 4    // bytes of a slot
)

var (
	errUnsorted = errors.New("slots not in order")
	errCounters = errors.New("too many counters")
	errSlots    = errors.New("too many slots")
)

// msgKind is the kind of message that a frame carries.
func msgKind(typ byte) (k handoff.MessageKind, ok bool) {
	k = handoff.MessageKind(typ - frameMsg)
	return k, typ >= frameMsg && k >= handoff.Ping && k <= handoff.OwnershipReply
}

// writerTable lists the writers of a message in ascending order; slots name them by their place.
type writerTable []uint64

func (t writerTable) of(counters []handoff.CounterRecord) writerTable {
	t = t[:0]
	for i := range counters {
		t = t.with(counters[i].State.Slots)
	}
	return t
}

func (t writerTable) with(slots []limit.Slot) writerTable {
	for _, s := range slots {
		if at, known := slices.BinarySearch(t, s.Writer); !known {
			t = slices.Insert(t, at, s.Writer)
		}
	}
	return t
}

func (t writerTable) append(b []byte) []byte {
	b = le.AppendUint16(b, uint16(len(t)))
	for _, w := range t {
		b = le.AppendUint64(b, w)
	}
	return b
}

// appendMsg appends m as one frame. On an error b is returned as it was.
func appendMsg(b []byte, m *handoff.Message, writers *writerTable) ([]byte, error) {
	if len(m.Counters) > maxCounters {
		return b, errCounters
	}
	*writers = writers.of(m.Counters)
	out, at := beginFrame(b, frameMsg+byte(m.Kind))
	out = appendMsgHead(out, m)
	out = writers.append(out)
	for i := range m.Counters {
		if len(m.Counters[i].State.Slots) > maxSlots {
			return b, errSlots
		}
		out = appendCounter(out, &m.Counters[i], *writers)
	}
	switch m.Kind {
	case handoff.Ack, handoff.OwnershipReply:
		out = appendLosses(out, m.Losses, at+4+maxFrame)
	case handoff.Chunk:
		out = appendOverflow(out, m.Sketch)
	}
	if n := len(out) - at - 4; n > maxFrame {
		return b, fmt.Errorf("%w: %d bytes", errTooLong, n)
	}
	endFrame(out, at)
	return out, nil
}

func appendMsgHead(b []byte, m *handoff.Message) []byte {
	id := m.Member[:min(len(m.Member), maxID)]
	b = le.AppendUint16(b, uint16(msgHead+len(id)))
	b = append(b, byte(m.Flags), byte(m.Status))
	b = le.AppendUint16(b, uint16(len(m.Counters)))
	b = le.AppendUint32(b, m.ChunkIndex)
	b = le.AppendUint64(b, m.Ring)
	b = le.AppendUint64(b, m.Seq)
	b = le.AppendUint64(b, m.BaseRing)
	b = le.AppendUint64(b, uint64(m.Sent))
	b = le.AppendUint64(b, uint64(m.Now))
	b = le.AppendUint64(b, uint64(m.SinceLost))
	return append(append(b, byte(len(id))), id...)
}

func appendCounter(b []byte, c *handoff.CounterRecord, writers writerTable) []byte {
	at := len(b)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, c.Key[0])
	b = le.AppendUint64(b, c.Key[1])
	b = le.AppendUint64(b, c.RingPos)
	b = le.AppendUint64(b, c.Domain)
	b = le.AppendUint64(b, uint64(c.Rule.Window))
	b = le.AppendUint32(b, c.Rule.Limit)
	b = le.AppendUint32(b, c.Rule.Burst)
	b = le.AppendUint64(b, uint64(c.ExpiresAt))
	b = le.AppendUint64(b, uint64(c.State.TAT))
	b = le.AppendUint16(b, uint16(len(c.State.Slots)))
	b = append(b, byte(c.Rule.Algorithm), 0)
	b = appendSlots(b, c.State.Slots, writers)
	le.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

func appendSlots(b []byte, slots []limit.Slot, writers writerTable) []byte {
	last := int64(0)
	for _, s := range slots {
		w, _ := slices.BinarySearch(writers, s.Writer)
		b = binary.AppendUvarint(b, uint64(w))
		b = binary.AppendVarint(b, s.At-last)
		b = binary.AppendUvarint(b, s.Charged)
		b = binary.AppendUvarint(b, s.Refunded)
		last = s.At
	}
	return b
}

// msgReader reads messages into memory of its own, which the next message takes over.
type msgReader struct {
	slotReader
	msg      handoff.Message
	counters []handoff.CounterRecord
}

// slotReader reads the parts of messages that hold counters' slots.
type slotReader struct {
	slots   []limit.Slot
	writers writerTable
}

// parse reads the payload of a frame that carries a message of kind k. What it returns is void after the next call.
func (r *msgReader) parse(k handoff.MessageKind, b []byte) (*handoff.Message, error) {
	r.counters, r.slots, r.writers = r.counters[:0], r.slots[:0], r.writers[:0]
	count, b, err := r.parseHead(k, b)
	if err != nil {
		return nil, err
	}
	if b, err = r.parseWriters(b); err != nil {
		return nil, err
	}
	if b, err = eachRecord(b, count, r.parseCounter); err != nil {
		return nil, err
	}
	switch k {
	case handoff.Ack, handoff.OwnershipReply:
		r.msg.Losses, err = parseLosses(b)
	case handoff.Chunk:
		r.msg.Sketch, err = parseOverflow(b)
	}
	if err != nil {
		return nil, err
	}
	r.msg.Counters = r.counters
	return &r.msg, nil
}

// eachRecord has the first count records of b read, and returns what follows them.
func eachRecord(b []byte, count int, parse func([]byte) error) (rest []byte, err error) {
	for range count {
		if len(b) < 4 {
			return nil, errShort
		}
		n := le.Uint32(b)
		if b = b[4:]; uint64(n) > uint64(len(b)) {
			return nil, errShort
		}
		if err := parse(b[:n]); err != nil {
			return nil, err
		}
		b = b[n:]
	}
	return b, nil
}

func (r *msgReader) parseHead(k handoff.MessageKind, b []byte) (count int, rest []byte, err error) {
	if len(b) < 2 {
		return 0, nil, errShort
	}
	n := int(le.Uint16(b))
	if b = b[2:]; n < msgHead || n > len(b) {
		return 0, nil, errShort
	}
	h, rest := b[:n], b[n:]
	r.msg = handoff.Message{
		Kind: k, Flags: handoff.MessageFlags(h[0]), Status: handoff.ReplyStatus(h[1]), ChunkIndex: le.Uint32(h[4:]),
		Ring: le.Uint64(h[8:]), Seq: le.Uint64(h[16:]), BaseRing: le.Uint64(h[24:]),
		Sent: int64(le.Uint64(h[32:])), Now: int64(le.Uint64(h[40:])), SinceLost: int64(le.Uint64(h[48:])),
	}
	if r.msg.Member, _, err = parseID(h[56:]); err != nil {
		return 0, nil, err
	}
	if count = int(le.Uint16(h[2:])); count > maxCounters {
		return 0, nil, errCounters
	}
	return count, rest, nil
}

func (r *slotReader) parseWriters(b []byte) ([]byte, error) {
	if len(b) < 2 {
		return nil, errShort
	}
	n := int(le.Uint16(b))
	if b = b[2:]; len(b) < 8*n {
		return nil, errShort
	}
	for i := range n {
		r.writers = append(r.writers, le.Uint64(b[8*i:]))
	}
	return b[8*n:], nil
}

func (r *msgReader) parseCounter(b []byte) error {
	if len(b) < counterSize {
		return errShort
	}
	c := handoff.CounterRecord{
		Key: owner.Key{le.Uint64(b), le.Uint64(b[8:])}, RingPos: le.Uint64(b[16:]), Domain: le.Uint64(b[24:]),
		Rule: limit.Rule{
			Window: time.Duration(le.Uint64(b[32:])), Limit: le.Uint32(b[40:]), Burst: le.Uint32(b[44:]),
			Algorithm: limit.Algorithm(b[66]),
		},
		ExpiresAt: int64(le.Uint64(b[48:])), State: limit.State{TAT: int64(le.Uint64(b[56:]))},
	}
	n := int(le.Uint16(b[64:]))
	if n > 0 { // without slots nothing is said but the key
		if err := c.Rule.Validate(); err != nil {
			return err
		}
	}
	var err error
	if c.State.Slots, err = r.parseSlots(b[counterSize:], n); err != nil {
		return err
	}
	r.counters = append(r.counters, c)
	return nil
}

// parseSlots reads n slots; nil for none.
func (r *slotReader) parseSlots(b []byte, n int) ([]limit.Slot, error) {
	switch {
	case n == 0:
		return nil, nil
	case n > maxSlots:
		return nil, errSlots
	case len(b) < n*minSlotSize:
		return nil, errShort
	}
	from, at := len(r.slots), int64(0)
	for i := range n {
		var f [4]uint64 // writer, time, charged, refunded
		for j := range f {
			v, size := binary.Uvarint(b)
			if size <= 0 {
				return nil, errShort
			}
			f[j], b = v, b[size:]
		}
		if f[0] >= uint64(len(r.writers)) {
			return nil, errors.New("unknown writer")
		}
		at += int64(f[1]>>1) ^ -int64(f[1]&1) // as binary.Varint
		s := limit.Slot{Writer: r.writers[f[0]], At: at, Charged: f[2], Refunded: f[3]}
		if i > 0 && !before(r.slots[len(r.slots)-1], s) {
			return nil, errUnsorted
		}
		r.slots = append(r.slots, s)
	}
	return r.slots[from:len(r.slots):len(r.slots)], nil
}

// before says whether slot a comes before b, as a State wants them.
func before(a, b limit.Slot) bool { return a.At < b.At || a.At == b.At && a.Writer < b.Writer }
