package api

import "time"

// Modules is the answer of GET /v1/modules: the Envoys of this pod whose dynamic modules spend leases of this member.
type Modules struct {
	Member string        `json:"member"`
	Socket string        `json:"socket"` // --module-socket; empty: none
	Envoys []ModuleEnvoy `json:"envoys"` // those that have been connected for the longest
	Total  int           `json:"total"`
	// Refused counts the connections that this member has closed or not accepted since its start, by reason: malformed,
	// corrupt, silent or excess.
	Refused map[string]uint64 `json:"refused"`
}

// ModuleEnvoy is one Envoy with the module. The numbers of requests are those that its module counts.
type ModuleEnvoy struct {
	Node    string      `json:"node"` // the node id in Envoy's configuration
	ABI     string      `json:"abi"`  // of dynamic modules in this Envoy
	Since   time.Time   `json:"since"`
	Slots   int         `json:"slots"` // leases that its memory has room for
	Used    int         `json:"used"`  // of them
	Taken   uint64      `json:"taken"` // requests without a call
	NoLease uint64      `json:"no_lease"`
	Empty   uint64      `json:"empty"` // requests whose leases were empty or had expired
	Corrupt uint64      `json:"corrupt"`
	Keys    []ModuleKey `json:"keys"` // those with the highest rates
	Total   int         `json:"total_keys"`
}

// ModuleKey is a limit of which an Envoy has a lease, or had one in the last seconds. Its numbers of hits are since then.
type ModuleKey struct {
	Domain  string  `json:"domain"`
	Name    string  `json:"name"` // the descriptor
	Digest  string  `json:"digest"`
	Limit   uint32  `json:"limit"` // 0: no rule limits it
	Window  string  `json:"window"`
	Rate    float64 `json:"rate"`     // requests per second
	Given   uint32  `json:"given"`    // hits of the lease when it was last filled; 0: it has none
	Left    uint32  `json:"left"`     // of them
	Taken   uint64  `json:"taken"`    // hits without a call
	NoLease uint64  `json:"no_lease"` // hits of calls that were made because there was no lease
	Empty   uint64  `json:"empty"`    // or because it was empty
}
