package records

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
)

// retransmitMult, times the logarithm of the number of members, is how often one member transmits a message, as in
// memberlist.
const retransmitMult = 4

// queue holds messages until each has been transmitted often enough to reach every member. Memberlist's own queue
// restarts its numbering whenever it runs empty, so that it may lose one of two messages of the same length.
type queue struct {
	members func() int
	mu      sync.Mutex
	items   map[any]*queued // guarded by mu: by subject; a newer message replaces an older one
	added   uint64          // guarded by mu: messages so far
}

type queued struct {
	msg   []byte
	sent  int
	order uint64
}

func (q *queue) add(subject any, msg []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.items == nil {
		q.items = map[any]*queued{}
	}
	q.added++
	q.items[subject] = &queued{msg: msg, order: q.added}
}

// take returns the messages that fit into one packet of limit bytes, each with overhead more bytes. Messages that
// were transmitted least often come first.
func (q *queue) take(overhead, limit int) (msgs [][]byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return nil
	}
	times := retransmitMult * int(math.Ceil(math.Log10(float64(q.members()+1))))
	subjects := slices.SortedFunc(maps.Keys(q.items), func(x, y any) int {
		a, b := q.items[x], q.items[y]
		return cmp.Or(cmp.Compare(a.sent, b.sent), cmp.Compare(a.order, b.order))
	})
	for _, subject := range subjects {
		m := q.items[subject]
		if overhead+len(m.msg) > limit {
			continue
		}
		limit -= overhead + len(m.msg)
		msgs = append(msgs, m.msg)
		if m.sent++; m.sent >= times {
			delete(q.items, subject)
		}
	}
	return msgs
}
