package peer

import (
	"errors"
	"math"
	"time"

	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
)

const (
	maxCells    = 1 << 13 // in one message
	sketchCells = 1 << 14 // in a part of a sketch
)

var errCells = errors.New("cells not in order, or too many")

// appendOverflow appends a part of a sketch, or nothing if o is nil. Builds without sketches skip it.
func appendOverflow(b []byte, o *protocol.SketchPart) []byte {
	if o == nil {
		return b
	}
	w := wire.Writer(b)
	w = w.U8(o.Index).U8(byte(o.Phase)).I64(int64(o.Window)).I64(o.End)
	for _, d := range o.Domains {
		w = w.U64(d)
	}
	w = w.U64(uint64(len(o.Cells)))
	next := uint16(0)
	for _, c := range o.Cells {
		w = w.Uvarint(uint64(c.At - next)).Uvarint(uint64(c.Hits))
		next = c.At + 1
	}
	return w
}

// parseOverflow reads the output of appendOverflow. It returns nil if there is none.
func parseOverflow(r wire.Reader) (*protocol.SketchPart, error) {
	if r.Len() == 0 {
		return nil, r.Err()
	}
	o := &protocol.SketchPart{Index: r.U8(), Phase: int8(r.U8()), Window: time.Duration(r.I64()), End: r.I64()}
	for i := range o.Domains {
		o.Domains[i] = r.U64()
	}
	n := r.U64()
	if err := r.Err(); err != nil {
		return nil, err
	}
	if n > maxCells || n > uint64(r.Len()/2) {
		return nil, errCells
	}
	o.Cells = make([]protocol.Cell, n)
	next := uint64(0)
	for i := range o.Cells {
		skip, hits := r.Uvarint(), r.Uvarint()
		if err := r.Err(); err != nil {
			return nil, err
		}
		if skip >= sketchCells || next+skip >= sketchCells || hits == 0 || hits > math.MaxUint32 {
			return nil, errCells
		}
		o.Cells[i] = protocol.Cell{At: uint16(next + skip), Hits: uint32(hits)}
		next += skip + 1
	}
	return o, nil
}
