package cluster

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// full returns a member with a value in every announced field.
func full() membership.Member {
	return membership.Member{
		ID: "pod-1", BootID: 0x0102030405060708, Incarnation: 3, Weight: 2, Role: membership.RoleMember, State: membership.Active, StartedAt: 1750000000000,
		Pod: 9, Expect: 3, NRef: 5, InForce: 1 << 63, Prepared: 12, Ring: 99,
		Addresses:   membership.Addresses{RLS: "[fd00::1]:8081", Peer: "10.0.0.1:7947", Route: "10.0.0.1:8000", Page: "10.0.0.1:9090"},
		ProtocolMin: 1, ProtocolMax: 2, CompleteRing: 98, Established: true, HandedOff: true, MetExpected: true,
	}
}

func TestAnnouncementGolden(t *testing.T) {
	// Members of other builds read these bytes: they may grow at the end, and never change.
	const want = "4b0105706f642d310209888e98a8c0e0808101030103040102060101070680b883a1f7320801090901030a01050b0a80808080808080808001" +
		"0c010c0d01630e0e5b666430303a3a315d3a383038310f0d31302e302e302e313a37393437100d31302e302e302e313a38303030110d31302e302e302e313a39303930" +
		"12010113010214016215010d"
	m := full()
	if got := hex.EncodeToString(encode(&m)); got != want {
		t.Errorf("encode:\n got %s\nwant %s", got, want)
	}
}

// TestDetectionIsAnnounced requires that a member which uses the default announces what versions without --detection do.
func TestDetectionIsAnnounced(t *testing.T) {
	for d, want := range map[membership.Detection]membership.Detection{
		0: 0, membership.DefaultDetection: 0, membership.MaxDetection: membership.MaxDetection,
	} {
		o := Options{Node: "a", Detection: d}
		m := o.member(3, time.Now())
		m.Weight = 1
		got, err := decode(encode(&m))
		if err != nil || got.Detection != want {
			t.Errorf("%v is announced as %v, %v", d, time.Duration(got.Detection), err)
		}
	}
}

func TestAnnouncementRoundTrip(t *testing.T) {
	law := func(inst, ver, pod, force, prep, fp uint64, weight, state uint8, boot int64, nref uint16, id [9]byte, addr [20]byte,
		size, loaded uint16, loading bool,
	) bool {
		m := full()
		m.ID, m.BootID, m.Incarnation, m.Pod = ring.ID(hex.EncodeToString(id[:])), inst, ver, pod
		m.InForce, m.Prepared, m.Ring = force, prep, fp
		m.Weight, m.State = max(1, uint32(weight)), membership.MemberState(state%3)
		m.StartedAt, m.NRef = max(0, boot), int(nref)
		m.Peer, m.Loading = string(addr[:]), loading
		m.Journals = membership.Journals{Ring: fp, Size: int(size), At: max(0, boot), Loaded: int(loaded)}
		got, err := decode(encode(&m))
		return err == nil && reflect.DeepEqual(got, m)
	}
	if err := quick.Check(law, nil); err != nil {
		t.Error(err)
	}
}

func TestAnnouncementOfALaterVersion(t *testing.T) {
	m := full()
	b := encode(&m)
	b = appendText(b, tagEnd, "something new")
	b = appendNumber(b, 1<<40, 7)
	got, err := decode(b)
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("got %+v, %v", got, err)
	}
	later := full()
	later.Role, later.State = 7, 9
	got, err = decode(encode(&later))
	if err != nil || got.Role != membership.RoleObserver || got.State != membership.Joining {
		t.Errorf("unknown role and state: got %v %v, %v; want an observer, joining", got.Role, got.State, err)
	}
}

