package peer

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// sampleMsg returns a message of kind k with every field distinct.
func sampleMsg(k protocol.MessageKind) protocol.Message {
	return protocol.Message{
		Kind: k, Flags: protocol.NeedsAck | protocol.SuccessorCopy, Status: protocol.KeyGone, ChunkIndex: 0x01020304,
		Ring: 0x1112131415161718, Seq: 0x2122232425262728, BaseRing: 0x3132333435363738,
		Sent: 0x4142434445464748, Now: 0x5152535455565758, SinceLost: 0x6162636465666768, Member: "pod-3",
		Counters: []protocol.CounterRecord{
			{
				Key: owner.Key{0x7172737475767778, 0x8182838485868788}, RingPos: 0x9192939495969798,
				Domain: 0xa1a2a3a4a5a6a7a8,
				Rule: limit.Rule{Window: time.Hour, Limit: 0xb1b2b3b4, Burst: 0xc1c2c3c4,
					Algorithm: limit.SlidingLog},
				ExpiresAt: 0x5556575859505152, State: limit.State{TAT: -7, Slots: []limit.Slot{
					{Writer: 5, At: -3, Charged: 1}, {Writer: 9, At: -3, Charged: 2, Refunded: 1},
					{Writer: 5, At: 400, Charged: math.MaxUint64},
				}},
			},
			{Key: owner.Key{1, 2}, RingPos: 3},
		},
	}
}

// strictRequest returns a request with a field of version 2.
func strictRequest() []byte {
	q := owner.Request{
		Key: owner.Key{1, 2}, RingPos: 3, Hits: 4, Rule: limit.Rule{Window: time.Second, Limit: 5, Burst: 6,
			Algorithm: limit.TokenBucket}, Strict: true,
	}
	return appendRequests(nil, requestGroup{id: 7, sent: 9, ttl: time.Millisecond, count: 1}, []owner.Request{q},
		[]uint16{0})
}

// The layout of version 2 never changes, either.
func TestGoldenMessages(t *testing.T) {
	h := hello{versions: versions{1, 2}, scheme: 1, label: labelDigest("prod"), algorithms: 31, from: "pod-0",
		fromBoot: 3, to: "pod-1", toBoot: 5, purpose: forTransfer}
	samples := map[string][]byte{"strict": strictRequest(), "transfer-hello": appendHello(nil, h)}
	for k := protocol.Ping; k <= protocol.OwnershipReply; k++ {
		m := sampleMsg(k)
		b, err := appendMsg(nil, &m, new(counterwire.Writers))
		if err != nil {
			t.Fatal(err)
		}
		samples[fmt.Sprintf("message-%d", k)] = b
	}
	lost := protocol.Message{Kind: protocol.Ack, Ring: 1, Seq: 2, Losses: sampleLosses()}
	b, err := appendMsg(nil, &lost, new(counterwire.Writers))
	if err != nil {
		t.Fatal(err)
	}
	samples["losses"] = b
	golden(t, samples)
}

func sampleLosses() []protocol.Loss {
	return []protocol.Loss{
		{FoundAt: -5, Members: []ring.Member{{ID: "a", BootID: 1, Incarnation: 2, Weight: 3},
			{ID: "b", BootID: 4, Incarnation: 5, Weight: 6}}, Dead: []ring.ID{"b"}},
		{FoundAt: 7, Members: []ring.Member{{ID: "c", BootID: 8, Incarnation: 9, Weight: 1}}, Dead: []ring.ID{"c"}},
	}
}

