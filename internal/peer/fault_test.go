package peer

import (
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/owner"
)

// Requests for keys of a failed member are decided at once, and the local shares admit the limit.
func TestOwnerFails(t *testing.T) {
	ms := newCluster(t, 3)
	name := ownedBy(ringOf("m0", "m1", "m2"), "m2", 1)[0]
	const lim = 90
	q := newRequest(name, lim, 1)
	if a := ms[0].decideOne(patience, q); a.Path != owner.Forwarded {
		t.Fatalf("before: %+v", a)
	}
	ms[2].Close()
	ms[0].awaitLinks(t, 1)
	ms[1].awaitLinks(t, 1)
	admitted := 0
	for range lim {
		for _, m := range ms[:2] {
			a := m.decideOne(patience, q)
			if a.Path != owner.Fallback || a.Authority != owner.Share {
				t.Fatalf("after: %+v", a)
			}
			if !a.Over {
				admitted++
			}
		}
	}
	if admitted != 2*lim/3 {
		t.Errorf("%d admitted by two shares of three, want %d", admitted, 2*lim/3)
	}
	if n := ms[0].forwardCount(forwardUnreachable); n != lim {
		t.Errorf("%v requests to an unreachable member, want %d", n, lim)
	}
}

// Requests without a reply when a stream breaks do not wait for their deadline.
func TestStreamBreaks(t *testing.T) {
	s := newStub(t, func(conn net.Conn) {
		in := frames{src: conn}
		for {
			if in.fill() != nil {
				return
			}
			if typ, _, whole, _ := in.next(); whole && typ == frameRequest {
				return // after the request was read
			}
		}
	})
	m, r := withStub(t, s)
	m.awaitOld(t, "stub")
	// If it waited, the test would time out.
	a := m.decideOne(time.Hour, newRequest(ownedBy(r, "stub", 1)[0], 10, 1))
	if a.Path != owner.Fallback {
		t.Errorf("%+v", a)
	}
	if n := m.forwardCount(forwardBroken); n != 1 {
		t.Errorf("%v requests broken, want 1", n)
	}
}

// A silent member delays a few requests until their deadline. The others are decided without it at once. When it
// replies again, requests are forwarded to it again.
func TestSilentMember(t *testing.T) {
	t.Parallel()
	var speak atomic.Bool
	backend := newMember(t, "stub")
	backend.alone()
	s := newStub(t, func(conn net.Conn) {
		if !speak.Load() {
			readOnly(conn)
			return
		}
		srv := server{p: backend.Peer, conn: conn, in: frames{src: conn}, from: "m0"}
		srv.run()
	})
	m, r := withStub(t, s)
	m.awaitOld(t, "stub")
	q := newRequest(ownedBy(r, "stub", 1)[0], math.MaxUint32, 1)
	live := func() bool { return m.Links()[0].Live }
	await(t, "requests not to be sent although there is a stream", func() bool {
		before, stood := m.forwardCount(forwardUnreachable), live()
		if a := m.decideOne(5*time.Millisecond, q); a.Path != owner.Fallback {
			t.Fatalf("%+v", a)
		}
		return m.forwardCount(forwardUnreachable) > before && stood && live()
	})
	if n := m.Links()[0].Pending; n != 0 {
		t.Errorf("%d groups still wait after their callers have given up", n)
	}
	if m.forwardCount(forwardTimeout)+m.forwardCount(forwardLate) < unresponsiveTimeouts {
		t.Errorf("given up after %v timeouts", m.forwardCount(forwardTimeout)+m.forwardCount(forwardLate))
	}
	await(t, "the silent stream to be closed", func() bool { return m.logged("silent for") })
	speak.Store(true)
	await(t, "requests to be forwarded again", func() bool { return m.decideOne(patience, q).Path == owner.Forwarded })
}

// No request waits for a port that accepts connections and never completes a handshake.
func TestSilentPort(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	m, r := withStub(t, &stub{addr: ln.Addr().String()})
	if a := m.decideOne(time.Hour, newRequest(ownedBy(r, "stub", 1)[0], 10, 1)); a.Path != owner.Fallback {
		t.Errorf("%+v", a)
	}
}

func TestQueueFull(t *testing.T) {
	m, r := withStub(t, newStub(t, readOnly), func(o *Options) { o.QueueGroups = 4 })
	m.awaitOld(t, "stub")
	q := newRequest(ownedBy(r, "stub", 1)[0], 10, 1)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { m.decideOne(time.Hour, q) })
	}
	await(t, "six requests to be refused", func() bool {
		return m.forwardCount(forwardQueueFull)+m.forwardCount(forwardShed) == 6
	})
	if w := m.Links()[0].Pending; w != 4 {
		t.Errorf("%d groups waiting, want 4", w)
	}
	m.Close() // breaks the stream
	wg.Wait()
	if n := m.forwardCount(forwardBroken); n != 4 {
		t.Errorf("%v requests broken, want 4", n)
	}
}

// The bytes that wait to be written are bounded as well.
func TestQueueBytes(t *testing.T) {
	m, r := withStub(t, newStub(t, readOnly), func(o *Options) { o.QueueBytes = 10 << 10 })
	m.awaitOld(t, "stub")
	names := ownedBy(r, "stub", maxRequests)
	reqs, results := make([]owner.Request, len(names)), make([]owner.Result, len(names))
	for i := range reqs {
		reqs[i] = newRequest(names[i], 10, 1)
	}
	m.Decide(by(time.Hour), false, reqs, results)
	if n := m.forwardCount(forwardQueueFull) + m.forwardCount(forwardShed); n != maxRequests {
		t.Errorf("%v requests refused, want %d", n, maxRequests)
	}
}

func TestDeadlinePassed(t *testing.T) {
	ms := newCluster(t, 2)
	name := ownedBy(ringOf("m0", "m1"), "m1", 1)[0]
	if a := ms[0].decideOne(-time.Second, newRequest(name, 10, 1)); a.Path != owner.Fallback {
		t.Errorf("%+v", a)
	}
	// Streams keep their order, so a charge that was sent before would be visible.
	if a := ms[0].decideOne(patience, newRequest(name, 10, 1)); a.Path != owner.Forwarded || a.After != 1 {
		t.Errorf("after a request without time: %+v", a)
	}
}
