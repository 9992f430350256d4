package peer

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

var le = binary.LittleEndian

var update = flag.Bool("update", false, "rewrite the golden encodings; never for a version that has been released")

// samples returns one message of each kind, with every field distinct.
func samples() map[string][]byte {
	q := owner.Request{
		Key: owner.Key{0x0102030405060708, 0x1112131415161718}, RingPos: 0x2122232425262728,
		Domain: 0x3132333435363738, Rules: 0x4142434445464748, Hits: 0x5152535455565758,
		Rule:     limit.Rule{Window: time.Hour, Limit: 0x61626364, Burst: 0x71727374},
		LocalCap: 0x81828384, Op: owner.Refund, Degraded: policy.FailClosed,
	}
	h := hello{
		versions: versions{1, 2}, scheme: 1, label: labelDigest("prod"), algorithms: 1,
		from: "pod-0", fromBoot: 0x0102030405060708, to: "pod-11", toBoot: 0x1112131415161718,
	}
	ask := appendRequests(nil, requestGroup{id: 7, sent: 9, ttl: 12 * time.Millisecond, stop: true, count: 1},
		[]owner.Request{q}, []uint16{0})
	answers := []owner.Result{
		{Decision: limit.Decision{Before: 0x0102030405060708, After: 0x1112131415161718, Reset: time.Minute,
			Remaining: 0x21222324, Over: true}, Authority: owner.Overflow, Kind: owner.Decided, Path: owner.Forwarded},
		{Kind: owner.Forward, Member: "pod-2"},
	}
	s := server{results: answers}
	s.reply(7, groupServed)
	late := server{}
	late.reply(8, groupLate)
	return map[string][]byte{
		"hello": appendHello(nil, h),
		"welcome": appendWelcome(nil, welcome{refusal: refusalBoot, version: 1, versions: versions{1, 2},
			bootID: 0x0102030405060708}),
		"request": ask,
		"reply":   s.out,
		"late":    late.out,
		"ping":    appendPing(nil, framePing, 0x0102030405060708),
	}
}

// cutRecord splits the first record off b.
func cutRecord(t *testing.T, b []byte) (record, rest []byte) {
	t.Helper()
	r := wire.NewReader(b)
	record = r.Bytes(int(r.U16()))
	if r.Err() != nil {
		t.Fatal(r.Err())
	}
	return record, r.Rest()
}

// The layout of version 1 never changes: members of adjacent versions work together.
func TestGolden(t *testing.T) {
	for name, b := range samples() {
		file := filepath.Join("testdata", "v1-"+name+".hex")
		got := hex.Dump(b)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is now\n%swant\n%s", name, got, want)
		}
	}
}

func TestRequestRoundTrip(t *testing.T) {
	for _, q := range []owner.Request{
		{Rule: limit.Rule{Window: 1}},
		{Key: owner.Key{1, 2}, RingPos: 3, Domain: 4, Rules: 5, Hits: math.MaxUint64, LocalCap: 6, Op: owner.Read,
			Degraded: policy.FailOpen,
			Rule:     limit.Rule{Window: math.MaxInt64, Limit: math.MaxUint32, Burst: 7}},
		{Rule: limit.Rule{Window: 1}, Mechanism: policy.ByLease},
		{Rule: limit.Rule{Window: 1}, Mechanism: policy.Approximate, Strict: true},
		{Rule: limit.Rule{Window: 1}, HotFactor: math.MaxUint16},
		{Rule: limit.Rule{Window: 1}, Partition: policy.Choose(policy.PartQuorum), Strict: true},
		{Rule: limit.Rule{Window: 1}, Partition: policy.Choose(policy.PartShare), HotFactor: 2},
		{Rule: limit.Rule{Window: 1}, Audit: true},
		{Rule: limit.Rule{Window: 1}, Audit: true, HotFactor: 3, Mechanism: policy.Approximate},
		{Rule: limit.Rule{Window: 1}, Tenant: math.MaxUint64, TenantWeight: 1},
		{Rule: limit.Rule{Window: 1}, Tenant: 1, TenantWeight: math.MaxUint32, HotFactor: 3, Strict: true},
	} {
		b := appendRequest(nil, &q)
		record, rest := cutRecord(t, append(b, "next"...))
		if string(rest) != "next" {
			t.Fatalf("rest %q", rest)
		}
		whole := append(bytes.Clone(record), make([]byte, requestSize+requestExtraSize+tenantSize+federationSize+storeSize-len(record))...)
		for _, record := range [][]byte{record, append(whole, "fields of a later version"...)} {
			var got owner.Request
			o, err := parseRequest(wire.NewReader(record), &got)
			if err != nil || o != groupServed || got != q {
				t.Errorf("got %+v, %d, %v, want %+v", got, o, err, q)
			}
		}
	}
}

