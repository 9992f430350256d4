package peer

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// gate keeps what arrives from a server while it is closed, as the kernel does for a process that is stopped.
type gate struct {
	mu    sync.Mutex
	c     *sync.Cond
	is    bool          // closed; guarded by mu
	ended chan struct{} // gets a token when a stream ends
}

func newGate() *gate {
	g := &gate{ended: make(chan struct{}, 100)}
	g.c = sync.NewCond(&g.mu)
	return g
}

func (g *gate) set(closed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.is = closed
	g.c.Broadcast()
}

type gatedConn struct {
	net.Conn
	gate *gate
}

// Read reads when the gate is open. Bytes that a read has waited for while the gate was closed wait, too.
func (c gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	for c.gate.is {
		c.gate.c.Wait()
	}
	return n, err
}

// withGate returns a member and an owner that reads its requests through a gate. The member waits long for signs of
// life before it closes a stream.
func withGate(t *testing.T) (m, backend *member, r *ring.Ring, g *gate) {
	t.Helper()
	g = newGate()
	t.Cleanup(func() { g.set(false) })
	backend = newMember(t, "stub")
	backend.alone()
	s := newStub(t, func(conn net.Conn) {
		in := gatedConn{conn, g}
		srv := server{p: backend.Peer, conn: conn, raw: conn, in: frames{src: in}, from: "m0"}
		srv.run()
		g.ended <- struct{}{}
	})
	m, r = withStub(t, s, func(o *Options) { o.Detection = membership.MaxDetection })
	m.awaitOld(t, "stub")
	return m, backend, r, g
}

func usage(m *member, q owner.Request) uint64 { return m.node.RecordedUsage(time.Now().UnixNano(), &q) }

// A silent owner is replaced by the local share and charges the request after all. The share's charge is given back.
func TestLateChargeIsTakenBack(t *testing.T) {
	t.Parallel()
	m, backend, r, g := withGate(t)
	name := ownedBy(r, "stub", 1)[0]
	q := newRequest(name, 10, 1)
	if a := m.decideOne(patience, q); a.Path != owner.Forwarded {
		t.Fatalf("before: %+v", a)
	}
	g.set(true)
	two := newRequest(name, 10, 2)
	if a := decideBy(m, deadlines(time.Millisecond, time.Hour), two); a.Authority != owner.Share || a.Over {
		t.Fatalf("by the share: %+v", a)
	}
	if n := usage(m, q); n != 2 {
		t.Fatalf("the share has charged %d hits, want 2", n)
	}
	g.set(false)
	await(t, "the hits to be given back", func() bool { return usage(m, q) == 0 })
	if n := usage(backend, q); n != 3 {
		t.Errorf("the owner has counted %d hits, want 3", n)
	}
	if n := m.node.Stats(time.Now().UnixNano()).ShareTakenBack; n != 2 {
		t.Errorf("%d hits taken back, want 2", n)
	}
}

// The hits that a silent owner refuses after all remain charged: the share has admitted them.
func TestLateRefusalKeepsCharge(t *testing.T) {
	t.Parallel()
	m, _, r, g := withGate(t)
	name := ownedBy(r, "stub", 1)[0]
	q := newRequest(name, 10, 1)
	if a := m.decideOne(patience, newRequest(name, 10, 10)); a.Path != owner.Forwarded {
		t.Fatalf("before: %+v", a)
	}
	g.set(true)
	if a := decideBy(m, deadlines(time.Millisecond, time.Hour), q); a.Authority != owner.Share || a.Over {
		t.Fatalf("by the share: %+v", a)
	}
	g.set(false)
	if a := m.decideOne(patience, q); a.Path != owner.Forwarded || !a.Over { // the reply to the first request came before
		t.Fatalf("after: %+v", a)
	}
	if n := usage(m, q); n != 1 {
		t.Errorf("%d hits remain charged, want 1", n)
	}
}

// A member that has been silent charges no requests of a stream that its requester has closed meanwhile.
func TestClosedStreamIsNotCharged(t *testing.T) {
	t.Parallel()
	m, backend, r, g := withGate(t)
	names := ownedBy(r, "stub", 2)
	if a := m.decideOne(patience, newRequest(names[0], 10, 1)); a.Path != owner.Forwarded {
		t.Fatalf("before: %+v", a)
	}
	g.set(true)
	q := newRequest(names[1], 10, 1)
	if a := decideBy(m, deadlines(time.Millisecond, time.Hour), q); a.Authority != owner.Share {
		t.Fatalf("by the share: %+v", a)
	}
	m.Close()
	g.set(false)
	<-g.ended
	if n := usage(backend, q); n != 0 {
		t.Errorf("the owner has charged %d hits for which no caller waits", n)
	}
}
