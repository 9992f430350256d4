package api

import "time"

// Budgets is the answer of GET /v1/budgets: the keys with holds that one member owns. A key is listed while a hold of it
// is open, and for about a minute afterwards. Like HotKeys, the document shows keys to a reader who does not already know
// them.
type Budgets struct {
	Member string         `json:"member"`
	Keys   []BudgetStatus `json:"keys"`  // at most 200; those first of whose limits the largest part is used
	Total  int            `json:"total"` // number of all
	// Names are the names of keys that this member has received requests for, by digest. The owner of a key may not have
	// its name.
	Names map[string]BudgetName `json:"names,omitempty"`
}

// BudgetName is the readable name of a key.
type BudgetName struct {
	Domain string `json:"domain"`
	Name   string `json:"name"` // the descriptor, as k=v,k2=v2
}

// BudgetStatus is the counter of a key with holds at its owner.
type BudgetStatus struct {
	Domain    string     `json:"domain"` // empty if the member does not have the name
	Name      string     `json:"name"`   // the descriptor, as k=v,k2=v2
	Digest    string     `json:"digest"`
	Algorithm string     `json:"algorithm"`
	Limit     uint32     `json:"limit"`
	Window    string     `json:"window"`
	Spent     uint64     `json:"spent"` // hits that count against the limit and that no open hold can give back
	Held      uint64     `json:"held"`  // hits of open holds
	Left      uint64     `json:"left"`  // hits that fit
	Open      uint64     `json:"open"`  // open holds
	Oldest    *time.Time `json:"oldest,omitempty"`
	Reset     float64    `json:"reset_seconds"`
}

// HeldHits are the parts of a count of a rule with holds.
type HeldHits struct {
	Spent uint64 `json:"spent"` // hits that count against the limit and that no open hold can give back
	Held  uint64 `json:"held"`  // hits of open holds
	Left  uint64 `json:"left"`  // hits that fit
	Open  uint64 `json:"open"`  // open holds
}
