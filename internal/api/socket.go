package api

import (
	"errors"
	"strings"
	"time"
)

// SocketPath returns PATH of the address unix:PATH.
func SocketPath(address string) (string, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok || path == "" {
		return "", errors.New("want unix:/path/of/the/socket")
	}
	return path, nil
}

// SidecarStatus is the answer of GET /status on the admin socket.
type SidecarStatus struct {
	Node     string        `json:"node"`
	Version  string        `json:"version"`
	Ready    bool          `json:"ready"`
	NotReady []string      `json:"not_ready,omitempty"` // the parts that are not ready
	Cluster  ClusterStatus `json:"cluster"`
	Drain    *DrainStatus  `json:"drain,omitempty"` // nil until a drain is requested
}

// DrainStatus is one line of the answer of POST /drain: the progress of a member that leaves.
type DrainStatus struct {
	Done       bool    `json:"done"`        // it has drained, or given up
	Complete   bool    `json:"complete"`    // it has drained
	State      string  `json:"state"`       // joining, active or leaving
	HandedOver uint64  `json:"handed_over"` // counters sent to other members
	Incomplete int     `json:"incomplete"`  // members that still lack some of their counters
	Seconds    float64 `json:"seconds"`     // since the drain was requested
}

// TapDecision is one line of the answer of GET /v1/tap: a decision about one descriptor.
type TapDecision struct {
	Time       time.Time `json:"time"`
	Member     string    `json:"member"` // the member that received the call
	Domain     string    `json:"domain"`
	Descriptor string    `json:"descriptor"` // k=v,k2=v2
	Rule       string    `json:"rule,omitempty"`
	Hits       int64     `json:"hits"` // negative for a refund
	Code       string    `json:"code"` // OK or OVER_LIMIT

	// The other fields are set if a limit applies.

	Path      string  `json:"path,omitempty"` // local, forwarded, lease or degraded
	Authority string  `json:"authority,omitempty"`
	Owner     string  `json:"owner,omitempty"` // the member that counts the key
	Limit     *uint32 `json:"limit,omitempty"`
	Remaining *uint32 `json:"remaining,omitempty"`
}
