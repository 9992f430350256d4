package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/keyward/keyward/ring"
)

// The protocol versions this build speaks between members; two members need one in common.
const (
	ProtocolMin = 1
	ProtocolMax = 2

	protocolHandover = 2 // the first in which counters move with their keys
)

// Limits of what a member may announce.
const (
	MaxID      = ring.MaxID           // bytes of an ID
	MaxAddress = 128                  // bytes of an announced address
	MaxWeight  = ring.MaxCapacity - 1 // one place stays with the void locality
	maxMeta    = 512                  // bytes of memberlist's node metadata
)

// Role says what a member is in the cluster for. The numbers are part of the gossip format.
type Role uint8

// The roles.
const (
	RoleMember   Role = 0 // counts keys: has a place on the ring
	RoleObserver Role = 1 // only watches: never on the ring, in N_ref, or asked for its rules
)

// MemberState is where a member stands in its life. The numbers are part of the gossip format.
type MemberState uint8

// The states.
const (
	Joining MemberState = 0 // known, not on the ring yet
	Active  MemberState = 1 // on the ring
	Leaving MemberState = 2 // off the ring, still answering: Envoy sees it as draining
)

// String is the state's name in logs, metrics and JSON.
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

// MarshalText lets a State be written as its name.
func (s MemberState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String is the role's name in logs and JSON.
func (r Role) String() string {
	if r == RoleObserver {
		return "observer"
	}
	return "member"
}

// MarshalText lets a Role be written as its name.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Member is one boot of one member, as it announces itself. Addresses are host:port, empty where it offers none.
type Member struct {
	ID           ring.ID
	BootID       uint64 // instance: new at every boot
	Incarnation  uint64 // rises each time the instance joins anew
	Weight       uint32 // places on the ring, at least 1
	Role         Role
	State        MemberState
	StartedAt    int64  // Unix milliseconds, by the member's own clock
	Pod          uint64 // hash of the pod UID; 0 if unknown
	Expect       int    // members it was told to expect; 0 if not told
	NRef         int    // largest ring it remembers (see View.NRef)
	InForce      uint64 // version of the rules it answers by
	Prepared     uint64 // version of the rules it is ready to switch to
	Ring         uint64 // fingerprint of the ring it goes by
	CompleteRing uint64 // fingerprint of the last ring of which it has taken over all that is its own
	Established  bool   // it trusts its place: its cold start is over
	AwaitsTurn   bool   // joining, and ready to go onto the ring as soon as it is its turn
	HandedOff    bool   // leaving, and all that it knew has been handed over
	MetExpected  bool   // it has met as many members as it expects, or an active member that had
	Isolated     bool   // others that were on the ring could not ask it, nor it them, ever since it has started
	RLS          string // rate-limit service, for Envoys in other pods
	Peer         string // questions of other members
	Route        string // where ring-hash routes send users' requests
	Page         string // metrics, API and page

	ProtocolMin, ProtocolMax uint32 // versions it speaks between members

	Gossip string // where memberlist reaches it; not announced, but seen
	Name   string // memberlist's name for this boot; not announced, but seen
}

// completeAddresses completes announced addresses that have a port alone: they are where gossip is.
func (m *Member) completeAddresses(ip netip.Addr) {
	for _, a := range []*string{&m.RLS, &m.Peer, &m.Route, &m.Page} {
		if host, port, err := net.SplitHostPort(*a); err == nil && host == "" {
			*a = net.JoinHostPort(ip.String(), port)
		}
	}
}

// RingMember is the member's place on the ring.
func (m *Member) RingMember() ring.Member {
	return ring.Member{ID: m.ID, BootID: m.BootID, Incarnation: m.Incarnation, Weight: m.Weight}
}

// The gossip format: the byte metaFormat, then fields of (tag, length, value), both numbers as varints. An integer is
// a varint inside its field; a field that is zero is left out. Tags a reader does not know are skipped, so fields may
// be added; a tag's meaning never changes.
const metaFormat = 0x4b

const (
	tagID = iota + 1
	tagInst
	tagVer
	tagWeight
	tagRole
	tagState
	tagBoot
	tagPod
	tagExpect
	tagNRef
	tagInForce
	tagPrepared
	tagRing
	tagRLS
	tagPeer
	tagRoute
	tagPage
	tagProtocolMin
	tagProtocolMax
	tagComplete
	tagFlags
	tagEnd // the first that is not known
)

// Bits of tagFlags.
const (
	flagSettled = 1 << iota
	flagWaits
	flagHanded
	flagMet
	flagOdd
)

func (m *Member) flags() (f uint64) {
	for _, x := range [...]struct {
		set bool
		bit uint64
	}{{m.Established, flagSettled}, {m.AwaitsTurn, flagWaits}, {m.HandedOff, flagHanded}, {m.MetExpected, flagMet}, {m.Isolated, flagOdd}} {
		if x.set {
			f |= x.bit
		}
	}
	return f
}

// encode is m as it is gossiped.
func (m *Member) encode() []byte {
	b := make([]byte, 1, 256)
	b[0] = metaFormat
	b = appendText(b, tagID, string(m.ID))
	b = appendNumber(b, tagInst, m.BootID)
	b = appendNumber(b, tagVer, m.Incarnation)
	b = appendNumber(b, tagWeight, uint64(m.Weight))
	b = appendNumber(b, tagRole, uint64(m.Role))
	b = appendNumber(b, tagState, uint64(m.State))
	b = appendNumber(b, tagBoot, uint64(max(0, m.StartedAt)))
	b = appendNumber(b, tagPod, m.Pod)
	b = appendNumber(b, tagExpect, uint64(max(0, m.Expect)))
	b = appendNumber(b, tagNRef, uint64(max(0, m.NRef)))
	b = appendNumber(b, tagInForce, m.InForce)
	b = appendNumber(b, tagPrepared, m.Prepared)
	b = appendNumber(b, tagRing, m.Ring)
	b = appendText(b, tagRLS, m.RLS)
	b = appendText(b, tagPeer, m.Peer)
	b = appendText(b, tagRoute, m.Route)
	b = appendText(b, tagPage, m.Page)
	b = appendNumber(b, tagProtocolMin, uint64(m.ProtocolMin))
	b = appendNumber(b, tagProtocolMax, uint64(m.ProtocolMax))
	b = appendNumber(b, tagComplete, m.CompleteRing)
	return appendNumber(b, tagFlags, m.flags())
}

func appendText(b []byte, tag uint64, s string) []byte {
	if s == "" {
		return b
	}
	b = binary.AppendUvarint(b, tag)
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendNumber(b []byte, tag, v uint64) []byte {
	if v == 0 {
		return b
	}
	var n [binary.MaxVarintLen64]byte
	return appendText(b, tag, string(n[:binary.PutUvarint(n[:], v)]))
}

var errMeta = errors.New("not a member's metadata")

// decode reads what encode wrote, or what a later version will write. It checks all that others rely on: no member
// it returns can be without an ID, heavier than the ring, or speak no protocol.
func decode(b []byte) (Member, error) {
	var m Member
	if len(b) == 0 || b[0] != metaFormat || len(b) > maxMeta {
		return m, errMeta
	}
	for b = b[1:]; len(b) > 0; {
		tag, value, rest, ok := cutField(b)
		if !ok || !m.setField(tag, value) {
			return Member{}, errMeta
		}
		b = rest
	}
	return m, m.validate()
}

// cutField cuts the first field off b.
func cutField(b []byte) (tag uint64, value, rest []byte, ok bool) {
	tag, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, nil, false
	}
	b = b[n:]
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return 0, nil, nil, false
	}
	b = b[n:]
	return tag, b[:size], b[size:], true
}

