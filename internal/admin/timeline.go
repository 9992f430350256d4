package admin

import (
	"slices"
	"sync"

	"github.com/keyward/keyward/internal/api"
)

// Events is the number of events that a Timeline keeps.
const Events = 200

// Timeline keeps the latest events of one process in memory. The zero Timeline is ready and safe for concurrent use.
type Timeline struct {
	mu     sync.Mutex
	events []api.TimelineEvent // oldest first; guarded by mu
}

// Add adds e. A full Timeline drops the oldest event of its most frequent kind, so that a key which becomes hot again
// and again does not displace the last changes of the ring.
func (t *Timeline) Add(e api.TimelineEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, e)
	if len(t.events) <= Events {
		return
	}
	count := map[api.EventKind]int{}
	for i := range t.events {
		count[t.events[i].Kind]++
	}
	most := 0
	for i := range t.events {
		if count[t.events[i].Kind] > count[t.events[most].Kind] {
			most = i
		}
	}
	t.events = slices.Delete(t.events, most, most+1)
}

// Events returns the events, newest first.
func (t *Timeline) Events() []api.TimelineEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Clone(t.events)
	slices.Reverse(all)
	return all
}
