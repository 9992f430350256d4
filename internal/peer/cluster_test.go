package peer

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

func TestMain(m *testing.M) {
	if os.Getenv(stoppedMember) != "" {
		runStoppedMember()
		return
	}
	goleak.VerifyTestMain(m)
}

// member is one Peer of a test's cluster.
type member struct {
	*Peer
	id   ring.ID
	node *owner.Node
	log  *logBuffer
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newMember starts a member that listens on loopback.
func newMember(t testing.TB, id ring.ID, adjust ...func(*Options)) *member {
	t.Helper()
	m := &member{id: id, log: &logBuffer{}}
	o := Options{
		Self: id, BootID: bootOf(id), Cluster: "test", Listen: "127.0.0.1:0",
		Logger:     slog.New(slog.NewTextHandler(m.log, nil)),
		Registerer: prometheus.NewRegistry(),
	}
	for _, f := range adjust {
		f(&o)
	}
	// Tests of streams request one key as often as they can; it must not become hot.
	m.node = owner.New(owner.Options{Self: id, BootID: o.BootID, Seed: [2]uint64{1, 2}, NoHot: true})
	o.Node = m.node
	var err error
	if m.Peer, err = New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		if t.Failed() {
			t.Logf("log of %s:\n%s", id, m.log)
		}
	})
	return m
}

func bootOf(id ring.ID) uint64 { return ring.Hash("inst "+string(id)) | 1 }

// newCluster starts n members that are connected, and waits until each owns its keys.
func newCluster(t testing.TB, n int, adjust ...func(*Options)) []*member {
	t.Helper()
	var ms []*member
	for i := range n {
		ms = append(ms, newMember(t, ring.ID(fmt.Sprintf("m%d", i)), adjust...))
	}
	for _, m := range ms {
		m.setMembers(ms)
	}
	for _, m := range ms {
		m.awaitComplete(t, ms)
	}
	return ms
}

func ids(ms []*member) (out []ring.ID) {
	for _, m := range ms {
		out = append(out, m.id)
	}
	return out
}

// announced returns an active member with that address of its peer port.
func announced(id ring.ID, address string) membership.Member {
	m := membership.Member{ID: id, BootID: bootOf(id), State: membership.Active, Weight: 1}
	m.Peer = address
	return m
}

// membersOf returns ms as active members.
func membersOf(ms []*member) (out []membership.Member) {
	for _, m := range ms {
		out = append(out, announced(m.id, m.Addr().String()))
	}
	return out
}

// viewOf returns the view of self: live members and their ring. Active members that are not on the ring leave.
func viewOf(self ring.ID, r *ring.Ring, live []membership.Member) *membership.View {
	v := &membership.View{
		Self: self, BootID: bootOf(self), Ring: r, NRef: r.Len(), Joined: true, Members: slices.Clone(live),
	}
	for i := range v.Members {
		if m := &v.Members[i]; m.State == membership.Active && r.Index(m.ID) < 0 {
			m.State = membership.Leaving
		}
	}
	return v
}

// setMembers makes ms the members and the ring of m.
func (m *member) setMembers(ms []*member) { m.setRing(ms, ms) }

// setRing makes on the ring of m. The rest of ms leaves.
func (m *member) setRing(on, ms []*member) {
	m.SetView(viewOf(m.id, ringOf(ids(on)...), membersOf(ms)))
}

// awaitComplete waits until m owns all of its keys on the ring of ms.
func (m *member) awaitComplete(t testing.TB, ms []*member) {
	t.Helper()
	want := ringOf(ids(ms)...).Fingerprint()
	await(t, fmt.Sprintf("%s to hold its keys", m.id), func() bool {
		p := m.node.Progress()
		return p.Complete() && p.Ring == want && m.liveLinks() == len(ms)-1
	})
}

func ringOf(ids ...ring.ID) *ring.Ring {
	var on []ring.Member
	for _, id := range ids {
		on = append(on, ring.Member{ID: id, BootID: bootOf(id), Incarnation: 1, Weight: 1})
	}
	return ring.New(on)
}

