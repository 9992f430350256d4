package peer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// sampleLease returns a lease message of kind k with every field distinct.
func sampleLease(k lease.BatchKind) lease.Batch {
	key := [2]uint64{0x0102030405060708, 0x1112131415161718}
	state := limit.State{TAT: -7, Slots: []limit.Slot{{Writer: 5, At: -3, Charged: 1},
		{Writer: 9, At: -3, Charged: 2, Refunded: 1}}}
	m := lease.Batch{Kind: k}
	switch k {
	case lease.Ask:
		m.Requests = []lease.GrantRequest{
			{
				Key: key, RingPos: 0x2122232425262728, Domain: 0x3132333435363738, Seq: 0x4142434445464748,
				Window: 0x5152535455565758,
				Have:   0x6162636465666768, Left: 0x7172737475767778, Demand: 0x8182838485868788, Want: true,
				State: state, Name: "d\x00k=v\x00v",
				Rule: limit.Rule{Window: time.Hour, Limit: 0x91929394, Burst: 0xa1a2a3a4, Algorithm: limit.TokenBucket},
				Terms: lease.Terms{
					Min: 0xb1b2b3b4, Max: 0xc1c2c3c4, TTL: time.Minute, Sync: time.Second, Weight: 0xd1d2d3d4,
					Slack:     0xe1e2e3e4,
					Watermark: 0x71, ReclaimCrash: true, SubKeys: 0xf2, Dedicated: true, Reclaim: true, Audit: true, Uncapped: true,
				},
			},
			{Key: [2]uint64{1, 2}, Rule: limit.Rule{Window: time.Second, Limit: 3}},
		}
	case lease.Lend:
		m.Grants = []lease.Grant{
			{
				Key: key, Seq: 0x2122232425262728, Window: 0x3132333435363738, Total: 0x4142434445464748,
				Used:  0x5152535455565758,
				Limit: 0x61626364, Left: time.Hour, Flags: lease.Hot | lease.Denied, State: state,
			},
			{Key: [2]uint64{1, 2}},
		}
	case lease.Notify:
		m.Notices = []lease.Notice{
			{Key: key, Window: 0x2122232425262728, Limit: 0x31323334, Left: time.Hour, Kind: lease.Deny},
			{Key: [2]uint64{1, 2}, Kind: lease.Cool},
		}
	}
	return m
}

// sampleLeaseRequest returns a request with all fields that leases have added.
func sampleLeaseRequest() []byte {
	q := owner.Request{
		Key: owner.Key{1, 2}, RingPos: 3, Hits: 4, Rule: limit.Rule{Window: time.Second, Limit: 5},
		Mechanism: policy.ByLease, HotFactor: 0x0102,
	}
	return appendRequests(nil, requestGroup{id: 7, sent: 9, ttl: time.Millisecond, count: 1}, []owner.Request{q},
		[]uint16{0})
}

func TestGoldenLeases(t *testing.T) {
	hot := server{results: []owner.Result{{Kind: owner.Decided, Path: owner.Forwarded, Hot: true}}}
	hot.reply(7, groupServed)
	samples := map[string][]byte{"lease-request": sampleLeaseRequest(), "hot-reply": hot.out}
	for k := lease.Ask; k <= lease.Notify; k++ {
		m := sampleLease(k)
		b, err := appendLease(nil, &m, 0x0a0b0c0d0e0f1011, new(counterwire.Writers))
		if err != nil {
			t.Fatal(err)
		}
		samples[fmt.Sprintf("lease-%d", k)] = b
	}
	golden(t, samples)
}

// An owner of version 2 that does not support leases decides such requests itself.
func TestLeaseRequest(t *testing.T) {
	record := firstRecord(t, sampleLeaseRequest())
	for size, want := range map[int]owner.Request{
		len(record):     {Mechanism: policy.ByLease, HotFactor: 0x0102},
		requestSize + 1: {Mechanism: policy.ByLease},
		requestSize:     {},
	} {
		var q owner.Request
		if o, err := parseRequest(wire.NewReader(record[:size]), &q); err != nil || o != groupServed ||
			q.Mechanism != want.Mechanism || q.HotFactor != want.HotFactor {
			t.Errorf("%d bytes: %+v, %d, %v", size, q, o, err)
		}
	}
	if m := record[70]; m != byte(policy.ByOwner) {
		t.Errorf("mechanism %d in the field that all versions refuse to guess", m)
	}
}