// setField takes over one field; false if its value cannot be.
func (m *Member) setField(tag uint64, value []byte) bool {
	switch tag {
	case tagID:
		m.ID = ring.ID(value)
		return true
	case tagRLS:
		return setText(&m.RLS, value)
	case tagPeer:
		return setText(&m.Peer, value)
	case tagRoute:
		return setText(&m.Route, value)
	case tagPage:
		return setText(&m.Page, value)
	}
	if tag >= tagEnd {
		return true
	}
	v, n := binary.Uvarint(value)
	return n > 0 && n == len(value) && m.setNumber(tag, v)
}

func setText(to *string, value []byte) bool {
	*to = string(value)
	return len(value) <= MaxAddress
}

func (m *Member) setNumber(tag, v uint64) bool {
	const small = 1 << 20 // no cluster is larger, and no sum of these overflows
	switch tag {
	case tagInst:
		m.BootID = v
	case tagVer:
		m.Incarnation = v
	case tagWeight:
		m.Weight = uint32(min(v, small))
	case tagRole:
		m.Role = Role(min(v, uint64(RoleObserver))) // a role of a later version is none that counts
	case tagState:
		if v <= uint64(Leaving) { // a state of a later version is not on the ring
			m.State = MemberState(v)
		}
	case tagBoot:
		m.StartedAt = int64(v &^ (1 << 63))
	case tagPod:
		m.Pod = v
	case tagExpect:
		m.Expect = int(min(v, small))
	case tagNRef:
		m.NRef = int(min(v, small))
	case tagInForce:
		m.InForce = v
	case tagPrepared:
		m.Prepared = v
	case tagRing:
		m.Ring = v
	case tagProtocolMin:
		m.ProtocolMin = uint32(min(v, small))
	case tagProtocolMax:
		m.ProtocolMax = uint32(min(v, small))
	case tagComplete:
		m.CompleteRing = v
	case tagFlags:
		m.Established, m.AwaitsTurn = v&flagSettled != 0, v&flagWaits != 0
		m.HandedOff, m.MetExpected, m.Isolated = v&flagHanded != 0, v&flagMet != 0, v&flagOdd != 0
	}
	return true
}