func TestRequestRefused(t *testing.T) {
	good := owner.Request{Rule: limit.Rule{Window: time.Second}}
	for _, tt := range []struct {
		name   string
		change func(*owner.Request)
		want   byte
	}{
		{"good", func(*owner.Request) {}, groupServed},
		{"no window", func(q *owner.Request) { q.Rule.Window = 0 }, groupMalformed},
		{"negative window", func(q *owner.Request) { q.Rule.Window = -1 }, groupMalformed},
		{"algorithm", func(q *owner.Request) { q.Rule.Algorithm = 99 }, groupUnknownAlgorithm},
		{"operation", func(q *owner.Request) { q.Op = 99 }, groupUnknownAlgorithm},
		{"mechanism", func(q *owner.Request) { q.Mechanism = 99 }, groupUnknownAlgorithm},
	} {
		q := good
		tt.change(&q)
		record, _ := cutRecord(t, appendRequest(nil, &q))
		var got owner.Request
		if o, err := parseRequest(wire.NewReader(record), &got); err != nil || o != tt.want {
			t.Errorf("%s: %d, %v, want %d", tt.name, o, err, tt.want)
		}
	}
}

func TestResultRoundTrip(t *testing.T) {
	long := ring.ID(strings.Repeat("x", maxID))
	for _, a := range []owner.Result{
		{Kind: owner.Decided, Path: owner.Forwarded},
		{Kind: owner.Decided, Path: owner.Forwarded, Hot: true},
		{Kind: owner.Decided, Path: owner.Forwarded, Authority: owner.Overflow, Decision: limit.Decision{
			Before: math.MaxUint64, After: 3, Reset: time.Hour, Remaining: math.MaxUint32, Over: true}},
		{Kind: owner.Decided, Path: owner.Forwarded, Holds: math.MaxUint32, Held: math.MaxUint64},
		{Kind: owner.Forward},
		{Kind: owner.Forward, Member: "pod-1"},
		{Kind: owner.Forward, Member: long},
	} {
		record, rest := cutRecord(t, appendResult(nil, &a))
		if len(rest) != 0 {
			t.Fatal(rest)
		}
		var got owner.Result
		if err := parseResult(wire.NewReader(append(record, "later"...)), &got); err != nil || got != a {
			t.Errorf("got %+v, %v, want %+v", got, err, a)
		}
	}
}

// A record that is truncated anywhere is an error.
func TestTruncated(t *testing.T) {
	for _, a := range []owner.Result{{Kind: owner.Decided}, {Kind: owner.Forward, Member: "pod-1"}} {
		record := appendResult(nil, &a)[recordHead:]
		for n := range record {
			if err := parseResult(wire.NewReader(record[:n:n]), new(owner.Result)); err == nil {
				t.Errorf("%d of %d bytes of a result were read", n, len(record))
			}
		}
	}
	q := appendRequest(nil, &owner.Request{})[recordHead:]
	for n := range q {
		if _, err := parseRequest(wire.NewReader(q[:n:n]), new(owner.Request)); err == nil {
			t.Errorf("%d of %d bytes of a request were read", n, len(q))
		}
	}
}

