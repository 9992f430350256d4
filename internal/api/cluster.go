// Package api declares the JSON documents of the admin endpoints: GET /cluster, the API below /v1/, and the admin
// socket's /status, /drain, /hot, /reset and /v1/tap. The server (internal/admin) and all of its clients use these
// types.
//
// Fields are only ever added: a command must understand the answer of a member of an older or newer version.
package api

import "time"

// ClusterStatus is the answer of GET /cluster: one member's view of the cluster.
type ClusterStatus struct {
	Self       string `json:"self"`    // name of the member that answers
	Inst       string `json:"inst"`    // its boot ID
	Label      string `json:"cluster"` // --cluster
	Version    string `json:"version"` // of the program
	Joined     bool   `json:"joined"`
	Problem    string `json:"problem,omitempty"` // why the member is not on the ring
	Cause      string `json:"cause,omitempty"`   // of Problem: lookup, gossip, streams, rival, full, host or flaps
	Standalone bool   `json:"standalone"`        // without --join
	NRef       int    `json:"n_ref"`

	Ring        RingStatus     `json:"ring"`
	Members     []MemberStatus `json:"members"`
	Rules       RulesStatus    `json:"rules"`
	Unreachable []Unreachable  `json:"unreachable,omitempty"` // members without a working stream for some seconds
	XDS         any            `json:"xds,omitempty"`         // status of the xDS server of this process, if it has one
}

// RingStatus describes the ring that a member uses.
type RingStatus struct {
	Fingerprint  string   `json:"fingerprint"`
	Members      []string `json:"members"`
	Disagreement int      `json:"disagreement"`         // number of live members that announce another fingerprint
	Parameters   string   `json:"parameters,omitempty"` // of a ring with Envoy's parameters: envoy/MIN/MAX/HASH
	Differ       []string `json:"differ,omitempty"`     // active members that are configured for another kind of ring (--ring)
}

// Unreachable is a member with which the answering member cannot exchange requests.
type Unreachable struct {
	Member string `json:"member"`
	Reason string `json:"reason"`
}

// MemberStatus is one live member or observer.
type MemberStatus struct {
	ID       string `json:"id"`
	Inst     string `json:"inst"`  // boot ID
	State    string `json:"state"` // joining, active or leaving
	Role     string `json:"role"`  // member or observer
	Weight   uint32 `json:"weight"`
	RingHost string `json:"ring_host,omitempty"` // --ring-host
	Zone     string `json:"zone,omitempty"`      // --zone
	Gossip   string `json:"gossip,omitempty"`
	Peer     string `json:"peer,omitempty"`
	RLS      string `json:"rls,omitempty"`
	Route    string `json:"route,omitempty"`
	Page     string `json:"page,omitempty"`     // host:port of its admin endpoints
	Ring     string `json:"ring"`               // fingerprint that it announces
	Protocol string `json:"protocol,omitempty"` // versions of the peer protocol that it supports, as min-max
	// Detection is its detection time (--detection), or empty if it has announced none: the default.
	Detection string `json:"detection,omitempty"`
	Complete  string `json:"complete,omitempty"` // last ring for which it has received all of its counters
	Rules     struct {
		InForce  string `json:"in_force"`
		Prepared string `json:"prepared"`
	} `json:"rules"`
}

// RulesStatus lists the versions of the rules, newest first.
type RulesStatus struct {
	InForce      string         `json:"in_force"`
	Prepared     string         `json:"prepared"`
	Disagreement int            `json:"disagreement"` // number of live members with another version in force
	LastError    string         `json:"last_error,omitempty"`
	Versions     []RulesVersion `json:"versions"`
}

// RulesVersion is one of the last ten versions.
type RulesVersion struct {
	Hash     string    `json:"hash"`
	Source   string    `json:"source"`
	State    string    `json:"state"`            // prepared, in force, past, or replaced before it came into force
	Reason   string    `json:"reason,omitempty"` // why it came into force: first, agreed or timeout
	Prepared time.Time `json:"prepared"`
	InForce  time.Time `json:"in_force,omitzero"`
	Until    time.Time `json:"until,omitzero"` // when the next version replaced it
}
