package api

import (
	"errors"
	"fmt"
	"time"

	"github.com/keyward/keyward/hotkey"
)

// HotKeys is the answer of GET /v1/hotkeys: the keys of one member that are hot or leased, and the routes of all
// members.
//
// This document, HeldLeases, the timeline, the page built from them and the admin socket are the only places that
// show keys to a reader who does not already know them.
type HotKeys struct {
	Member string         `json:"member"`
	Keys   []HotKeyStatus `json:"keys"`
	Routes []HotRoute     `json:"routes"`
	Envoys []HotEnvoy     `json:"envoys,omitempty"` // that use the xDS server of this member
}

// HotEnvoy is an Envoy, and what it takes from xDS for hot keys.
type HotEnvoy struct {
	Node    string   `json:"node"`
	Routes  bool     `json:"routes"`  // all of its routes (--hot-routes): it spreads and caps
	Spreads bool     `json:"spreads"` // the filter that spreads (--hot-filters)
	Caps    []string `json:"caps"`    // the domains whose keys it caps by a filter (--hot-filters)
}

// HotRelief states whether a kind of relief is possible for a key, whatever the Envoys do.
type HotRelief struct {
	Kind string `json:"kind"`           // lease, split, cap or quota
	Why  string `json:"why,omitempty"`  // why it is not possible; empty: it is
	With string `json:"with,omitempty"` // hot-filters: Envoys with hot routes cannot
}

// HotKeyStatus is a hot or leased key at its owner.
type HotKeyStatus struct {
	Domain      string        `json:"domain"`       // empty until a member has reported the name
	Name        string        `json:"name"`         // the descriptor, as k=v,k2=v2
	OwnerString string        `json:"owner_string"` // the x-keyward-key header of its requests
	Digest      string        `json:"digest"`
	Position    string        `json:"position"` // on the ring: the hash of OwnerString
	Rate        float64       `json:"rate"`     // requests per second to all members
	OwnRate     float64       `json:"own_rate"` // of these, requests that the owner decides itself
	Hot         bool          `json:"hot"`
	Since       *time.Time    `json:"since,omitempty"` // when it became hot
	Limit       uint32        `json:"limit"`
	Window      string        `json:"window"`
	Used        uint64        `json:"used"` // hits that count against the limit, with those that are lent
	Lent        uint64        `json:"lent"` // hits of Used that holders may not have spent
	Splittable  bool          `json:"splittable"`
	Holders     []LeaseHolder `json:"holders,omitempty"`
	Relief      []HotRelief   `json:"relief,omitempty"` // of a hot key with a known name
}

// LeaseHolder is a member that holds a lease on a key.
type LeaseHolder struct {
	Member string    `json:"member"`
	Lent   uint64    `json:"lent"`
	Demand float64   `json:"demand"` // hits per second requested at this member
	Asked  time.Time `json:"asked"`  // its last request for a grant
}

// HotRoute is the route of one hot key.
type HotRoute struct {
	Domain      string        `json:"domain"`
	Name        string        `json:"name"`
	OwnerString string        `json:"owner_string"`
	Mode        HotMode       `json:"mode"`
	Manual      bool          `json:"manual"` // ordered by an operator
	By          string        `json:"by"`     // the member that announces it
	Since       time.Time     `json:"since"`
	SubKeys     []RouteSubKey `json:"sub_keys,omitempty"`
	// Quota is the state of a key whose mode is quota at the Envoy of this sidecar: QuotaSwitched, QuotaPriming, or "" if
	// the sidecar primes none.
	Quota string `json:"quota,omitempty"`
}

// States of keys whose limit Envoys spend while they are hot.
const (
	QuotaSwitched = "switched" // the Envoy spends the limit without calls
	QuotaPriming  = "priming"  // it calls, until it has an assignment
)

// RouteSubKey is a sub-key and the member that counts it.
type RouteSubKey struct {
	Key    string `json:"key"`
	Member string `json:"member"`
}

// HeldLeases is the answer of GET /v1/leases: the leases that one member holds.
type HeldLeases struct {
	Member string      `json:"member"`
	Keys   []HeldLease `json:"keys"`
}

// HeldLease is a lease on one key, as its holder sees it.
type HeldLease struct {
	Domain      string    `json:"domain"`
	Name        string    `json:"name"`
	OwnerString string    `json:"owner_string"`
	Digest      string    `json:"digest"`
	Owner       string    `json:"owner"` // the member that granted it
	Mechanism   string    `json:"mechanism"`
	Left        uint64    `json:"left"`   // hits not spent
	Have        uint64    `json:"have"`   // hits granted in this window
	Demand      float64   `json:"demand"` // hits per second requested here
	Denied      bool      `json:"denied"` // the limit is used up: requests are refused here until Expires
	Expires     time.Time `json:"expires"`
}

// HotMode is a hotkey.Mode with a name in JSON.
type HotMode hotkey.Mode

func hotModes() [6]string { return [6]string{"clear", "cap", "pin", "split", "never", "quota"} } // by hotkey.Mode

func (m HotMode) String() string {
	if names := hotModes(); int(m) < len(names) {
		return names[m]
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// MarshalText implements encoding.TextMarshaler.
func (m HotMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *HotMode) UnmarshalText(text []byte) error {
	for i, name := range hotModes() {
		if name == string(text) {
			*m = HotMode(i)
			return nil
		}
	}
	return fmt.Errorf("mode %q, want one of %v", text, hotModes())
}

// HotOrder is the body of POST /hot: the route of one key from now on, whether the key is measured as hot or not.
// Either OwnerString or Descriptor names the key.
type HotOrder struct {
	Domain      string         `json:"domain"`
	OwnerString string         `json:"owner_string,omitempty"`
	Descriptor  *KeyDescriptor `json:"descriptor,omitempty"`
	Mode        *HotMode       `json:"mode"`
	Members     int            `json:"members,omitempty"` // of a split, at most hotkey.MaxSubKeys; 0: as the key's rule says
}

// Validate returns all faults of o, joined.
func (o *HotOrder) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(o.Domain == "", "domain is missing")
	fault(o.Mode == nil, "mode is missing, one of %v", hotModes())
	fault((o.OwnerString == "") == (o.Descriptor == nil), "name the key by owner_string or by descriptor")
	if d := o.Descriptor; d != nil {
		fault(len(d.Entries) == 0 || len(d.Entries) > MaxEntries, "%d entries in the descriptor, want 1 to %d", len(d.Entries), MaxEntries)
	}
	split := o.Mode != nil && hotkey.Mode(*o.Mode) == hotkey.Spread
	fault(o.Members != 0 && !split, "members applies to a split only")
	fault(o.Members < 0 || o.Members == 1 || o.Members > hotkey.MaxSubKeys, "%d members, want 2 to %d", o.Members, hotkey.MaxSubKeys)
	return errors.Join(errs...)
}