func leasePayload(t testing.TB, m *lease.Batch) (lease.BatchKind, []byte) {
	t.Helper()
	b, err := appendLease([]byte("before"), m, 77, new(counterwire.Writers))
	if err != nil {
		t.Fatal(err)
	}
	typ, payload, rest, whole, err := nextFrame(b[len("before"):])
	k, known := leaseKind(typ)
	if err != nil || !whole || len(rest) != 0 || !known || k != m.Kind {
		t.Fatal(typ, rest, whole, err)
	}
	if _, isMsg := msgKind(typ); isMsg {
		t.Fatalf("type %d is a handoff message, too", typ)
	}
	return k, payload
}

func TestLeaseRoundTrip(t *testing.T) {
	var r leaseReader
	for range 2 { // the second into the memory of the first
		for k := lease.Ask; k <= lease.Notify; k++ {
			m := sampleLease(k)
			k, payload := leasePayload(t, &m)
			got, sent, err := r.parse(k, payload)
			if err != nil || sent != 77 {
				t.Fatal(sent, err)
			}
			if fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", m) {
				t.Fatalf("got  %+v\nwant %+v", *got, m)
			}
		}
	}
}

// A rule's policy for partitions shares a byte with the other flags.
func TestLeasePartition(t *testing.T) {
	for _, p := range []policy.Partition{policy.PartShare, policy.PartAvailable, policy.PartQuorum} {
		m := sampleLease(lease.Ask)
		for i := range m.Requests {
			m.Requests[i].Terms.Partition = policy.Choose(p)
		}
		var r leaseReader
		k, payload := leasePayload(t, &m)
		got, _, err := r.parse(k, payload)
		if err != nil {
			t.Fatal(err)
		}
		for i := range m.Requests {
			if got.Requests[i].Terms != m.Requests[i].Terms {
				t.Errorf("%s: got %+v\nwant %+v", p, got.Requests[i].Terms, m.Requests[i].Terms)
			}
		}
	}
}

