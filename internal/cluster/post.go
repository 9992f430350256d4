package cluster

import (
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/keyward/keyward/hotkey"
)

// The user messages of gossip, which members of earlier versions ignore. All numbers are little-endian:
//
//	u8 kind   u8 flags: 1 = taken back   u64 instance of the author   u64 number of the sending
//	a route (hotkey.AppendRoute), or a load: u64 bits of a float
//
// Later versions may append to a load, and add kinds.
const (
	kindRoute = 1
	kindLoad  = 2

	flagWithdrawn = 1
	recordHeader  = 18
)

var errRecord = errors.New("not a post")

// record is one user message. One of an unknown kind says nothing.
type record struct {
	routeRecord
	kind byte
	load float64
}

func parseRecord(b []byte) (p record, err error) {
	if len(b) < recordHeader {
		return p, errRecord
	}
	p.kind, p.withdrawn = b[0], b[1]&flagWithdrawn != 0
	p.bootID, p.seq = binary.LittleEndian.Uint64(b[2:]), binary.LittleEndian.Uint64(b[10:])
	b = b[recordHeader:]
	switch p.kind {
	case kindRoute:
		p.route, err = hotkey.ParseRoute(b)
		return p, err
	case kindLoad:
		if len(b) < 8 {
			return p, errRecord
		}
		if p.load = math.Float64frombits(binary.LittleEndian.Uint64(b)); !(p.load >= 0 && p.load <= maxLoad) {
			return p, errRecord
		}
	}
	return p, nil
}

const (
	maxLoad        = 1 << 40 // questions a second
	retransmitMult = 4       // transmissions of one sending by one member, times the logarithm of the members, as memberlist's own
)

func appendHead(b []byte, kind, flags byte, s origin) []byte {
	b = append(b, kind, flags)
	b = binary.LittleEndian.AppendUint64(b, s.bootID)
	return binary.LittleEndian.AppendUint64(b, s.seq)
}

func appendRoute(b []byte, p *routeRecord) []byte {
	flags := byte(0)
	if p.withdrawn {
		flags = flagWithdrawn
	}
	return hotkey.AppendRoute(appendHead(b, kindRoute, flags, p.origin), &p.route)
}

func appendLoad(b []byte, p loadRecord) []byte {
	return binary.LittleEndian.AppendUint64(appendHead(b, kindLoad, 0, p.origin), math.Float64bits(p.load))
}

// broadcastQueue holds messages until each has been sent often enough to reach everybody. It is not memberlist's own queue, whose
// numbering starts anew whenever it runs empty, so that of two messages of one length one may be lost.
type broadcastQueue struct {
	members func() int
	mu      sync.Mutex
	items   map[any]*broadcast // guarded by mu: by what they are about; a newer message takes the place of an older one
	added   uint64             // guarded by mu: messages so far
}

type broadcast struct {
	msg   []byte
	sent  int
	order uint64
}

func (o *broadcastQueue) add(about any, msg []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.items == nil {
		o.items = map[any]*broadcast{}
	}
	o.added++
	o.items[about] = &broadcast{msg: msg, order: o.added}
}

// take is what fits into one packet of limit bytes, each message taking overhead more: first what was sent least often.
func (o *broadcastQueue) take(overhead, limit int) (msgs [][]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.items) == 0 {
		return nil
	}
	often := retransmitMult * int(math.Ceil(math.Log10(float64(o.members()+1))))
	abouts := slices.SortedFunc(maps.Keys(o.items), func(x, y any) int {
		a, b := o.items[x], o.items[y]
		return cmp.Or(cmp.Compare(a.sent, b.sent), cmp.Compare(a.order, b.order))
	})
	for _, about := range abouts {
		m := o.items[about]
		if overhead+len(m.msg) > limit {
			continue
		}
		limit -= overhead + len(m.msg)
		msgs = append(msgs, m.msg)
		if m.sent++; m.sent >= often {
			delete(o.items, about)
		}
	}
	return msgs
}
