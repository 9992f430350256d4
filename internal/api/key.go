package api

import "errors"

// MaxEntries is the largest number of entries of a descriptor, as in a rate limit request.
const MaxEntries = 64

// ErrNoCounter is the error of a request about a descriptor that no rule limits.
var ErrNoCounter = errors.New("no rule limits this descriptor")

// KeyDescriptor is a descriptor in JSON.
type KeyDescriptor struct {
	Entries []KeyValue `json:"entries"`
}

// KeyValue is one entry of a descriptor.
type KeyValue struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// CounterStatus is the answer of GET /v1/counters: one key's counter at its owner.
type CounterStatus struct {
	Count     uint64  `json:"count"`          // hits in the current window, with all that is lent; for a bucket its level
	Lent      *uint64 `json:"lent,omitempty"` // hits of Count that holders of leases may not have spent; nil unless the owner answers
	Limit     uint64  `json:"limit"`
	Remaining uint64  `json:"remaining"`
	Reset     float64 `json:"reset_seconds"`
	Owner     string  `json:"owner"`     // empty with mechanism static
	Authority string  `json:"authority"` // full if the owner answered
	// Source is where Count comes from: owner, recorded (what the member that was asked has recorded while the owner
	// is away), last_answer (the largest earlier answer of that member for the same window) or this_member (with
	// mechanism static: what that member has counted, and nothing of the other members).
	Source string `json:"source,omitempty"`
	Window string `json:"window"`
	// Holds divides Count for a rule with holds; nil unless the owner answers.
	Holds *HeldHits `json:"holds,omitempty"`
	// Tenants are those between which the limit is divided (fair), in the order in which they came; nil unless the owner
	// answers.
	Tenants []TenantStatus `json:"tenants,omitempty"`
}

// TenantStatus is one tenant of a counter.
type TenantStatus struct {
	Tenant      string `json:"tenant"`       // its name if the rule or the request names it, else a digest; * for those that share a row
	Weight      uint32 `json:"weight"`       // for those that share a row, of all of them
	Used        uint64 `json:"used"`         // hits admitted in this window
	Asked       uint64 `json:"asked"`        // hits asked for in this window
	AskedBefore uint64 `json:"asked_before"` // hits asked for in the last window
	Remaining   uint64 `json:"remaining"`    // hits that it would be admitted now
}

// ResetOrder is the body of POST /reset: the key whose hits are refunded.
type ResetOrder struct {
	Domain     string        `json:"domain"`
	Descriptor KeyDescriptor `json:"descriptor"`
}

// Validate returns an error if o does not name a key.
func (o *ResetOrder) Validate() error {
	switch {
	case o.Domain == "":
		return errors.New("domain is missing")
	case len(o.Descriptor.Entries) == 0:
		return errors.New("the descriptor has no entries")
	case len(o.Descriptor.Entries) > MaxEntries:
		return errors.New("the descriptor has too many entries")
	}
	return nil
}

// ResetResult is the answer of POST /reset.
type ResetResult struct {
	Before uint64 `json:"before"` // hits in the current window before the reset
	After  uint64 `json:"after"`  // hits after it: lent hits remain, and new hits are counted meanwhile
	Owner  string `json:"owner"`
}
