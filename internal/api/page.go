package api

import "time"

// RingMap is the answer of GET /v1/ring: the current ring as something to draw.
type RingMap struct {
	Fingerprint string      `json:"fingerprint"`
	Members     []RingShare `json:"members"` // sorted by ID
	// Sectors divides the hash space into equal parts, from hash 0 on: for each part, the index in Members of the
	// owner of its middle. A member of weight 1 has 1024 points, so several members usually own points of one sector.
	// It is empty when the ring is empty.
	Sectors []int `json:"sectors"`
}

// RingShare is one member of the ring.
type RingShare struct {
	ID     string  `json:"id"`
	Share  float64 `json:"share"` // fraction of the hash space that it owns, 0 to 1
	Weight uint32  `json:"weight"`
	State  string  `json:"state"` // active or leaving; lost: on the ring, and gossip has given it up
}

// RuleTree is the answer of GET /v1/rules: the versions, and the rules in force with this member's statistics.
type RuleTree struct {
	RulesStatus
	Requests uint64 `json:"requests"` // calls of Envoys that this member has answered since it started

	Domains []RuleDomain `json:"domains"`
	LeftOut int          `json:"left_out,omitempty"` // number of rules after the first 2000
}

// RuleDomain lists the rules of one domain, in the order of the files.
type RuleDomain struct {
	Domain string       `json:"domain"`
	Rules  []RuleStatus `json:"rules"`
}

// RuleStatus is one rule in force.
type RuleStatus struct {
	Path       []string `json:"path"`           // the descriptor, outermost first: key=value, or key for every value
	Key        string   `json:"key"`            // name in statistics and in /rlconfig
	Name       string   `json:"name,omitempty"` // by which other rules replace it
	Limit      uint32   `json:"limit"`
	Unit       string   `json:"unit"`   // as in the file, in lower case
	Window     string   `json:"window"` // as a Go duration
	Algorithm  string   `json:"algorithm"`
	Burst      uint32   `json:"burst,omitempty"`
	Mechanism  string   `json:"mechanism"`
	Degraded   string   `json:"degraded"`
	Partition  string   `json:"partition,omitempty"` // the rule's own policy
	Fair       string   `json:"fair,omitempty"`      // the entry that names the tenants, with their weights
	Holds      string   `json:"holds,omitempty"`     // the settings of holds, as in the file
	Durability string   `json:"durability"`
	Shadow     bool     `json:"shadow"`
	Quota      bool     `json:"quota"`
	Unlimited  bool     `json:"unlimited"`
	File       string   `json:"file"`
	Line       int      `json:"line,omitempty"`

	*RuleTotals // requests of Envoys to this member since it started, whichever member counts them; nil for statistics by key
}

// RuleTotals are the hits of one rule, as in envoyproxy/ratelimit's statistics.
type RuleTotals struct {
	TotalHits uint64 `json:"total_hits"`
	OverLimit uint64 `json:"over_limit"`
	NearLimit uint64 `json:"near_limit"`
	Shadowed  uint64 `json:"shadow_mode"`
}

// TimelineEvents is the answer of GET /v1/timeline.
type TimelineEvents struct {
	Events []TimelineEvent `json:"events"` // newest first
}

// EventKind is the subject of a TimelineEvent.
type EventKind string

// The kinds of events.
const (
	RingEvent    EventKind = "ring"    // this member uses another ring
	MemberEvent  EventKind = "member"  // a member joined, left or changed its state
	RulesEvent   EventKind = "rules"   // a version of the rules was refused or came into force
	HotEvent     EventKind = "hot"     // the route of a hot key changed
	HandoffEvent EventKind = "handoff" // counters were transferred
	JournalEvent EventKind = "journal" // counters were loaded from disk, or cannot be written to it
)

// TimelineEvent is something that this member has observed.
type TimelineEvent struct {
	Time        time.Time `json:"time"`
	Kind        EventKind `json:"kind"`
	Text        string    `json:"text"`                  // one sentence; a hot key's contains callers' values
	Fingerprint string    `json:"fingerprint,omitempty"` // of the ring or the rules
	Member      string    `json:"member,omitempty"`      // the member concerned
	State       string    `json:"state,omitempty"`       // its new state: joining, active, leaving, left or lost
	Moved       float64   `json:"moved,omitempty"`       // of a ring: fraction of the hash space that has a new owner, 0 to 1
}