func TestHandshakeRoundTrip(t *testing.T) {
	h := hello{
		versions: versions{3, 9}, scheme: 5, label: labelDigest("x"), algorithms: 1 << 63,
		from: "a", fromBoot: 1, to: ring.ID(strings.Repeat("y", maxID)), toBoot: math.MaxUint64, purpose: forTransfer,
	}
	payload, err := readHandshake(bytes.NewReader(appendHello(nil, h)), frameHello)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := parseHello(append(payload, "later"...)); err != nil || got != h {
		t.Errorf("got %+v, %v, want %+v", got, err, h)
	}
	w := welcome{refusal: refusalCluster, version: 2, versions: versions{1, 2}, bootID: 77}
	if payload, err = readHandshake(bytes.NewReader(appendWelcome(nil, w)), frameWelcome); err != nil {
		t.Fatal(err)
	}
	if got, err := parseWelcome(append(payload, "later"...)); err != nil || got != w {
		t.Errorf("got %+v, %v, want %+v", got, err, w)
	}
}

func TestVersions(t *testing.T) {
	for _, tt := range []struct {
		a, b versions
		want uint16
	}{
		{versions{1, 1}, versions{1, 1}, 1},
		{versions{1, 2}, versions{1, 1}, 1},
		{versions{1, 2}, versions{2, 3}, 2},
		{versions{2, 3}, versions{1, 1}, 0},
		{versions{1, 1}, versions{0, 0}, 0},
		{versions{1, 1}, versions{5, 1}, 0},
	} {
		if got := tt.a.common(tt.b); got != tt.want {
			t.Errorf("%v and %v: %d, want %d", tt.a, tt.b, got, tt.want)
		}
		if got := tt.b.common(tt.a); got != tt.want {
			t.Errorf("%v and %v: %d, want %d", tt.b, tt.a, got, tt.want)
		}
	}
}

// frames returns the same frames whatever the sizes of the reads.
func TestFrames(t *testing.T) {
	var stream []byte
	for i := range 50 {
		stream = appendPing(stream, framePing, uint64(i))
		w, at := beginFrame(stream, 99)
		w = append(w, make([]byte, i*700)...)
		w.EndLen32(at)
		stream = w
	}
	for _, in := range []*frames{
		{src: bytes.NewReader(stream)}, {src: iotest.HalfReader(bytes.NewReader(stream))},
		{src: iotest.OneByteReader(bytes.NewReader(stream))},
	} {
		seen := 0
		for in.fill() == nil {
			for {
				typ, payload, whole, err := in.next()
				if err != nil {
					t.Fatal(err)
				}
				if !whole {
					break
				}
				i := seen / 2
				if seen%2 == 0 && (typ != framePing || le.Uint64(payload) != uint64(i)) ||
					seen%2 == 1 && (typ != 99 || len(payload) != i*700) {
					t.Fatalf("frame %d: type %d, %d bytes", seen, typ, len(payload))
				}
				seen++
			}
		}
		if seen != 100 {
			t.Errorf("%d frames, want 100", seen)
		}
	}
}

func TestFrameTooLong(t *testing.T) {
	for _, n := range []uint32{0, maxFrame + 1, math.MaxUint32} {
		if _, _, _, _, err := nextFrame(le.AppendUint32(nil, n)); !errors.Is(err, errTooLong) {
			t.Errorf("length %d: %v", n, err)
		}
	}
}

func TestSentGroups(t *testing.T) {
	var ts sentGroups
	c := new(call)
	ids := map[uint64]int{}
	for i := range 100 {
		ids[ts.put(sentGroup{call: c, group: i})] = i
	}
	if len(ids) != 100 || ts.len() != 100 {
		t.Fatalf("%d numbers, %d tickets", len(ids), ts.len())
	}
	for id, g := range ids {
		if k, known := ts.take(id); !known || k.group != g {
			t.Errorf("group %d: %v, %v", id, k, known)
		}
		if _, known := ts.take(id); known {
			t.Errorf("ticket %d was taken twice", id)
		}
	}
	for range 100 {
		if id := ts.put(sentGroup{call: c}); ids[id] != 0 {
			t.Errorf("number %d was used again", id)
		}
	}
	if len(ts.slots) != 100 {
		t.Errorf("%d slots for 100 tickets at a time", len(ts.slots))
	}
	if n := len(ts.drain()); n != 100 || ts.len() != 0 {
		t.Errorf("%d drained, %d left", n, ts.len())
	}
	if _, known := ts.take(math.MaxUint64); known {
		t.Error("an ID that was never returned is known")
	}
}