// A message that is truncated anywhere or has wrong counts is an error. Additional bytes behind its parts are not.
func TestLeaseMalformed(t *testing.T) {
	var r leaseReader
	for k := lease.Ask; k <= lease.Notify; k++ {
		m := sampleLease(k)
		_, whole := leasePayload(t, &m)
		for n := range whole {
			if _, _, err := r.parse(k, whole[:n:n]); err == nil {
				t.Errorf("kind %d: %d of %d bytes were read", k, n, len(whole))
			}
		}
		first := 2 + leaseHead + 2
		if k != lease.Notify {
			first += 2 * 8 // writers
		}
		n := int(le.Uint32(whole[first:]))
		later := le.AppendUint32(bytes.Clone(whole[:first]), uint32(n)+3)
		later = append(append(append(later, whole[first+4:first+4+n]...), "new"...), whole[first+4+n:]...)
		if got, _, err := r.parse(k, append(later, "of a later version"...)); err != nil ||
			fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", m) {
			t.Errorf("kind %d, with a later version's field: %v", k, err)
		}
		first += 4
		for name, x := range map[string]struct {
			kinds  string
			change func(b []byte)
			want   error
		}{
			"too many":       {"123", func(b []byte) { le.PutUint16(b[10:], maxLeaseItems+1) }, errLeaseItems},
			"head":           {"123", func(b []byte) { le.PutUint16(b, leaseHead-1) }, wire.ErrMalformed},
			"long name":      {"1", func(b []byte) { le.PutUint16(b[first+132:], maxName+1) }, errName},
			"slots":          {"1", func(b []byte) { le.PutUint16(b[first+134:], counterwire.MaxSlots+1) }, counterwire.ErrSlots},
			"slots of grant": {"2", func(b []byte) { le.PutUint16(b[first+68:], counterwire.MaxSlots+1) }, counterwire.ErrSlots},
			"window":         {"1", func(b []byte) { le.PutUint64(b[first+80:], 0) }, nil},
			"algorithm":      {"1", func(b []byte) { b[first+128] = 99 }, nil},
		} {
			if !strings.Contains(x.kinds, fmt.Sprint(k)) {
				continue
			}
			b := bytes.Clone(whole)
			x.change(b)
			if _, _, err := r.parse(k, b); err == nil || x.want != nil && !errors.Is(err, x.want) {
				t.Errorf("kind %d, %s: %v", k, name, err)
			}
		}
	}
	// A notice of a later version is skipped, and times are never negative.
	m := lease.Batch{Kind: lease.Notify, Notices: []lease.Notice{{Kind: lease.Move + 1}, {Kind: lease.Lift, Left: -1}}}
	k, payload := leasePayload(t, &m)
	if got, _, err := r.parse(k, payload); err != nil || !reflect.DeepEqual(got.Notices,
		[]lease.Notice{{Kind: lease.Lift}}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// As much as is allowed at once fits into a frame. More is refused and does not change what was written before.
func TestLeaseBounds(t *testing.T) {
	big := sampleLease(lease.Ask).Requests[0]
	big.Name = strings.Repeat("n", maxName)
	for i := range counterwire.MaxSlots - 2 {
		big.State.Slots = append(big.State.Slots, limit.Slot{Writer: math.MaxUint64 - uint64(i%64),
			At: int64(i) << 30, Charged: math.MaxUint64})
	}
	leasePayload(t, &lease.Batch{Kind: lease.Ask, Requests: []lease.GrantRequest{big}})
	leasePayload(t, &lease.Batch{Kind: lease.Lend, Grants: make([]lease.Grant, maxLeaseItems)})
	long, many := big, big
	long.Name += "n"
	many.State.Slots = append(many.State.Slots, limit.Slot{At: math.MaxInt64})
	for name, tt := range map[string]struct {
		m    lease.Batch
		want error
	}{
		"name":   {lease.Batch{Kind: lease.Ask, Requests: []lease.GrantRequest{long}}, errName},
		"slots":  {lease.Batch{Kind: lease.Ask, Requests: []lease.GrantRequest{many}}, counterwire.ErrSlots},
		"grants": {lease.Batch{Kind: lease.Lend, Grants: make([]lease.Grant, maxLeaseItems+1)}, errLeaseItems},
		"bytes":  {lease.Batch{Kind: lease.Ask, Requests: []lease.GrantRequest{big, big}}, errTooLong},
	} {
		if b, err := appendLease([]byte("kept"), &tt.m, 1, new(counterwire.Writers)); !errors.Is(err, tt.want) ||
			string(b) != "kept" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Everything that can be decoded is encoded to the same message again, and nothing panics.
func FuzzLease(f *testing.F) {
	for k := lease.Ask; k <= lease.Notify; k++ {
		m := sampleLease(k)
		_, payload := leasePayload(f, &m)
		f.Add(byte(k), payload)
	}
	f.Add(byte(lease.Ask), []byte{})
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		k, known := leaseKind(frameLease + kind%4)
		if !known {
			return
		}
		var r, again leaseReader
		m, sent, err := r.parse(k, b)
		if err != nil {
			return
		}
		if len(m.Requests) > maxLeaseItems || len(m.Grants) > maxLeaseItems || len(m.Notices) > maxLeaseItems {
			t.Fatal("too many items")
		}
		written, err := appendLease(nil, m, sent, new(counterwire.Writers))
		if err != nil {
			return // it was encoded more densely than here
		}
		if got, at, err := again.parse(k, written[frameHead:]); err != nil || at != sent ||
			fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", m) {
			t.Fatalf("%+v became %+v, %v", m, got, err)
		}
	})
}

