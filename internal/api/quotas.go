package api

import "time"

// Quotas is the answer of GET /v1/quotas: the limits that Envoys with streams to one member spend without calls.
type Quotas struct {
	Member  string        `json:"member"`
	Streams int           `json:"streams"` // open streams of Envoys
	Keys    []AssignedKey `json:"keys"`    // those with the most charged hits
	Total   int           `json:"total"`
}

// AssignedKey is a limit that Envoys spend. Its numbers are hits of the current window.
type AssignedKey struct {
	Domain    string       `json:"domain"`
	Name      string       `json:"name"` // the descriptor
	Digest    string       `json:"digest"`
	Limit     uint32       `json:"limit"`
	Window    string       `json:"window"`
	Unlimited bool         `json:"unlimited,omitempty"` // the rules have changed: Envoys admit everything
	Have      uint64       `json:"have"`                // charged by the owner for this member
	Next      uint64       `json:"next"`                // the same for the next window
	Charged   uint64       `json:"charged"`             // of them, what Envoys may have spent or may yet spend
	Ends      *time.Time   `json:"ends,omitempty"`
	Envoys    []EnvoyQuota `json:"envoys"` // those with the highest rates
	Total     int          `json:"total_envoys"`
}

// EnvoyQuota describes the part of a limit that one Envoy has.
type EnvoyQuota struct {
	Name     string  `json:"name"`
	Stream   uint64  `json:"stream"`
	Rate     float64 `json:"rate"`     // requests per second, admitted and refused
	Assigned string  `json:"assigned"` // lease, deny, allow; empty: nothing yet
	Lease    uint64  `json:"lease"`    // hits of the newest assignment
	Left     uint64  `json:"left"`     // of them, what no report proves spent
	Charged  uint64  `json:"charged"`  // in the current window

	Acknowledged *time.Time `json:"acknowledged,omitempty"` // since when it uses the newest assignment
	Expires      *time.Time `json:"expires,omitempty"`      // when that ends
	Stalled      bool       `json:"stalled,omitempty"`      // it does not acknowledge, so it gets no assignments
	ReportAge    float64    `json:"report_age_seconds"`     // of its newest report
}
