package admin

import (
	"slices"
	"sync"
	"time"
)

// Events is how many events a Timeline keeps.
const Events = 200

// EventKind is what an Event is about.
type EventKind string

// The kinds.
const (
	RingEvent    EventKind = "ring"    // this member goes by another ring
	MemberEvent  EventKind = "member"  // somebody came, went or changed its state
	RulesEvent   EventKind = "rules"   // a version of the rules was read, refused or came into force
	HotEvent     EventKind = "hot"     // something else is done about a hot key
	HandoffEvent EventKind = "handoff" // counters have moved
)

// TimelineEvent is something that this member has seen.
type TimelineEvent struct {
	Time        time.Time `json:"time"`
	Kind        EventKind `json:"kind"`
	Text        string    `json:"text"`                  // one sentence; of hot keys it holds callers' values
	Fingerprint string    `json:"fingerprint,omitempty"` // of the ring or the rules that it is about
	Member      string    `json:"member,omitempty"`      // whom it is about
	State       string    `json:"state,omitempty"`       // that member's from then on: joining, active, leaving, left or lost
	Moved       float64   `json:"moved,omitempty"`       // of a ring: the part of the hash space that has another owner, 0 to 1
}

// Timeline keeps the latest events of one process in memory. The zero Timeline is ready and safe for concurrent use.
type Timeline struct {
	mu     sync.Mutex
	events []TimelineEvent // oldest first; guarded by mu
}

// Add keeps e. When there is no room the oldest event of the most frequent kind is forgotten, so that keys which get hot
// again and again leave the last changes of the ring alone.
func (t *Timeline) Add(e TimelineEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, e)
	if len(t.events) <= Events {
		return
	}
	count := map[EventKind]int{}
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

// Events are those that are kept, newest first.
func (t *Timeline) Events() []TimelineEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Clone(t.events)
	slices.Reverse(all)
	return all
}
