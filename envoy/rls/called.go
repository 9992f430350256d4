package rls

import (
	"sync"

	"github.com/keyward/keyward/owner"
)

// callTally counts the hits of calls for keys whose limits Envoys may spend without calls. They share the limit, so their
// demand has to be known.
type callTally struct {
	mu   sync.Mutex
	keys map[owner.Key]calledKey
	last map[owner.Key]calledKey // of the collection before; empty
}

type calledKey struct {
	request owner.Request // without operation and hits
	hits    uint64
}

// maxCalled is the most keys that are counted between two collections. Others are left out.
const maxCalled = 10_000

// add counts hits of a call.
func (t *callTally) add(q *owner.Request, hits uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.keys[q.Key]
	if !ok {
		if len(t.keys) >= maxCalled {
			return
		}
		if t.keys == nil {
			t.keys, t.last = map[owner.Key]calledKey{}, map[owner.Key]calledKey{}
		}
		k.request = *q
		k.request.Op, k.request.Hits, k.request.Hold, k.request.Whole, k.request.Veto = 0, 0, nil, false, 0
	}
	k.hits += hits
	t.keys[q.Key] = k
}

// CollectCalls calls see with each key whose limit Envoys may spend without calls, and the hits, admitted or not, of the
// calls for it since the collection before. It is for one goroutine at a time.
func (s *Service) CollectCalls(see func(q *owner.Request, hits uint64)) {
	t := &s.called
	t.mu.Lock()
	all := t.keys
	t.keys, t.last = t.last, t.keys
	t.mu.Unlock()
	for _, k := range all {
		see(&k.request, k.hits)
	}
	clear(all)
}
