package peer

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/keyward/keyward/handoff"
)

const (
	overflowHead = 154     // part, turn, window, end, domains, number of cells
	maxCells     = 1 << 13 // of one message
	sketchCells  = 1 << 14 // of a part of a sketch
)

var errCells = errors.New("cells not in order, or too many")

// appendOverflow appends a piece of a sketch after the counters of a Chunk; nothing for nil. Builds that do not know it skip it.
func appendOverflow(b []byte, o *handoff.SketchPart) []byte {
	if o == nil {
		return b
	}
	b = append(b, o.Index, byte(o.Phase))
	b = le.AppendUint64(b, uint64(o.Window))
	b = le.AppendUint64(b, uint64(o.End))
	for _, d := range o.Domains {
		b = le.AppendUint64(b, d)
	}
	b = le.AppendUint64(b, uint64(len(o.Cells)))
	next := uint16(0)
	for _, c := range o.Cells {
		b = binary.AppendUvarint(b, uint64(c.At-next))
		b = binary.AppendUvarint(b, uint64(c.Hits))
		next = c.At + 1
	}
	return b
}

// parseOverflow reads what appendOverflow wrote; nil when there is nothing.
func parseOverflow(b []byte) (*handoff.SketchPart, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) < overflowHead {
		return nil, errShort
	}
	o := &handoff.SketchPart{Index: b[0], Phase: int8(b[1]), Window: time.Duration(le.Uint64(b[2:])), End: int64(le.Uint64(b[10:]))}
	for i := range o.Domains {
		o.Domains[i] = le.Uint64(b[18+8*i:])
	}
	n := le.Uint64(b[146:])
	if b = b[overflowHead:]; n > maxCells || n > uint64(len(b)/2) {
		return nil, errCells
	}
	o.Cells = make([]handoff.Cell, n)
	next := uint64(0)
	for i := range o.Cells {
		skip, size := binary.Uvarint(b)
		if size <= 0 {
			return nil, errShort
		}
		hits, more := binary.Uvarint(b[size:])
		if more <= 0 {
			return nil, errShort
		}
		b = b[size+more:]
		if skip >= sketchCells || next+skip >= sketchCells || hits == 0 || hits > 1<<32-1 {
			return nil, errCells
		}
		o.Cells[i] = handoff.Cell{At: uint16(next + skip), Hits: uint32(hits)}
		next += skip + 1
	}
	return o, nil
}