// Losses on rings with Envoy's parameters follow the others, so that builds without such rings read only the others.
func TestLossesOnUsersRings(t *testing.T) {
	shards := func(n int) (ms []ring.Member) {
		for i := range n {
			id := fmt.Sprintf("shard-%d", i)
			ms = append(ms, ring.Member{ID: ring.ID(id), BootID: uint64(i), Weight: 2, Host: id + ":8080"})
		}
		return ms
	}
	one := protocol.Loss{
		FoundAt: 9, Parameters: ring.EnvoyParameters(0, 0, ring.Murmur2), Members: shards(3), Dead: []ring.ID{"shard-1"},
	}
	own := sampleLosses()
	send := func(losses []protocol.Loss) []protocol.Loss {
		got, err := parseLosses(wire.NewReader(appendLosses(nil, losses, 1<<20)))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := send([]protocol.Loss{one}); !reflect.DeepEqual(got, []protocol.Loss{one}) {
		t.Errorf("%+v", got)
	}
	if got := send([]protocol.Loss{own[0], one, own[1]}); !reflect.DeepEqual(got, []protocol.Loss{own[0], own[1], one}) {
		t.Errorf("%+v", got)
	}
	if !bytes.HasPrefix(appendLosses(nil, []protocol.Loss{own[0], one, own[1]}, 1<<20), appendLosses(nil, own, 1<<20)) {
		t.Error("the losses on Keyward's own ring are written in another way")
	}
	large := one
	large.Parameters = ring.EnvoyParameters(ring.MaxMinSize, 0, ring.XXHash)
	if got := send([]protocol.Loss{large, large, large, large, large}); len(got) != 3 {
		t.Errorf("%d losses of rings with a million points came", len(got))
	}
	invalid := one
	invalid.Parameters.MinSize = ring.MaxMinSize + 1
	for name, bad := range map[string]protocol.Loss{
		"parameters": invalid, "own ring": own[0], "order": {Parameters: one.Parameters, Members: []ring.Member{{ID: "b"}, {ID: "a"}}},
	} {
		if _, err := parseLosses(wire.NewReader(appendLoss([]byte{0, 1}, &bad))); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	b := appendLoss([]byte{0, 1}, &one)
	for n := 2; n < len(b); n++ {
		if _, err := parseLosses(wire.NewReader(b[:n])); err == nil {
			t.Errorf("%d of %d bytes are accepted", n, len(b))
		}
	}
}

// Losses arrive as they were sent, as many as there is room for. Invalid ones are refused.
func TestLosses(t *testing.T) {
	send := func(losses []protocol.Loss) []protocol.Loss {
		m := protocol.Message{Kind: protocol.Ack, Losses: losses}
		b, err := appendMsg(nil, &m, new(counterwire.Writers))
		if err != nil {
			t.Fatal(err)
		}
		got, err := new(msgReader).parse(protocol.Ack, b[frameHead:])
		if err != nil {
			t.Fatal(err)
		}
		return got.Losses
	}
	want := sampleLosses()
	if got := send(want); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	many := make([]protocol.Loss, 12)
	for i := range many {
		many[i] = protocol.Loss{FoundAt: int64(-i), Members: []ring.Member{{ID: "a", Weight: 1}}}
	}
	if got := send(many); len(got) != maxLosses || got[0].FoundAt != 0 {
		t.Errorf("%d of %d losses came", len(got), len(many))
	}
	large := protocol.Loss{}
	for i := range 3000 {
		large.Members = append(large.Members, ring.Member{ID: ring.ID(fmt.Sprintf("member-%05d", i)), Weight: 1})
	}
	if got := send([]protocol.Loss{want[0], large, large, want[1]}); len(got) != 2 {
		t.Errorf("%d losses came", len(got))
	}
	for name, bad := range map[string]protocol.Loss{
		"order":  {Members: []ring.Member{{ID: "b"}, {ID: "a"}}},
		"twice":  {Members: []ring.Member{{ID: "a"}, {ID: "a"}}},
		"name":   {Members: []ring.Member{{ID: ""}}},
		"weight": {Members: []ring.Member{{ID: "a", Weight: maxLostWeight + 1}}},
	} {
		b := appendLoss([]byte{1}, &bad)
		if _, err := parseLosses(wire.NewReader(b)); !errors.Is(err, errLosses) {
			t.Errorf("%s: %v", name, err)
		}
		for n := 1; n < len(b); n++ {
			if _, err := parseLosses(wire.NewReader(b[:n])); err == nil {
				t.Errorf("%s: %d of %d bytes are taken", name, n, len(b))
			}
		}
	}
}

// golden compares every sample with its file.
func golden(t *testing.T, samples map[string][]byte) {
	t.Helper()
	for name, b := range samples {
		file := filepath.Join("testdata", "v2-"+name+".hex")
		if *update {
			if err := os.WriteFile(file, []byte(hex.Dump(b)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.Dump(b); got != string(want) {
			t.Errorf("%s is now\n%swant\n%s", name, got, want)
		}
	}
}

func TestStrictRoundTrip(t *testing.T) {
	record := firstRecord(t, strictRequest())
	var q owner.Request
	if o, err := parseRequest(wire.NewReader(record), &q); err != nil || o != groupServed || !q.Strict {
		t.Errorf("%+v, %d, %v", q, o, err)
	}
	// A member of version 1 reads the fields that it supports.
	if o, err := parseRequest(wire.NewReader(record[:requestSize]), &q); err != nil || o != groupServed || q.Strict {
		t.Errorf("%+v, %d, %v", q, o, err)
	}
}

// firstRecord returns the first record of a request frame.
func firstRecord(t *testing.T, b []byte) []byte {
	t.Helper()
	_, payload, _, _, err := nextFrame(b)
	if err != nil {
		t.Fatal(err)
	}
	records := wire.NewReader(payload)
	if _, err := parseRequestHead(&records); err != nil {
		t.Fatal(err)
	}
	record, _ := cutRecord(t, records.Rest())
	return record
}

func payloadOf(t testing.TB, m *protocol.Message) (protocol.MessageKind, []byte) {
	t.Helper()
	b, err := appendMsg([]byte("before"), m, new(counterwire.Writers))
	if err != nil {
		t.Fatal(err)
	}
	typ, payload, rest, whole, err := nextFrame(b[len("before"):])
	k, known := msgKind(typ)
	if err != nil || !whole || len(rest) != 0 || !known || k != m.Kind {
		t.Fatal(typ, rest, whole, err)
	}
	return k, payload
}

func TestMessageRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var reader msgReader
	for range 500 {
		m := sampleMsg(protocol.MessageKind(1 + r.IntN(8)))
		for c := range m.Counters[:1+r.IntN(2)] {
			slots := m.Counters[c].State.Slots[:0:0]
			at := int64(math.MinInt64 / 2)
			for range r.IntN(50) {
				at += 1 + int64(r.Uint64()>>(8+r.IntN(50)))
				slots = append(slots, limit.Slot{Writer: r.Uint64(), At: at, Charged: r.Uint64() >> r.IntN(64),
					Refunded: r.Uint64() >> r.IntN(64)})
			}
			if m.Counters[c].State.Slots = slots; len(slots) > 0 {
				m.Counters[c].Rule.Window = time.Second
			}
		}
		k, payload := payloadOf(t, &m)
		got, err := reader.parse(k, payload)
		if err != nil {
			t.Fatal(err)
		}
		for i := range m.Counters {
			if len(m.Counters[i].State.Slots) == 0 {
				m.Counters[i].State.Slots = nil
			}
		}
		if !reflect.DeepEqual(*got, m) {
			t.Fatalf("got  %+v\nwant %+v", *got, m)
		}
	}
}

// The largest message of a Node fits into a frame.
func TestFullMessage(t *testing.T) {
	now := time.Now().UnixNano()
	m := protocol.Message{Kind: protocol.Chunk, Counters: []protocol.CounterRecord{{Rule: limit.Rule{Window: time.Hour,
		Algorithm: limit.SlidingLog}}}}
	slots := make([]limit.Slot, counterwire.MaxSlots)
	for i := range slots {
		slots[i] = limit.Slot{Writer: uint64(i%64)*0x9E3779B97F4A7C15 + 1, At: now + int64(i)*int64(time.Second),
			Charged: math.MaxUint64, Refunded: uint64(i)}
	}
	m.Counters[0].State.Slots = slots
	k, payload := payloadOf(t, &m)
	got, err := new(msgReader).parse(k, payload)
	if err != nil || !reflect.DeepEqual(got.Counters, m.Counters) {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func()
		want   error
	}{
		"slots":    {func() { m.Counters[0].State.Slots = append(slots, limit.Slot{At: math.MaxInt64}) }, counterwire.ErrSlots},
		"counters": {func() { m.Counters = make([]protocol.CounterRecord, maxCounters+1) }, errCounters},
		"bytes": {func() {
			m.Counters = make([]protocol.CounterRecord, maxCounters)
			for i := range m.Counters {
				m.Counters[i].State.Slots = slots[:100]
			}
		}, errTooLong},
	} {
		tt.change()
		if b, err := appendMsg([]byte("kept"), &m, new(counterwire.Writers)); !errors.Is(err, tt.want) || string(b) != "kept" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A message that is truncated anywhere or has wrong counts is an error. Additional bytes behind its parts are not.
func TestMessageMalformed(t *testing.T) {
	m := sampleMsg(protocol.Replica)
	k, whole := payloadOf(t, &m)
	var r msgReader
	for n := range whole {
		if _, err := r.parse(k, whole[:n:n]); err == nil {
			t.Errorf("%d of %d bytes were read", n, len(whole))
		}
	}
	if _, err := r.parse(k, append(bytes.Clone(whole), "of a later version"...)); err != nil {
		t.Error(err)
	}
	const counterSize = 68 // without slots
	head := int(le.Uint16(whole)) + 2
	record := head + 2 + 8*2
	for name, change := range map[string]func(b []byte) []byte{
		"too many counters": func(b []byte) []byte { le.PutUint16(b[4:], maxCounters+1); return b },
		"too many slots":    func(b []byte) []byte { le.PutUint16(b[record+4+64:], counterwire.MaxSlots+1); return b },
		"long name":         func(b []byte) []byte { b[2+56] = 200; return b },
		"window":            func(b []byte) []byte { le.PutUint64(b[record+4+32:], 0); return b },
		"algorithm":         func(b []byte) []byte { b[record+4+66] = 99; return b },
		"writer":            func(b []byte) []byte { b[record+4+counterSize] = 7; return b },
		"order":             func(b []byte) []byte { b[record+4+counterSize] = 1; return b },
	} {
		if _, err := r.parse(k, change(bytes.Clone(whole))); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	later := bytes.Clone(whole[:record])
	later = le.AppendUint32(later, le.Uint32(whole[record:])+3)
	n := int(le.Uint32(whole[record:]))
	later = append(append(append(later, whole[record+4:record+4+n]...), "new"...), whole[record+4+n:]...)
	if got, err := r.parse(k, later); err != nil || !reflect.DeepEqual(*got, m) {
		t.Errorf("with a later version's field: %v", err)
	}
}

// Everything that can be decoded is encoded to the same message again, and nothing panics.
func FuzzMessage(f *testing.F) {
	for k := protocol.Ping; k <= protocol.OwnershipReply; k++ {
		m := sampleMsg(k)
		_, payload := payloadOf(f, &m)
		f.Add(byte(k), payload)
	}
	f.Add(byte(protocol.Ping), []byte{})
	f.Fuzz(func(t *testing.T, k byte, b []byte) {
		var r, again msgReader
		m, err := r.parse(protocol.MessageKind(k), b)
		if err != nil {
			return
		}
		if len(m.Counters) > maxCounters || len(m.Member) > maxID {
			t.Fatalf("%d counters, name %q", len(m.Counters), m.Member)
		}
		written, err := appendMsg(nil, m, new(counterwire.Writers))
		if err != nil {
			return // it was encoded more densely than here
		}
		if got, err := again.parse(m.Kind, written[frameHead:]); err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v became %+v, %v", m, got, err)
		}
	})
}

// A stream of version 1 carries no messages, and its requests have the same bytes as before.
func TestOldRequester(t *testing.T) {
	m := newMember(t, "m0").alone()
	golden := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join("testdata", "v1-"+name+".hex"))
		if err != nil {
			t.Fatal(err)
		}
		var out []byte
		for line := range strings.Lines(string(b)) {
			if len(line) < 10 {
				continue
			}
			text, _, _ := strings.Cut(line[10:], "|")
			part, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, part...)
		}
		return out
	}
	h := hello{versions: versions{1, 1}, scheme: KeyScheme, label: labelDigest("test"), algorithms: 1, from: "old",
		to: "m0"}
	conn := dialRaw(t, m, appendHello(nil, h))
	payload, err := readHandshake(conn, frameWelcome)
	if err != nil {
		t.Fatal(err)
	}
	if w, err := parseWelcome(payload); err != nil || w.version != 1 {
		t.Fatal(w, err)
	}
	conn.Write(golden("request"))
	if id, outcome, results := nextAnswer(t, &frames{src: conn}); id != 7 || outcome != groupServed ||
		len(results) != 1 || results[0].Kind != owner.Decided {
		t.Errorf("%d, %d, %+v", id, outcome, results)
	}
}

// The last heartbeat without a stream opens the next one, if it is young enough and the member supports it.
func TestHeldHeartbeat(t *testing.T) {
	m := newMember(t, "m0")
	for _, tt := range []struct {
		name    string
		version uint16
		age     time.Duration
		want    []protocol.MessageKind
	}{
		{"young", 2, 0, []protocol.MessageKind{protocol.Ping, protocol.Pong}},
		{"old", 2, 2 * membership.DefaultDetection.Heartbeat(), nil},
		{"version 1", 1, 0, nil},
	} {
		l := &link{clock: m.clock, m: m.m, log: m.Peer.log, bounds: queueBounds{bytes: 1 << 20},
			wake: make(chan struct{}, 1)}
		sent := m.Now() - int64(tt.age)
		for _, k := range []protocol.MessageKind{protocol.Ping, protocol.Replica, protocol.Pong, protocol.Ping} {
			if r := l.enqueue(&protocol.Message{Kind: k, Sent: sent}); r != forwardUnreachable {
				t.Fatalf("posted without a stream: %v", r)
			}
		}
		for range 2 { // and not the one after that
			l.established(tt.version)
			var got []protocol.MessageKind
			for b := l.out; ; {
				typ, _, rest, whole, err := nextFrame(b)
				if err != nil || !whole {
					break
				}
				k, _ := msgKind(typ)
				got, b = append(got, k), rest
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s: the stream opens with %v, want %v", tt.name, got, tt.want)
			}
			tt.want = nil
			l.disconnected()
		}
	}
}

// Replicas leave room for requests in a link's queue. Messages on which everything depends have more room.
func TestEnqueueBounds(t *testing.T) {
	m := newMember(t, "m0")
	l := &link{clock: m.clock, m: m.m, log: m.Peer.log, bounds: queueBounds{bytes: 4000}, wake: make(chan struct{}, 1)}
	l.established(2)
	defer l.disconnected()
	fill := func(k protocol.MessageKind) int {
		for l.enqueue(&protocol.Message{Kind: k}) == forwardPending {
		}
		return len(l.out)
	}
	if n := fill(protocol.Replica); n < 2000 || n > 2200 {
		t.Errorf("%d bytes of copies", n)
	}
	if n := fill(protocol.OwnershipReply); n < 8000 || n > 8200 {
		t.Errorf("%d bytes of messages", n)
	}
}

// The zones of the members follow all losses, so that builds without zones read the losses. Without a known zone, there
// are no more bytes.
func TestLossesWithZones(t *testing.T) {
	plain := appendLosses(nil, sampleLosses(), 1<<20)
	users := protocol.Loss{
		FoundAt: 7, Parameters: ring.EnvoyParameters(64, 128, ring.Murmur2),
		Members: []ring.Member{{ID: "a", BootID: 1, Weight: 1, Host: "h", Zone: "zone-c"}},
	}
	for _, more := range [][]protocol.Loss{nil, {users}} {
		want := sampleLosses()
		for i := range want {
			want[i].Members[0].Zone = "zone-a"
		}
		want = append(want, more...)
		b := appendLosses(nil, want, 1<<20)
		got, err := parseLosses(wire.NewReader(b))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
		if !bytes.HasPrefix(b, plain) {
			t.Error("zones precede losses")
		}
		if _, err := parseLosses(wire.NewReader(b[:len(b)-1])); err == nil {
			t.Error("zones that end early are accepted")
		}
		if got, err = parseLosses(wire.NewReader(appendLosses(nil, want, len(b)-1))); err != nil || hasZones(got[0]) {
			t.Errorf("zones without room: %+v, %v", got, err)
		}
	}
	long := sampleLosses()
	long[0].Members[0].Zone = strings.Repeat("z", membership.MaxZone+1)
	if _, err := parseLosses(wire.NewReader(appendLosses(nil, long, 1<<20))); err == nil {
		t.Error("a zone that is too long is accepted")
	}
}
