package records

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/keyward/keyward/hotkey"
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
	headerSize    = 18

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
	if len(b) < headerSize {
		return m, errMalformed
	}
	m.kind, m.withdrawn = b[0], b[1]&flagWithdrawn != 0
	m.bootID, m.seq = binary.LittleEndian.Uint64(b[2:]), binary.LittleEndian.Uint64(b[10:])
	b = b[headerSize:]
	switch m.kind {
	case kindRoute:
		m.route, err = hotkey.ParseRoute(b)
		return m, err
	case kindLoad:
		if len(b) < 8 {
			return m, errMalformed
		}
		if m.load = math.Float64frombits(binary.LittleEndian.Uint64(b)); !(m.load >= 0 && m.load <= maxLoad) {
			return m, errMalformed
		}
	}
	return m, nil
}

func appendHeader(b []byte, kind, flags byte, o origin) []byte {
	b = append(b, kind, flags)
	b = binary.LittleEndian.AppendUint64(b, o.bootID)
	return binary.LittleEndian.AppendUint64(b, o.seq)
}

func appendRoute(b []byte, p *routeRecord) []byte {
	flags := byte(0)
	if p.withdrawn {
		flags = flagWithdrawn
	}
	return hotkey.AppendRoute(appendHeader(b, kindRoute, flags, p.origin), &p.route)
}

func appendLoad(b []byte, p loadRecord) []byte {
	return binary.LittleEndian.AppendUint64(appendHeader(b, kindLoad, 0, p.origin), math.Float64bits(p.load))
}
