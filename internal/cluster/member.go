package cluster

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/ring"
)

// completeAddresses adds ip to the announced addresses that have a port only.
func completeAddresses(m *membership.Member, ip netip.Addr) {
	for _, a := range []*string{&m.RLS, &m.Peer, &m.Route, &m.Page, &m.RingHost} {
		if host, port, err := net.SplitHostPort(*a); err == nil && host == "" {
			*a = net.JoinHostPort(ip.String(), port)
		}
	}
}

// The gossip format is the byte metaFormat, followed by fields of (tag, length, value), with varints for the first
// two. An integer is a varint inside its field. A field that is zero is omitted. Readers skip unknown tags, so that
// fields may be added; the meaning of a tag never changes.
const (
	metaFormat = 0x4b
	maxMeta    = 512 // bytes of memberlist's node metadata
)

const (
	tagID = iota + 1
	tagBootID
	tagIncarnation
	tagWeight
	tagRole
	tagState
	tagStartedAt
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
	tagCompleteRing
	tagFlags
	tagDetection // in milliseconds
	tagRingParameters
	tagRingHost
	tagZone
	tagJournalRing
	tagJournalSize
	tagJournalAt // in Unix seconds
	tagJournalLoaded
	tagEnd // the first unknown tag
)

// Bits of tagFlags.
const (
	flagEstablished = 1 << iota
	flagAwaitsTurn
	flagHandedOff
	flagMetExpected
	flagIsolated
	flagLoading
)

func flagsOf(m *membership.Member) (f uint64) {
	for _, x := range [...]struct {
		set bool
		bit uint64
	}{
		{m.Established, flagEstablished}, {m.AwaitsTurn, flagAwaitsTurn}, {m.HandedOff, flagHandedOff},
		{m.MetExpected, flagMetExpected}, {m.Isolated, flagIsolated}, {m.Loading, flagLoading},
	} {
		if x.set {
			f |= x.bit
		}
	}
	return f
}

// encode returns m in the gossip format.
func encode(m *membership.Member) []byte {
	b := make([]byte, 1, 256)
	b[0] = metaFormat
	b = appendText(b, tagID, string(m.ID))
	b = appendNumber(b, tagBootID, m.BootID)
	b = appendNumber(b, tagIncarnation, m.Incarnation)
	b = appendNumber(b, tagWeight, uint64(m.Weight))
	b = appendNumber(b, tagRole, uint64(m.Role))
	b = appendNumber(b, tagState, uint64(m.State))
	b = appendNumber(b, tagStartedAt, uint64(max(0, m.StartedAt)))
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
	b = appendNumber(b, tagCompleteRing, m.CompleteRing)
	b = appendNumber(b, tagFlags, flagsOf(m))
	b = appendNumber(b, tagDetection, uint64(time.Duration(m.Detection).Milliseconds()))
	if m.RingParameters.Envoy {
		b = appendText(b, tagRingParameters, m.RingParameters.String())
	}
	b = appendText(b, tagRingHost, m.RingHost)
	b = appendText(b, tagZone, m.Zone)
	return appendJournals(b, &m.Journals)
}

func appendJournals(b []byte, j *membership.Journals) []byte {
	b = appendNumber(b, tagJournalRing, j.Ring)
	b = appendNumber(b, tagJournalSize, uint64(max(0, j.Size)))
	b = appendNumber(b, tagJournalAt, uint64(max(0, j.At)))
	return appendNumber(b, tagJournalLoaded, uint64(max(0, j.Loaded)))
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

var errMeta = errors.New("malformed member metadata")

// decode parses what encode of this version or a later one has returned. It validates everything that other members
// rely on: a member that it returns has an ID, a weight that fits the ring, and a protocol version.
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
	case tagRingHost:
		return setText(&m.RingHost, value)
	case tagZone:
		m.Zone = string(value.Rest())
		return len(m.Zone) <= membership.MaxZone
	case tagRingParameters:
		// Parameters of a later version are read as invalid ones, which no other member has.
		p, err := ring.ParseParameters(string(value.Rest()))
		if err != nil || p.Validate() != nil {
			p = ring.Parameters{Envoy: true}
		}
		m.RingParameters = p
		return true
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
	const small = 1 << 20 // no cluster is larger, and sums of such numbers do not overflow
	switch tag {
	case tagBootID:
		m.BootID = v
	case tagIncarnation:
		m.Incarnation = v
	case tagWeight:
		m.Weight = uint32(min(v, small))
	case tagRole:
		m.Role = membership.Role(min(v, uint64(membership.RoleObserver))) // a role of a later version owns no keys
	case tagState:
		if v <= uint64(membership.Leaving) { // a state of a later version is not on the ring
			m.State = membership.MemberState(v)
		}
	case tagStartedAt:
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
	case tagCompleteRing:
		m.CompleteRing = v
	case tagDetection:
		m.Detection = membership.Detection(time.Duration(min(v, small)) * time.Millisecond)
	case tagFlags:
		m.Established, m.AwaitsTurn = v&flagEstablished != 0, v&flagAwaitsTurn != 0
		m.HandedOff, m.MetExpected, m.Isolated = v&flagHandedOff != 0, v&flagMetExpected != 0, v&flagIsolated != 0
		m.Loading = v&flagLoading != 0
	case tagJournalRing:
		m.Journals.Ring = v
	case tagJournalSize:
		m.Journals.Size = int(min(v, small))
	case tagJournalAt:
		m.Journals.At = int64(v &^ (1 << 63))
	case tagJournalLoaded:
		m.Journals.Loaded = int(min(v, small))
	}
}

// maxEncodedSize returns the largest size that m's announcement can reach. Only a member that is loading when it starts
// announces journals later.
func maxEncodedSize(m *membership.Member) int {
	w := *m
	w.BootID, w.Incarnation, w.Pod = 1<<64-1, 1<<32, 1<<64-1
	w.StartedAt = 1<<63 - 1
	w.Expect, w.NRef, w.Weight = 1<<20, 1<<20, membership.MaxWeight
	w.InForce, w.Prepared, w.Ring = 1<<64-1, 1<<64-1, 1<<64-1
	w.CompleteRing, w.Established, w.AwaitsTurn, w.HandedOff = 1<<64-1, true, true, true
	w.MetExpected, w.Isolated, w.Detection = true, true, membership.MaxDetection
	w.Role, w.State = membership.RoleObserver, membership.Leaving
	if m.Loading {
		w.Journals = membership.Journals{Ring: 1<<64 - 1, Size: 1 << 20, At: 1<<63 - 1, Loaded: 1 << 20}
	}
	return len(encode(&w))
}
