package peer

import (
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// discard is a connection that accepts all writes.
type discard struct{ net.Conn }

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// dialRaw opens a connection to m and sends b.
func dialRaw(t *testing.T, m *member, b []byte) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", m.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
	return conn
}

// handshake opens a stream to m.
func handshake(t *testing.T, m *member) net.Conn {
	t.Helper()
	h := m.hello
	h.from, h.to, h.toBoot = "raw", m.id, bootOf(m.id)
	conn := dialRaw(t, m, appendHello(nil, h))
	payload, err := readHandshake(conn, frameWelcome)
	if err != nil {
		t.Fatal(err)
	}
	if w, err := parseWelcome(payload); err != nil || w.refusal != refusalNone {
		t.Fatal(w, err)
	}
	return conn
}

// alone makes m the owner of all keys.
func (m *member) alone() *member {
	m.SetView(viewOf(m.id, ringOf(m.id), membersOf([]*member{m})))
	return m
}

// nextAnswer reads frames until a reply arrives.
func nextAnswer(t *testing.T, in *frames) (id uint64, outcome byte, results []owner.Result) {
	t.Helper()
	for {
		typ, payload, whole, err := in.next()
		if err != nil {
			t.Fatal(err)
		}
		if !whole {
			if err := in.fill(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if typ != frameReply {
			continue
		}
		records := wire.NewReader(payload)
		h, err := parseReplyHead(&records)
		if err != nil {
			t.Fatal(err)
		}
		results = make([]owner.Result, h.count)
		for i := range results {
			if err := parseResult(nextRecord(&records), &results[i]); err != nil {
				t.Fatal(err)
			}
		}
		return h.id, h.outcome, results
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		name         string
		change       func(*hello)
		dialler, log string
	}{
		{"label", func(h *hello) { h.label = labelDigest("other") }, "another cluster label", "another cluster label"},
		{"scheme", func(h *hello) { h.scheme++ }, "another key scheme", "another key scheme"},
		{"version", func(h *hello) { h.versions = versions{maxVersion + 1, maxVersion + 2} },
			fmt.Sprintf("the peer supports 1 to %d, this member %d to %d", maxVersion, maxVersion+1, maxVersion+2),
			"no common protocol version"},
		{"algorithm", func(h *hello) { h.algorithms |= 1 << 40 }, "unknown algorithm", "unknown algorithm"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := newMember(t, "m0"), newMember(t, "m1")
			tt.change(&a.hello)
			a.setMembers([]*member{a, b})
			await(t, "the refusal to be logged on both sides",
				func() bool { return a.logged(tt.dialler) && b.logged(tt.log) })
			if !b.logged("m0") {
				t.Error("the log does not name who was refused")
			}
			if n := testutil.ToFloat64(b.m.refusals.WithLabelValues("refused")); n < 1 {
				t.Errorf("%v refusals counted", n)
			}
			if l := a.Links()[0]; l.Live || !strings.Contains(l.Error, tt.dialler) {
				t.Errorf("%+v", l)
			}
		})
	}
}

// The handshake detects an address that another member, or another boot of the same one, has taken over.
func TestWrongTarget(t *testing.T) {
	a, b := newMember(t, "m0"), newMember(t, "m1")
	for _, tt := range []struct {
		to   ring.ID
		boot uint64
		want string
	}{
		{"m2", bootOf("m1"), "meant for another member"},
		{"m1", 12345, "meant for another boot"},
	} {
		to := announced(tt.to, b.Addr().String())
		to.BootID = tt.boot
		a.SetView(viewOf("m0", ringOf("m0", tt.to), append(membersOf([]*member{a}), to)))
		await(t, tt.want, func() bool { return a.logged(tt.want) })
	}
	a.setMembers([]*member{a, b}) // then a reaches the right one
	a.awaitLinks(t, 1)
}

// Members of adjacent versions work together in both directions.
func TestAdjacentVersions(t *testing.T) {
	t.Parallel()
	older, newer := newMember(t, "m0"), newMember(t, "m1")
	older.hello.versions = versions{1, 1}
	both := []*member{older, newer}
	for _, m := range both {
		m.setMembers(both)
	}
	for i, m := range both {
		m.awaitLinks(t, 1)
		if v := m.Links()[0].Version; v != 1 {
			t.Errorf("%s speaks version %d", m.id, v)
		}
		name := ownedBy(ringOf("m0", "m1"), both[1-i].id, 1)[0]
		if a := m.decideOne(patience, newRequest(name, 10, 1)); a.Path != owner.Forwarded {
			t.Errorf("%s asks: %+v", m.id, a)
		}
	}
}

// A later version's longer records and new frame types are skipped.
func TestLaterVersionsFields(t *testing.T) {
	m := newMember(t, "m0").alone()
	conn := handshake(t, m)
	w, at := beginFrame(nil, 200)
	w = append(w, "a message of a later version"...)
	w.EndLen32(at)
	w, at = beginFrame(w, frameRequest)
	w = appendRequestHead(w, &requestGroup{id: 5, ttl: time.Hour, count: 2})
	for i := range 2 {
		q := newRequest(fmt.Sprint("later ", i), 10, uint64(1+i))
		record, _ := cutRecord(t, appendRequest(nil, &q))
		w = append(w.U16(uint16(len(record)+9)), record...).String("new field")
	}
	w.EndLen32(at)
	conn.Write(w)
	id, outcome, results := nextAnswer(t, &frames{src: conn})
	if id != 5 || outcome != groupServed || len(results) != 2 || results[0].After != 1 || results[1].After != 2 {
		t.Errorf("%d, %d, %+v", id, outcome, results)
	}
}

// Groups that were delayed for longer than their requester waits are not charged; nor are malformed ones.
func TestNotCharged(t *testing.T) {
	m := newMember(t, "m0").alone()
	conn := handshake(t, m)
	in := &frames{src: conn}
	q := newRequest("late", 10, 1)
	send := func(sent time.Duration, q owner.Request) (byte, []owner.Result) {
		t.Helper()
		g := requestGroup{id: 1, sent: int64(time.Hour + sent), ttl: 10 * time.Millisecond, count: 1}
		conn.Write(appendRequests(nil, g, []owner.Request{q}, []uint16{0}))
		_, outcome, results := nextAnswer(t, in)
		return outcome, results
	}
	if o, results := send(0, q); o != groupServed || results[0].After != 1 {
		t.Fatalf("prompt: %d, %+v", o, results)
	}
	if o, _ := send(-time.Minute, q); o != groupLate {
		t.Errorf("a minute late: %d", o)
	}
	odd := q
	odd.Rule.Window = 0
	if o, _ := send(0, odd); o != groupMalformed {
		t.Errorf("no window: %d", o)
	}
	odd = q
	odd.Rule.Algorithm = 77
	if o, _ := send(0, odd); o != groupUnknownAlgorithm {
		t.Errorf("unknown algorithm: %d", o)
	}
	q.Op = owner.DryRun
	if _, results := send(0, q); results[0].Before != 1 {
		t.Errorf("%d charged, want 1", results[0].Before)
	}
}

// Requests that an owner refuses are decided by the degraded policy, without waiting.
func TestRefusedRequests(t *testing.T) {
	ms := newCluster(t, 2)
	q := newRequest(ownedBy(ringOf("m0", "m1"), "m1", 1)[0], 10, 1)
	q.Mechanism = 9
	if a := ms[0].decideOne(time.Hour, q); a.Path != owner.Fallback {
		t.Errorf("%+v", a)
	}
	if n := ms[0].forwardCount(forwardRefused); n != 1 {
		t.Errorf("%v refused, want 1", n)
	}
}

// Garbage, before and after the handshake, ends its own connection and affects no other.
func TestGarbage(t *testing.T) {
	ms := newCluster(t, 2)
	r := rand.New(rand.NewPCG(3, 4))
	noise := make([]byte, 100<<10)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	huge := le.AppendUint32(nil, math.MaxUint32)
	for name, b := range map[string][]byte{
		"noise": noise, "http": []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"long hello": append([]byte(magic), append(huge, frameHello)...),
		"wrong type": append([]byte(magic), 4, 0, 0, 0, 9, 1, 2, 3),
		"no sender":  appendHello(nil, hello{versions: versions{1, 1}}),
	} {
		conn := dialRaw(t, ms[1], nil)
		conn.Write(b) // the other side may have closed already
		if n, err := io.Copy(io.Discard, conn); n != 0 {
			t.Errorf("%s: answered with %d bytes, %v", name, n, err)
		}
	}
	if n := testutil.ToFloat64(ms[1].m.refusals.WithLabelValues("garbage")); n != 5 {
		t.Errorf("%v counted as garbage, want 5", n)
	}
	for name, b := range map[string][]byte{
		"noise": noise, "huge": huge, "empty frame": {0, 0, 0, 0},
		"no requests": {24, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	} {
		conn := handshake(t, ms[1])
		conn.Write(b)
		if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: the stream stays open", name)
		}
	}
	name := ownedBy(ringOf("m0", "m1"), "m1", 1)[0]
	if a := ms[0].decideOne(patience, newRequest(name, 10, 1)); a.Path != owner.Forwarded {
		t.Errorf("after garbage: %+v", a)
	}
}

// A requester that never reads delays only itself.
func TestSlowReader(t *testing.T) {
	ms := newCluster(t, 2)
	conn := handshake(t, ms[1])
	conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	q := newRequest("slow", 10, 1)
	batch := appendRequests(nil, requestGroup{ttl: time.Hour, count: 1}, []owner.Request{q}, []uint16{0})
	for range 10 {
		batch = append(batch, batch...)
	}
	for {
		if _, err := conn.Write(batch); err != nil {
			break // both buffers are full
		}
	}
	name := ownedBy(ringOf("m0", "m1"), "m1", 1)[0]
	if a := ms[0].decideOne(patience, newRequest(name, 10, 1)); a.Path != owner.Forwarded {
		t.Errorf("%+v", a)
	}
}

func TestMaxStreams(t *testing.T) {
	m := newMember(t, "m0", func(o *Options) { o.MaxStreams = 2 }).alone()
	handshake(t, m)
	handshake(t, m)
	await(t, "two streams", func() bool { return m.serving.Load() == 2 })
	conn := dialRaw(t, m, nil)
	if n, _ := io.Copy(io.Discard, conn); n != 0 {
		t.Errorf("%d bytes", n)
	}
	if n := testutil.ToFloat64(m.m.refusals.WithLabelValues("too_many")); n != 1 {
		t.Errorf("%v rejected, want 1", n)
	}
}

// A member's certificate does not keep other members out: it may have a few connections, however many it opens.
func TestMaxStreamsOfOneMember(t *testing.T) {
	m := newMember(t, "m0").alone()
	for range maxOfMember {
		handshake(t, m)
	}
	conn := handshake(t, m)
	if n, _ := io.Copy(io.Discard, conn); n != 0 {
		t.Errorf("%d bytes", n)
	}
	if n := testutil.ToFloat64(m.m.refusals.WithLabelValues("too_many")); n != 1 {
		t.Errorf("%v rejected, want 1", n)
	}
	h := m.hello
	h.from, h.to, h.toBoot = "another", m.id, bootOf(m.id)
	if _, err := readHandshake(dialRaw(t, m, appendHello(nil, h)), frameWelcome); err != nil {
		t.Error(err)
	}
	await(t, "a stream of another member", func() bool { return m.requestStreams.has("another") })
}

func TestOptions(t *testing.T) {
	_, err := New(Options{ServerTLS: &tls.Config{}})
	for _, want := range []string{"no node", "member name", "tls: need both"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	n := owner.New(owner.Options{Self: "a"})
	if _, err := New(Options{Node: n, Self: "a", Listen: "256.0.0.1:x"}); err == nil {
		t.Error("an impossible address was listened on")
	}
}

func TestIPv6(t *testing.T) {
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here:", err)
	}
	ln.Close()
	ms := newCluster(t, 2, func(o *Options) { o.Listen = "[::1]:0" })
	if a := ms[0].decideOne(patience, newRequest(ownedBy(ringOf("m0", "m1"), "m1", 1)[0], 10,
		1)); a.Path != owner.Forwarded {
		t.Errorf("%+v", a)
	}
}