// A message that does not fit into one frame uses several. A member of version 1 receives none.
func TestEnqueueLease(t *testing.T) {
	m := newMember(t, "m0")
	l := &link{clock: m.clock, m: m.m, log: m.Peer.log, bounds: queueBounds{bytes: 1 << 20},
		wake: make(chan struct{}, 1)}
	msg := lease.Batch{Kind: lease.Ask, Requests: make([]lease.GrantRequest, 3*maxLeaseItems)}
	for i := range msg.Requests {
		r := &msg.Requests[i]
		*r = lease.GrantRequest{Seq: uint64(i), Rule: limit.Rule{Window: 1}, Name: strings.Repeat("n", maxName)}
	}
	if r := l.enqueueLease(&msg); r != forwardUnreachable {
		t.Fatalf("posted without a stream: %v", r)
	}
	l.established(1)
	if r := l.enqueueLease(&msg); r != forwardUnreachable || len(l.out) != 0 {
		t.Fatalf("posted to a member of version 1: %v", r)
	}
	l.disconnected()
	l.established(2)
	defer l.disconnected()
	if r := l.enqueueLease(&msg); r != forwardPending {
		t.Fatal(r)
	}
	var r leaseReader
	n := uint64(0)
	for b := l.out; len(b) > 0; {
		typ, payload, rest, whole, err := nextFrame(b)
		k, known := leaseKind(typ)
		if err != nil || !whole || !known {
			t.Fatal(typ, whole, err)
		}
		got, sent, err := r.parse(k, payload)
		if err != nil || sent != m.Now() && m.Now()-sent > int64(time.Minute) {
			t.Fatal(sent, err)
		}
		for i := range got.Requests {
			if got.Requests[i].Seq != n {
				t.Fatalf("request %d follows %d", got.Requests[i].Seq, n)
			}
			n++
		}
		b = rest
	}
	if n != 3*maxLeaseItems {
		t.Errorf("%d requests left", n)
	}
	if msg.Requests = msg.Requests[:1]; l.enqueueLease(&msg) != forwardPending {
		t.Error("a small message found no room")
	}
	for l.enqueueLease(&msg) == forwardPending {
	}
	if n := len(l.out); n < 2<<20 || n > 2<<20+2*maxName {
		t.Errorf("%d bytes wait", n)
	}
}

// Lease messages between other boots, old ones and malformed ones are refused. The stream continues.
func TestLeaseRefused(t *testing.T) {
	ms := newCluster(t, 2)
	m, other := ms[1], ms[0]
	msg := sampleLease(lease.Lend)
	for _, tt := range []struct {
		name     string
		from     ring.ID
		boot, to uint64
		age      time.Duration
		garbage  func([]byte) []byte
		want     string
	}{
		{name: "unknown", from: "m9", boot: 3, to: bootOf("m1"), want: reasonUnknownMember},
		{name: "another boot", from: "m0", boot: bootOf("m0") + 2, to: bootOf("m1"), want: reasonBoot},
		{name: "no boot", from: "m0", to: bootOf("m1"), want: reasonBoot},
		{name: "of another boot of this", from: "m0", boot: bootOf("m0"), to: bootOf("m1") + 2, want: reasonBoot},
		{name: "old", from: "m0", boot: bootOf("m0"), to: bootOf("m1"), age: 61 * time.Second, want: reasonOld},
		{name: "truncated", from: "m0", boot: bootOf("m0"), to: bootOf("m1"), want: reasonMalformed,
			garbage: func(b []byte) []byte { return b[:len(b)-1] }},
		{name: "oversized", from: "m0", boot: bootOf("m0"), to: bootOf("m1"), want: reasonTooLarge,
			garbage: func(b []byte) []byte { le.PutUint16(b[10:], maxLeaseItems+1); return b }},
		{name: "good", from: "m0", boot: bootOf("m0"), to: bootOf("m1")},
	} {
		s := server{p: m.Peer, from: tt.from, fromBoot: tt.boot, toBoot: tt.to}
		b, err := appendLease(nil, &msg, m.Now()-int64(tt.age), new(counterwire.Writers))
		if err != nil {
			t.Fatal(err)
		}
		payload, reasons := b[frameHead:], testutil.CollectAndCount(m.m.refused)
		if tt.garbage != nil {
			payload = tt.garbage(payload)
		}
		before := 0.0
		if tt.want != "" {
			before = testutil.ToFloat64(m.m.refused.WithLabelValues(tt.want))
		}
		s.receiveLease(m.Now(), lease.Lend, payload)
		if tt.want == "" {
			if n := testutil.CollectAndCount(m.m.refused); n != reasons {
				t.Errorf("%s: refused", tt.name)
			}
		} else if n := testutil.ToFloat64(m.m.refused.WithLabelValues(tt.want)); n != before+1 {
			t.Errorf("%s: not refused as %s", tt.name, tt.want)
		}
	}
	if a := other.decideOne(patience, newRequest(ownedBy(ringOf("m0", "m1"), "m1", 1)[0], 10,
		1)); a.Path != owner.Forwarded {
		t.Errorf("%+v", a)
	}
}
