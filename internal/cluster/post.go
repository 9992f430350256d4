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
	postRoute = 1
	postLoad  = 2

	postGone = 1
	postHead = 18
)

var errPost = errors.New("not a post")

// anyPost is one user message. One of an unknown kind says nothing.
type anyPost struct {
	routePost
	kind byte
	load float64
}

func parsePost(b []byte) (p anyPost, err error) {
	if len(b) < postHead {
		return p, errPost
	}
	p.kind, p.gone = b[0], b[1]&postGone != 0
	p.inst, p.seq = binary.LittleEndian.Uint64(b[2:]), binary.LittleEndian.Uint64(b[10:])
	b = b[postHead:]
	switch p.kind {
	case postRoute:
		p.route, err = hotkey.ParseRoute(b)
		return p, err
	case postLoad:
		if len(b) < 8 {
			return p, errPost
		}
		if p.load = math.Float64frombits(binary.LittleEndian.Uint64(b)); !(p.load >= 0 && p.load <= maxLoad) {
			return p, errPost
		}
	}
	return p, nil
}

const (
	maxLoad    = 1 << 40 // questions a second
	postRepeat = 4       // transmissions of one sending by one member, times the logarithm of the members, as memberlist's own
)

func appendHead(b []byte, kind, flags byte, s sending) []byte {
	b = append(b, kind, flags)
	b = binary.LittleEndian.AppendUint64(b, s.inst)
	return binary.LittleEndian.AppendUint64(b, s.seq)
}

func appendRoute(b []byte, p *routePost) []byte {
	flags := byte(0)
	if p.gone {
		flags = postGone
	}
	return hotkey.AppendRoute(appendHead(b, postRoute, flags, p.sending), &p.route)
}

func appendLoad(b []byte, p loadPost) []byte {
	return binary.LittleEndian.AppendUint64(appendHead(b, postLoad, 0, p.sending), math.Float64bits(p.load))
}

// outbox holds messages until each has been sent often enough to reach everybody. It is not memberlist's own queue, whose
// numbering starts anew whenever it runs empty, so that of two messages of one length one may be lost.
type outbox struct {
	members func() int
	mu      sync.Mutex
	items   map[any]*outgoing // guarded by mu: by what they are about; a newer message takes the place of an older one
	put     uint64            // guarded by mu: messages so far
}

type outgoing struct {
	msg   []byte
	sent  int
	order uint64
}

func (o *outbox) add(about any, msg []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.items == nil {
		o.items = map[any]*outgoing{}
	}
	o.put++
	o.items[about] = &outgoing{msg: msg, order: o.put}
}

// take is what fits into one packet of limit bytes, each message taking overhead more: first what was sent least often.
func (o *outbox) take(overhead, limit int) (msgs [][]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.items) == 0 {
		return nil
	}
	often := postRepeat * int(math.Ceil(math.Log10(float64(o.members()+1))))
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