// validate says what makes m unfit to be anybody's member.
func (m *Member) validate() error {
	m.Weight = max(1, m.Weight)
	switch {
	case m.ID == "":
		return errors.New("a member without a name")
	case len(m.ID) > MaxID:
		return fmt.Errorf("a member's name of %d bytes, longer than %d", len(m.ID), MaxID)
	case CheckID(m.ID) != nil:
		return CheckID(m.ID)
	case m.Weight > MaxWeight:
		return fmt.Errorf("member %q: weight %d above %d", m.ID, m.Weight, MaxWeight)
	case m.ProtocolMin == 0 || m.ProtocolMin > m.ProtocolMax:
		return fmt.Errorf("member %q: no protocol version", m.ID)
	}
	return nil
}

// CheckID says what is in a member's name that no member's may hold: a * or a /, which have a meaning in the names of certificates,
// control characters, and bytes that are not UTF-8.
func CheckID(id ring.ID) error {
	unfit := func(r rune) bool { return r == '*' || r == '/' || unicode.IsControl(r) }
	if !utf8.ValidString(string(id)) || strings.ContainsFunc(string(id), unfit) {
		return fmt.Errorf("a member's name %q: it may hold no *, no / and no control characters, and is UTF-8", id)
	}
	return nil
}

// sharesProtocol says whether m and this build have a protocol version in common.
func (m *Member) sharesProtocol() bool {
	return m.ProtocolMin <= ProtocolMax && m.ProtocolMax >= ProtocolMin
}

// SupportsHandoff says whether counters move with their keys when m is one of the two.
func (m *Member) SupportsHandoff() bool { return m.ProtocolMax >= protocolHandover }

// maxEncodedSize is the size m's announcement can grow to.
func (m *Member) maxEncodedSize() int {
	w := *m
	w.BootID, w.Incarnation, w.Pod = 1<<64-1, 1<<32, 1<<64-1
	w.StartedAt = 1<<63 - 1
	w.Expect, w.NRef, w.Weight = 1<<20, 1<<20, MaxWeight
	w.InForce, w.Prepared, w.Ring = 1<<64-1, 1<<64-1, 1<<64-1
	w.CompleteRing, w.Established, w.AwaitsTurn, w.HandedOff, w.MetExpected, w.Isolated = 1<<64-1, true, true, true, true, true
	w.Role, w.State = RoleObserver, Leaving
	return len(w.encode())
}
