package membership

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/keyward/keyward/ring"
)

// The protocol versions that this build uses between members. Two members need one in common.
const (
	ProtocolMin = 1
	ProtocolMax = 3

	ProtocolHandoff = 2 // the first version in which counters move with their keys
	ProtocolHolds   = 3 // the first version with holds
)

// Limits of what a member may announce.
const (
	MaxID      = ring.MaxID           // bytes of an ID
	MaxAddress = 128                  // bytes of an address
	MaxZone    = 63                   // bytes of a zone: the longest value of a Kubernetes label
	MaxWeight  = ring.MaxCapacity - 1 // Envoy's empty locality takes one place on the ring
)

// Role distinguishes the members that own keys from observers. The numbers are part of the gossip format.
type Role uint8

// The roles.
const (
	RoleMember   Role = 0 // owns keys and has a place on the ring
	RoleObserver Role = 1 // only watches: it is never on the ring, in N_ref or in the agreement on rules
)

// String returns the role's name in logs and JSON.
func (r Role) String() string {
	if r == RoleObserver {
		return "observer"
	}
	return "member"
}

// MarshalText implements encoding.TextMarshaler.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// MemberState is the state of a live member. The numbers are part of the gossip format.
type MemberState uint8

// The states.
const (
	Joining MemberState = 0 // known to the others, not on the ring yet
	Active  MemberState = 1 // on the ring
	Leaving MemberState = 2 // off the ring, still answering; Envoy sees it as draining
)

// String returns the state's name in logs, metrics and JSON.
func (s MemberState) String() string {
	switch s {
	case Active:
		return "active"
	case Leaving:
		return "leaving"
	default:
		return "joining"
	}
}

// MarshalText implements encoding.TextMarshaler.
func (s MemberState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Addresses are where a member listens, each host:port, or empty where it does not.
type Addresses struct {
	RLS   string // rate limit service, for Envoys in other pods
	Peer  string // requests and messages of other members
	Route string // HTTP requests that a ring-hash route sends to it
	Page  string // metrics, API and page
}

// Journals describes the journals that a member has loaded from its data directory. The zero value means none.
type Journals struct {
	Ring   uint64 // fingerprint of the newest complete ring that one of the loaded journals names; 0: none
	Size   int    // members of that ring, each of which has written a journal
	At     int64  // when that ring was complete, in Unix seconds by the clock of the member that wrote the journal
	Loaded int    // how many of the Size journals this member has loaded
}

// Member is one boot of one member, as it announces itself.
type Member struct {
	ID          ring.ID
	BootID      uint64 // differs between two boots of one member
	Incarnation uint64 // rises each time this boot joins again
	Weight      uint32 // places on the ring, at least 1
	Role        Role
	State       MemberState
	StartedAt   int64     // Unix milliseconds, by the member's own clock
	Pod         uint64    // hash of the pod's UID; 0 if unknown
	Expect      int       // members that it was configured to expect; 0 if it was not
	Detection   Detection // its detection time; 0: the default, which is not announced
	NRef        int       // the largest ring that it remembers; see View.NRef

	InForce  uint64 // version of the rules that it uses
	Prepared uint64 // version of the rules that it is ready to switch to

	Ring         uint64 // fingerprint of the ring that it uses
	CompleteRing uint64 // fingerprint of the last ring on which it has taken over all of its keys
	Established  bool   // its cold start is over, so it trusts its own ring
	AwaitsTurn   bool   // joining, and ready to go onto the ring when its turn comes
	HandedOff    bool   // leaving, and others hold everything that it held
	MetExpected  bool   // it has met as many members as it expects, or an active member that had
	Isolated     bool   // since its start, it has had no streams with the members that were on the ring
	Loading      bool   // it is still loading journals, and takes no place on the ring until it has loaded them

	Journals Journals // the journals that it has loaded; the zero value while it is loading

	RingParameters ring.Parameters // the ring that it is configured to use, which it uses if all active members agree
	RingHost       string          // its host on a ring with Envoy's parameters; empty: the ID
	Zone           string          // the zone that it runs in; empty: unknown

	Addresses

	ProtocolMin, ProtocolMax uint32 // the protocol versions that it supports

	Gossip string // address of its gossip, as memberlist sees it; not announced
	Name   string // memberlist's name of this boot; not announced

	// NoHandoff is set by package peer while the last stream to the member had a protocol version without handoff;
	// not announced.
	NoHandoff bool
}

// IsActive reports whether m has a place on the ring: observers do not.
func (m *Member) IsActive() bool { return m.Role == RoleMember && m.State == Active }

// RingMember returns the member's place on the ring.
func (m *Member) RingMember() ring.Member {
	return ring.Member{
		ID: m.ID, BootID: m.BootID, Incarnation: m.Incarnation, Weight: m.Weight, Host: m.RingHost, Zone: m.Zone,
	}
}

// SharesProtocol reports whether m and this build have a protocol version in common.
func (m *Member) SharesProtocol() bool {
	return m.ProtocolMin <= ProtocolMax && m.ProtocolMax >= ProtocolMin
}

// SupportsHandoff reports whether m announces a protocol version with which counters move with their keys. NoHandoff
// states whether it uses one.
func (m *Member) SupportsHandoff() bool { return m.ProtocolMax >= ProtocolHandoff }

// Validate returns an error if other members could not work with m. It sets a weight of 0 to 1.
func (m *Member) Validate() error {
	m.Weight = max(1, m.Weight)
	switch {
	case m.ID == "":
		return errors.New("member without a name")
	case len(m.ID) > MaxID:
		return fmt.Errorf("member name of %d bytes: at most %d are allowed", len(m.ID), MaxID)
	case CheckID(m.ID) != nil:
		return CheckID(m.ID)
	case m.Weight > MaxWeight:
		return fmt.Errorf("member %q: weight %d above %d", m.ID, m.Weight, MaxWeight)
	case m.ProtocolMin == 0 || m.ProtocolMin > m.ProtocolMax:
		return fmt.Errorf("member %q: no protocol version", m.ID)
	}
	if err := m.Detection.Validate(); err != nil {
		return fmt.Errorf("member %q: detection: %w", m.ID, err)
	}
	return nil
}

// CheckID returns an error if a member's name contains what no name may: * or /, which have a meaning in the names of
// certificates, control characters, or bytes that are not UTF-8.
func CheckID(id ring.ID) error {
	refused := func(r rune) bool { return r == '*' || r == '/' || unicode.IsControl(r) }
	if !utf8.ValidString(string(id)) || strings.ContainsFunc(string(id), refused) {
		return fmt.Errorf("member name %q: must be UTF-8 without *, / and control characters", id)
	}
	return nil
}
