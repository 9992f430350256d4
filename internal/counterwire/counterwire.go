// Package counterwire encodes counters, for the messages between members and for the journals of members. The encoding
// is specified in internal/peer/PROTOCOL.md.
package counterwire

import (
	"errors"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
)

// MaxSlots is the most slots of one counter.
const MaxSlots = 4096

// minSlotSize is the least number of bytes of a slot.
const minSlotSize = 4

// flagVolatile marks a counter whose rule keeps it out of journals.
const flagVolatile = 1

// The errors of malformed counters, in addition to wire.ErrMalformed.
var (
	ErrSlots    = errors.New("too many slots")
	ErrUnsorted = errors.New("slots not in order")
	ErrWriter   = errors.New("unknown writer")
)

// Writers lists the writers of the slots of several counters in ascending order. Slots refer to a writer by its index in
// the list.
type Writers []uint64

// Of returns the writers of counters, in t's memory.
func (t Writers) Of(counters []protocol.CounterRecord) Writers {
	t = t[:0]
	for i := range counters {
		t = t.With(counters[i].State.Slots)
	}
	return t
}

// With returns t with the writers of slots.
func (t Writers) With(slots []limit.Slot) Writers {
	for _, s := range slots {
		if at, known := slices.BinarySearch(t, s.Writer); !known {
			t = slices.Insert(t, at, s.Writer)
		}
	}
	return t
}

// Append appends t to w.
func (t Writers) Append(w wire.Writer) wire.Writer {
	w = w.U16(uint16(len(t)))
	for _, id := range t {
		w = w.U64(id)
	}
	return w
}

// Append appends c, whose writers must be in writers, with its length. c has at most MaxSlots slots.
func Append(w wire.Writer, c *protocol.CounterRecord, writers Writers) wire.Writer {
	at, flags := len(w), byte(0)
	if c.Volatile {
		flags = flagVolatile
	}
	w = w.U32(0).U64(c.Key[0]).U64(c.Key[1]).U64(c.RingPos).U64(c.Domain)
	w = w.I64(int64(c.Rule.Window)).U32(c.Rule.Limit).U32(c.Rule.Burst).I64(c.ExpiresAt).I64(c.State.TAT)
	w = w.U16(uint16(len(c.State.Slots))).U8(byte(c.Rule.Algorithm)).U8(flags)
	w = AppendSlots(w, c.State.Slots, writers)
	if len(c.Claims) > 0 {
		w = appendClaims(w, c.Claims)
	}
	w.EndLen32(at)
	return w
}

// AppendSlots appends slots, whose writers must be in writers, without their number.
func AppendSlots(w wire.Writer, slots []limit.Slot, writers Writers) wire.Writer {
	last := int64(0)
	for _, s := range slots {
		i, _ := slices.BinarySearch(writers, s.Writer)
		w = w.Uvarint(uint64(i)).Varint(s.At - last).Uvarint(s.Charged).Uvarint(s.Refunded)
		last = s.At
	}
	return w
}

// Decoder reads counters and slots into its own memory. What it returns is valid until Reset.
type Decoder struct {
	Counters []protocol.CounterRecord // all that Counter has read since Reset

	slots   []limit.Slot
	claims  []claim.Claim
	writers Writers
}

// Reset empties r.
func (r *Decoder) Reset() {
	r.Counters, r.slots, r.claims, r.writers = r.Counters[:0], r.slots[:0], r.claims[:0], r.writers[:0]
}

// Writers reads the list of writers that the following slots refer to.
func (r *Decoder) Writers(in *wire.Reader) {
	n := int(in.U16())
	table := in.Record(8 * n)
	for table.Len() > 0 {
		r.writers = append(r.writers, table.U64())
	}
}

// Records calls parse with each of count records that have lengths of four bytes.
func Records(r *wire.Reader, count int, parse func(wire.Reader) error) error {
	for range count {
		record := r.Record(int(r.U32()))
		if err := r.Err(); err != nil {
			return err
		}
		if err := parse(record); err != nil {
			return err
		}
	}
	return nil
}

// Counter reads in, one counter without its length, and adds it to r.Counters.
func (r *Decoder) Counter(in wire.Reader) error {
	var c protocol.CounterRecord
	c.Key[0], c.Key[1] = in.U64(), in.U64()
	c.RingPos, c.Domain = in.U64(), in.U64()
	c.Rule.Window = time.Duration(in.I64())
	c.Rule.Limit, c.Rule.Burst = in.U32(), in.U32()
	c.ExpiresAt, c.State.TAT = in.I64(), in.I64()
	slots := int(in.U16())
	c.Rule.Algorithm = limit.Algorithm(in.U8())
	c.Volatile = in.U8()&flagVolatile != 0
	if err := in.Err(); err != nil {
		return err
	}
	if slots > 0 { // a counter without slots has no more than its key
		if err := c.Rule.Validate(); err != nil {
			return err
		}
	}
	var err error
	if c.State.Slots, err = r.Slots(&in, slots); err != nil {
		return err
	}
	if in.Len() > 0 {
		if err = r.readClaims(&in, &c); err != nil {
			return err
		}
	}
	r.Counters = append(r.Counters, c)
	return nil
}

// Slots reads n slots. It returns nil if n is 0.
func (r *Decoder) Slots(in *wire.Reader, n int) ([]limit.Slot, error) {
	switch {
	case n == 0:
		return nil, in.Err()
	case n > MaxSlots:
		return nil, ErrSlots
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
			return nil, ErrWriter
		}
		s.Writer = r.writers[place]
		if i > 0 && !before(r.slots[len(r.slots)-1], s) {
			return nil, ErrUnsorted
		}
		r.slots = append(r.slots, s)
	}
	return r.slots[from:len(r.slots):len(r.slots)], nil
}

// before reports whether slot a sorts before b in a State.
func before(a, b limit.Slot) bool { return a.At < b.At || a.At == b.At && a.Writer < b.Writer }