func TestAnnouncementRefused(t *testing.T) {
	with := func(change func(*membership.Member)) []byte {
		m := full()
		change(&m)
		return encode(&m)
	}
	good := with(func(*membership.Member) {})
	cut := map[string][]byte{}
	for i := range good[:len(good)-12] {
		cut["cut at "+string(rune('0'+i%10))] = good[:i]
	}
	for name, b := range map[string][]byte{
		"empty":             nil,
		"another format":    append([]byte{0x4c}, good[1:]...),
		"no name":           with(func(m *membership.Member) { m.ID = "" }),
		"a long name":       with(func(m *membership.Member) { m.ID = ring.ID(strings.Repeat("x", membership.MaxID+1)) }),
		"a long address":    with(func(m *membership.Member) { m.RLS = strings.Repeat("x", membership.MaxAddress+1) }),
		"any name":          with(func(m *membership.Member) { m.ID = "*" }),
		"a name's pattern":  with(func(m *membership.Member) { m.ID = "pod-*" }),
		"a path":            with(func(m *membership.Member) { m.ID = "a/b" }),
		"a line break":      with(func(m *membership.Member) { m.ID = "a\nb" }),
		"a NUL":             with(func(m *membership.Member) { m.ID = "a\x00" }),
		"a C1 control":      with(func(m *membership.Member) { m.ID = "a\u0085" }),
		"no UTF-8":          with(func(m *membership.Member) { m.ID = "a\xff" }),
		"too heavy":         with(func(m *membership.Member) { m.Weight = membership.MaxWeight + 1 }),
		"slow to detect":    with(func(m *membership.Member) { m.Detection = membership.MaxDetection * 2 }),
		"fast to detect":    with(func(m *membership.Member) { m.Detection = membership.MinDetection / 2 }),
		"no protocol":       with(func(m *membership.Member) { m.ProtocolMin = 0 }),
		"protocol inverted": with(func(m *membership.Member) { m.ProtocolMin = 5 }),
		"too large":         appendText(good, 99, strings.Repeat("x", maxMeta)),
		"huge length":       append(good[:len(good):len(good)], 99, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),
		"bad number":        appendText(good, tagBootID, "\xff\xff"),
		"trailing in field": appendText(good, tagBootID, "\x01\x01"),
	} {
		if m, err := decode(b); err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
		}
	}
	for name, b := range cut {
		if _, err := decode(b); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestLargestAnnouncementIsAnUpperBound(t *testing.T) {
	m := full()
	m.ID = ring.ID(strings.Repeat("n", membership.MaxID))
	for _, a := range []*string{&m.RLS, &m.Peer, &m.Route, &m.Page} {
		*a = "[2001:0db8:0000:0000:0000:0000:0000:ffff]:65535"
	}
	bound := maxEncodedSize(&m)
	if bound > maxMeta {
		t.Errorf("IPv6 addresses and the longest name need %d bytes, memberlist takes %d", bound, maxMeta)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		m.BootID, m.Pod, m.InForce, m.Prepared, m.Ring = r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64()
		m.NRef, m.State = r.IntN(1<<20), membership.MemberState(r.IntN(3))
		if n := len(encode(&m)); n > bound {
			t.Fatalf("%d bytes, above %d", n, bound)
		}
	}
}

// Only the announcement of a member that loads journals grows, by so little that IPv6 addresses and the longest name
// still fit.
func TestLargestAnnouncementWithJournals(t *testing.T) {
	m := full()
	m.ID = ring.ID(strings.Repeat("n", membership.MaxID))
	for _, a := range []*string{&m.RLS, &m.Peer, &m.Route, &m.Page} {
		*a = "[2001:0db8:0000:0000:0000:0000:0000:ffff]:65535"
	}
	without := maxEncodedSize(&m)
	m.Loading = true
	bound := maxEncodedSize(&m)
	m.Loading = false
	m.Journals = membership.Journals{Ring: 1 << 63, Size: ring.MaxCapacity, At: 1 << 40, Loaded: ring.MaxCapacity}
	if n := len(encode(&m)); n > bound || bound > maxMeta || bound <= without {
		t.Errorf("%d bytes, at most %d of %d; %d without journals", n, bound, maxMeta, without)
	}
}

// Journals are announced at the end, where versions without them skip them. A member without journals announces what
// such a version does.
func TestJournalsInGossip(t *testing.T) {
	m := full()
	before := encode(&m)
	m.Journals = membership.Journals{Ring: 0xabcdef, Size: 3, At: 1750000000, Loaded: 2}
	const want = "1a04ef9baf051b01031c0580c3bbc2061d0102"
	added, ok := bytes.CutPrefix(encode(&m), before)
	if got := hex.EncodeToString(added); !ok || got != want {
		t.Errorf("added %s, want %s", got, want)
	}
	if got, err := decode(before); err != nil || got.Journals != (membership.Journals{}) || got.Loading {
		t.Errorf("of an earlier version: %+v, loading %v, %v", got.Journals, got.Loading, err)
	}
	m.Loading = true
	if got, err := decode(encode(&m)); err != nil || got != m {
		t.Errorf("loading: got %+v, %v", got, err)
	}
	large := appendNumber(appendNumber(before, tagJournalSize, 1<<40), tagJournalLoaded, 1<<63)
	large = appendNumber(appendNumber(large, tagJournalAt, 1<<64-1), tagFlags, 1<<20)
	got, err := decode(large)
	if j := got.Journals; err != nil || j.Size != 1<<20 || j.Loaded != 1<<20 || j.At != 1<<63-1 {
		t.Errorf("limits: %+v, %v", j, err)
	}
	m.Journals.Size, m.Journals.At, m.Journals.Loaded = -1, -1, -1
	if got, err := decode(encode(&m)); err != nil || got.Journals != (membership.Journals{Ring: 0xabcdef}) {
		t.Errorf("negative: %+v, %v", got.Journals, err)
	}
}

// decode never panics. What it accepts is a valid member and survives another round.
func FuzzDecode(f *testing.F) {
	m := full()
	f.Add(encode(&m))
	m.Loading, m.Journals = true, membership.Journals{Ring: 7, Size: 3, At: 1750000000, Loaded: 1}
	f.Add(encode(&m))
	f.Add([]byte{metaFormat})
	f.Add([]byte{metaFormat, 1, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add(appendText(encode(&m), 200, "later"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			return
		}
		if m.ID == "" || len(m.ID) > membership.MaxID || membership.CheckID(m.ID) != nil || m.Weight < 1 ||
			m.Weight > membership.MaxWeight || m.State > membership.Leaving || m.Role > membership.RoleObserver {
			t.Fatalf("accepted %+v", m)
		}
		again, err := decode(encode(&m))
		if err != nil || again != m {
			t.Fatalf("second round: %+v, %v; first %+v", again, err, m)
		}
	})
}

func TestCompleteAddresses(t *testing.T) {
	m := membership.Member{Addresses: membership.Addresses{RLS: ":8082", Peer: "10.0.0.1:7947"}}
	completeAddresses(&m, netip.MustParseAddr("fd00::1"))
	if m.RLS != "[fd00::1]:8082" || m.Peer != "10.0.0.1:7947" || m.Route != "" || m.Page != "" {
		t.Errorf("%+v", m)
	}
}

// A member announces its zone. Without one, its announcement has no more bytes.
func TestZoneInGossip(t *testing.T) {
	m := membership.Member{ID: "a", BootID: 1, ProtocolMin: 1, ProtocolMax: 2, Zone: strings.Repeat("z", membership.MaxZone)}
	if got, err := decode(encode(&m)); err != nil || got.Zone != m.Zone || got.RingMember().Zone != m.Zone {
		t.Errorf("zone %q, %v", got.Zone, err)
	}
	m.Zone += "z"
	if _, err := decode(encode(&m)); err == nil {
		t.Error("a zone that is too long is accepted")
	}
	with := len(encode(&m))
	if m.Zone = ""; with-len(encode(&m)) != membership.MaxZone+3 {
		t.Errorf("%d bytes with a zone of 64, %d without", with, len(encode(&m)))
	}
}