// Everything that can be decoded is encoded to the same bytes again, and nothing panics.
func FuzzRequest(f *testing.F) {
	f.Add(samples()["request"][frameHead:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		records := wire.NewReader(b)
		g, err := parseRequestHead(&records)
		if err != nil {
			return
		}
		for range g.count {
			record := nextRecord(&records)
			if records.Err() != nil {
				return
			}
			var q owner.Request
			if o, err := parseRequest(record, &q); err == nil && o == groupServed {
				if again := appendRequest(nil, &q); !bytes.Equal(again[recordHead:], record.Bytes(requestSize)) {
					t.Fatalf("%x became %x", b, again)
				}
			}
		}
	})
}

func FuzzReply(f *testing.F) {
	for _, name := range []string{"reply", "late"} {
		f.Add(samples()[name][frameHead:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := call{p: &Peer{clock: newClock(time.Now(), nil)}}
		results := make([]owner.Result, 2)
		c.start(0, &callArgs{by(time.Hour), make([]owner.Request, 2), results, newSyncWaiter().(syncWaiter)})
		c.setDeadline(by(time.Hour))
		c.addRequest("x", 0, 0, 0)
		c.addRequest("x", 1, 0, 0)
		records := wire.NewReader(b)
		h, err := parseReplyHead(&records)
		if err != nil {
			return
		}
		r, err := c.readResults(&c.groups[0], h, &records)
		if (err != nil) != (r == forwardBroken) {
			t.Fatalf("%v, error %v", r, err)
		}
		for _, a := range results {
			if r == forwardOK && (a.Kind != owner.Decided || a.Reset < 0 || a.Authority > owner.Cached) {
				t.Fatalf("%+v", a)
			}
		}
	})
}

func FuzzHandshake(f *testing.F) {
	f.Add(samples()["hello"])
	f.Add(samples()["welcome"])
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if payload, err := readHandshake(bytes.NewReader(b), frameHello); err == nil {
			if h, err := parseHello(payload); err == nil {
				again, _ := readHandshake(bytes.NewReader(appendHello(nil, h)), frameHello)
				if !bytes.HasPrefix(payload, again) {
					t.Fatalf("%x became %x", payload, again)
				}
			}
		}
		if payload, err := readHandshake(bytes.NewReader(b), frameWelcome); err == nil {
			if w, err := parseWelcome(payload); err == nil {
				again, _ := readHandshake(bytes.NewReader(appendWelcome(nil, w)), frameWelcome)
				if got, _ := parseWelcome(again); !reflect.DeepEqual(got, w) {
					t.Fatalf("%+v became %+v", w, got)
				}
			}
		}
	})
}

// Whatever arrives over a stream after the handshake, the server replies or ends the stream.
func FuzzServer(f *testing.F) {
	for _, name := range []string{"request", "ping", "reply"} {
		f.Add(samples()[name])
	}
	m := newMember(f, "m0").alone()
	f.Fuzz(func(t *testing.T, b []byte) {
		s := server{p: m.Peer, from: "m1", fromBoot: bootOf("m1"), toBoot: bootOf("m0"),
			in: frames{src: bytes.NewReader(b)}, conn: discard{}}
		for s.in.fill() == nil {
			if s.serveFrames(1, 1) != nil {
				return
			}
		}
		if len(s.in.buf) > 4+maxFrame {
			t.Fatalf("buffer of %d bytes", len(s.in.buf))
		}
	})
}
