package cluster

import (
	"errors"
	"net"
	"net/netip"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/ring"
)

// completeAddresses completes announced addresses that have a port alone: they are where gossip is.
func completeAddresses(m *membership.Member, ip netip.Addr) {
	for _, a := range []*string{&m.RLS, &m.Peer, &m.Route, &m.Page} {
		if host, port, err := net.SplitHostPort(*a); err == nil && host == "" {
			*a = net.JoinHostPort(ip.String(), port)
		}
	}
}

// The gossip format: the byte metaFormat, then fields of (tag, length, value), both numbers as varints. An integer is
// a varint inside its field; a field that is zero is left out. Tags a reader does not know are skipped, so fields may
// be added; a tag's meaning never changes.
const (
	metaFormat = 0x4b
	maxMeta    = 512 // bytes of memberlist's node metadata
)

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

func flagsOf(m *membership.Member) (f uint64) {
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
func encode(m *membership.Member) []byte {
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
	return appendNumber(b, tagFlags, flagsOf(m))
}

func appendText(b []byte, tag uint64, s string) []byte {
	if s == "" {
		return b
	}
	return wire.Writer(b).Uvarint(tag).Uvarint(uint64(len(s))).String(s)
}

func appendNumber(b []byte, tag, v uint64) []byte {
	if v == 0 {
		return b
	}
	return appendText(b, tag, string(wire.Writer(make([]byte, 0, 10)).Uvarint(v)))
}

var errMeta = errors.New("not a member's metadata")

// decode reads what encode wrote, or what a later version will write. It checks all that others rely on: no member
// it returns can be without an ID, heavier than the ring, or speak no protocol.
func decode(b []byte) (membership.Member, error) {
	var m membership.Member
	r := wire.NewReader(b)
	if r.U8() != metaFormat || len(b) > maxMeta {
		return m, errMeta
	}
	for r.Len() > 0 {
		tag := r.Uvarint()
		value := r.Record(int(r.Uvarint()))
		if r.Err() != nil || !setField(&m, tag, value) {
			return membership.Member{}, errMeta
		}
	}
	return m, m.Validate()
}

// setField sets the field with the given tag. It returns false if the value is invalid.
func setField(m *membership.Member, tag uint64, value wire.Reader) bool {
	switch tag {
	case tagID:
		m.ID = ring.ID(value.Rest())
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
	v := value.Uvarint()
	if value.Err() != nil || value.Len() > 0 {
		return false
	}
	setNumber(m, tag, v)
	return true
}

func setText(to *string, value wire.Reader) bool {
	*to = string(value.Rest())
	return len(*to) <= membership.MaxAddress
}

func setNumber(m *membership.Member, tag, v uint64) {
	const small = 1 << 20 // no cluster is larger, and no sum of these overflows
	switch tag {
	case tagInst:
		m.BootID = v
	case tagVer:
		m.Incarnation = v
	case tagWeight:
		m.Weight = uint32(min(v, small))
	case tagRole:
		m.Role = membership.Role(min(v, uint64(membership.RoleObserver))) // a role of a later version is none that counts
	case tagState:
		if v <= uint64(membership.Leaving) { // a state of a later version is not on the ring
			m.State = membership.MemberState(v)
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
}

// maxEncodedSize is the size m's announcement can grow to.
func maxEncodedSize(m *membership.Member) int {
	w := *m
	w.BootID, w.Incarnation, w.Pod = 1<<64-1, 1<<32, 1<<64-1
	w.StartedAt = 1<<63 - 1
	w.Expect, w.NRef, w.Weight = 1<<20, 1<<20, membership.MaxWeight
	w.InForce, w.Prepared, w.Ring = 1<<64-1, 1<<64-1, 1<<64-1
	w.CompleteRing, w.Established, w.AwaitsTurn, w.HandedOff, w.MetExpected, w.Isolated = 1<<64-1, true, true, true, true, true
	w.Role, w.State = membership.RoleObserver, membership.Leaving
	return len(encode(&w))
}