func (m *member) awaitLinks(t testing.TB, n int) {
	t.Helper()
	await(t, fmt.Sprintf("%s to have %d live links", m.id, n), func() bool { return m.liveLinks() == n })
}

func (m *member) liveLinks() (n int) {
	for _, l := range m.Links() {
		if l.Live {
			n++
		}
	}
	return n
}

func (m *member) forwardCount(r forwardStatus) float64 { return testutil.ToFloat64(m.m.forwarded[r]) }

func (m *member) logged(text string) bool { return strings.Contains(m.log.String(), text) }

// await polls until is returns true.
func await(t testing.TB, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !is(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// newRequest requests hits on the counter of name, whose window does not end during a test.
func newRequest(name string, lim uint32, hits uint64) owner.Request {
	return owner.Request{
		Key:     owner.Key{ring.Hash(name), ring.Hash("key of " + name)},
		RingPos: ring.Hash(name),
		Hits:    hits,
		Rule:    limit.Rule{Limit: lim, Window: 100 * 365 * 24 * time.Hour},
	}
}

// ownedBy returns n names that id owns on r.
func ownedBy(r *ring.Ring, id ring.ID, n int) (names []string) {
	for i := 0; len(names) < n; i++ {
		if name := fmt.Sprintf("key-%d", i); r.At(r.Owner(ring.Hash(name))).ID == id {
			names = append(names, name)
		}
	}
	return names
}

const patience = 10 * time.Second // for requests that their owners must decide

// by returns the same deadline for live and silent owners.
func by(within time.Duration) policy.Deadline {
	t := time.Now().Add(within)
	return policy.Deadline{Silent: t, Alive: t}
}

// decideOne decides one request.
func (m *member) decideOne(within time.Duration, q owner.Request) owner.Result {
	results := make([]owner.Result, 1)
	m.Decide(by(within), false, []owner.Request{q}, results)
	return results[0]
}

// stub is a simulated member: it performs the handshake and then runs the test's code.
type stub struct {
	net.Listener
	addr string
}

// newStub supports version 1 and serves each stream after its handshake.
func newStub(t testing.TB, serve func(net.Conn)) *stub {
	t.Helper()
	return newStubOf(t, 1, func(conn net.Conn, _ hello) { serve(conn) })
}

func newStubOf(t testing.TB, version uint16, serve func(net.Conn, hello)) *stub {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stub{Listener: ln, addr: ln.Addr().String()}
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				payload, err := readHandshake(conn, frameHello)
				if err != nil {
					return
				}
				h, err := parseHello(payload)
				if err != nil {
					return
				}
				conn.Write(appendWelcome(nil, welcome{version: version, versions: versions{1, version}}))
				go func() { <-done; conn.Close() }()
				serve(conn, h)
			})
		}
	})
	t.Cleanup(func() { ln.Close(); close(done); wg.Wait() })
	return s
}

// awaitOld waits until m has recorded that member id does not support handoff.
func (m *member) awaitOld(t testing.TB, id ring.ID) {
	t.Helper()
	await(t, fmt.Sprintf("%s to be recorded as old", id), func() bool {
		m.view.Lock()
		defer m.view.Unlock()
		return slices.Contains(m.Peer.old, id)
	})
}

// readOnly reads and writes nothing, like a stopped process whose kernel still receives bytes.
func readOnly(conn net.Conn) {
	b := make([]byte, 4096)
	for {
		if _, err := conn.Read(b); err != nil {
			return
		}
	}
}

// withStub returns a member whose ring has one other member, s.
func withStub(t testing.TB, s *stub, adjust ...func(*Options)) (*member, *ring.Ring) {
	t.Helper()
	m := newMember(t, "m0", adjust...)
	r := ringOf("m0", "stub")
	m.SetView(viewOf("m0", r, []membership.Member{announced("m0", ""), announced("stub", s.addr)}))
	return m, r
}
