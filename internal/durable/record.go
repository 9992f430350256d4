package durable

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/owner"
)

// The first byte of a record in the journal.
const (
	recordCounters = 1
	recordRing     = 2
)

// maxRecordRing is the most members of a ring that a record names. It is the largest --ring-capacity.
const maxRecordRing = 8192

// CompleteRing is a ring of which all members hold all of their counters.
type CompleteRing struct {
	At      int64 // when it was complete, in Unix nanoseconds by the clock of the member that recorded it
	Members []journal.RingMember
	// Included are the boots of Members whose journals were loaded into the one that names the ring, so that they are not
	// missing although they were removed. It is empty for a ring of the journal's own boot.
	Included []uint64
}

// ID returns a number that identifies the boots of the ring's members, or 0 for an empty ring.
func (r *CompleteRing) ID() uint64 {
	if len(r.Members) == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(r.Members), func(a, b journal.RingMember) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Boot, b.Boot))
	})
	h := sha256.New()
	for _, m := range sorted {
		h.Write(wire.Writer(nil).U32(uint32(len(m.Name))).String(m.Name).U64(m.Boot))
	}
	return binary.LittleEndian.Uint64(h.Sum(nil)) | 1
}

// Has reports whether a boot is on the ring.
func (r *CompleteRing) Has(boot uint64) bool {
	return slices.ContainsFunc(r.Members, func(m journal.RingMember) bool { return m.Boot == boot })
}

// appendCounters appends the counters of b as one record. writers is scratch memory.
func appendCounters(w wire.Writer, b *owner.JournalBatch, writers *counterwire.Writers) wire.Writer {
	*writers = writers.Of(b.Counters)
	w = writers.Append(w.U8(recordCounters)).U16(uint16(len(b.Counters)))
	for i := range b.Counters {
		w = counterwire.Append(w, &b.Counters[i], *writers)
	}
	for _, n := range b.Ahead {
		w = w.Uvarint(uint64(n))
	}
	return w
}

// appendRing appends r as one record.
func appendRing(w wire.Writer, r *CompleteRing) wire.Writer {
	w = w.U8(recordRing).I64(r.At).U16(uint16(len(r.Members)))
	for _, m := range r.Members {
		w = w.U16(uint16(len(m.Name))).String(m.Name).U64(m.Boot)
	}
	w = w.U16(uint16(len(r.Included)))
	for _, boot := range r.Included {
		w = w.U64(boot)
	}
	return w
}

// recordReader reads records into its own memory, which the next record overwrites.
type recordReader struct {
	counterwire.Decoder
	ahead []uint32 // by counter
}

// parse reads a record. It returns its ring, or nil if it has counters, which are then in r.
func (r *recordReader) parse(b []byte) (*CompleteRing, error) {
	in := wire.NewReader(b)
	r.Reset()
	r.ahead = r.ahead[:0]
	switch in.U8() {
	case recordCounters:
		return nil, r.parseCounters(&in)
	case recordRing:
		return parseRing(&in)
	}
	return nil, wire.ErrMalformed
}

func (r *recordReader) parseCounters(in *wire.Reader) error {
	r.Writers(in)
	count := int(in.U16())
	if count > protocol.MaxCounters {
		return wire.ErrMalformed
	}
	if err := counterwire.Records(in, count, r.Counter); err != nil {
		return err
	}
	for range r.Counters {
		r.ahead = append(r.ahead, uint32(min(in.Uvarint(), 1<<32-1)))
	}
	return in.Err()
}

func parseRing(in *wire.Reader) (*CompleteRing, error) {
	r := &CompleteRing{At: in.I64()}
	n := int(in.U16())
	if n > maxRecordRing {
		return nil, wire.ErrMalformed
	}
	for range n {
		m := journal.RingMember{Name: in.String(int(in.U16())), Boot: in.U64()}
		if err := in.Err(); err != nil {
			return nil, err
		}
		r.Members = append(r.Members, m)
	}
	if in.Len() == 0 {
		return r, in.Err()
	}
	included := in.Record(8 * int(in.U16()))
	for included.Len() > 0 {
		r.Included = append(r.Included, included.U64())
	}
	return r, in.Err()
}
