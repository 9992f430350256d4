package peer

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
)

// A part of a sketch follows a chunk's counters. An invalid one is refused.
func TestOverflowTravels(t *testing.T) {
	full := protocol.SketchPart{Index: 63, Phase: 2, Window: time.Hour, End: 1 << 60,
		Domains: [16]uint64{1, 15: 1 << 63}}
	for i := range maxCells {
		full.Cells = append(full.Cells, protocol.Cell{At: uint16(2*i + 1), Hits: math.MaxUint32 - uint32(i)})
	}
	for _, o := range []*protocol.SketchPart{nil, {Cells: []protocol.Cell{}},
		{Cells: []protocol.Cell{{At: 0, Hits: 1}, {At: sketchCells - 1, Hits: 7}}}, &full} {
		m := sampleMsg(protocol.Chunk)
		m.Sketch = o
		b, err := appendMsg(nil, &m, new(counterwire.Writers))
		if err != nil {
			t.Fatal(err)
		}
		got, err := new(msgReader).parse(protocol.Chunk, b[5:])
		if err != nil || !reflect.DeepEqual(got.Sketch, o) || len(got.Counters) != len(m.Counters) {
			t.Fatalf("%v: %+v became %+v", err, o, got)
		}
	}
	for name, o := range map[string]protocol.SketchPart{
		"no hits":      {Cells: []protocol.Cell{{At: 1}}},
		"out of order": {Cells: []protocol.Cell{{At: 5, Hits: 1}, {At: 5, Hits: 1}}},
		"out of range": {Cells: []protocol.Cell{{At: sketchCells, Hits: 1}}},
		"too many":     {Cells: append(full.Cells, protocol.Cell{At: sketchCells - 1, Hits: 1})},
	} {
		if got, err := parseOverflow(wire.NewReader(appendOverflow(nil, &o))); err == nil {
			t.Errorf("%s: taken: %+v", name, got)
		}
	}
	b := appendOverflow(nil, &full)
	for n := 1; n < len(b); n += 97 {
		if _, err := parseOverflow(wire.NewReader(b[:n])); err == nil {
			t.Fatalf("%d of %d bytes are taken", n, len(b))
		}
	}
}
