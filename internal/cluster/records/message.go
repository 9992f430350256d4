package records

import (
	"errors"
	"math"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/wire"
)

// The user messages of gossip, which members of earlier versions ignore. All numbers are little-endian:
//
//	u8 kind   u8 flags: 1 = withdrawn   u64 boot ID of the author   u64 number of the transmission
//	a route (hotkey.AppendRoute), or a load: u64 bits of a float
//
// Later versions may append to a load, and add kinds.
const (
	kindRoute = 1
	kindLoad  = 2

	flagWithdrawn = 1

	maxLoad = 1 << 40 // requests per second
)

var errMalformed = errors.New("malformed record")

// message is one user message. One of an unknown kind has a header only.
type message struct {
	routeRecord
	kind byte
	load float64
}

func parse(b []byte) (m message, err error) {
	r := wire.NewReader(b)
	m.kind, m.withdrawn = r.U8(), r.U8()&flagWithdrawn != 0
	m.bootID, m.seq = r.U64(), r.U64()
	switch {
	case r.Err() != nil:
		return m, errMalformed
	case m.kind == kindRoute:
		m.route, err = hotkey.ParseRoute(r.Rest())
		return m, err
	case m.kind == kindLoad:
		m.load = math.Float64frombits(r.U64())
		if r.Err() != nil || !(m.load >= 0 && m.load <= maxLoad) {
			return m, errMalformed
		}
	}
	return m, nil
}

func encodeHeader(kind, flags byte, o origin) wire.Writer {
	return wire.Writer(nil).U8(kind).U8(flags).U64(o.bootID).U64(o.seq)
}

func encodeRoute(p *routeRecord) []byte {
	flags := byte(0)
	if p.withdrawn {
		flags = flagWithdrawn
	}
	return hotkey.AppendRoute(encodeHeader(kindRoute, flags, p.origin), &p.route)
}

func encodeLoad(p loadRecord) []byte {
	return encodeHeader(kindLoad, 0, p.origin).U64(math.Float64bits(p.load))
}
