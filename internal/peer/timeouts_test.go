package peer

import (
	"math"
	"net"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// deadlines returns a deadline for silent owners and a later one for live owners.
func deadlines(silent, alive time.Duration) policy.Deadline {
	now := time.Now()
	return policy.Deadline{Silent: now.Add(silent), Alive: now.Add(alive)}
}

func decideBy(m *member, d policy.Deadline, q owner.Request) owner.Result {
	results := make([]owner.Result, 1)
	m.Decide(d, false, []owner.Request{q}, results)
	return results[0]
}

// A local share does not replace an owner that is alive and too slow: the request is refused and not charged.
func TestLateOwnerIsNotReplaced(t *testing.T) {
	t.Parallel()
	m, r := withStub(t, newStub(t, pongs))
	m.awaitOld(t, "stub")
	name := ownedBy(r, "stub", 1)[0]
	for _, stop := range []bool{false, true} {
		results := make([]owner.Result, 2)
		reqs := []owner.Request{newRequest(name, 10, 1), newRequest(ownedBy(r, "stub", 2)[1], 10, 1)}
		m.Decide(deadlines(time.Millisecond, 20*time.Millisecond), stop, reqs, results)
		for _, a := range results {
			if a.Authority != owner.Shed || !a.Over || a.Path != owner.Fallback {
				t.Errorf("stop %v: %+v", stop, a)
			}
		}
	}
	if n := m.forwardCount(forwardLate); n != 4 {
		t.Errorf("%v requests too late, want 4", n)
	}
	open := newRequest(name, 10, 1)
	open.Degraded = policy.FailOpen
	if a := decideBy(m, deadlines(time.Millisecond, 20*time.Millisecond), open); a.Authority != owner.Open || a.Over {
		t.Errorf("a rule that fails open: %+v", a)
	}
}

// pongs answers pings and does not reply to requests.
func pongs(conn net.Conn) {
	in := frames{src: conn}
	stop := make(chan struct{})
	defer close(stop)
	go func() { // a sign of life now and then, like a member that replies to others
		for {
			select {
			case <-time.After(5 * time.Millisecond):
				conn.Write(appendPing(nil, framePong, 0))
			case <-stop:
				return
			}
		}
	}()
	for in.fill() == nil {
		for whole := true; whole; {
			_, _, whole, _ = in.next()
		}
	}
}

// Forwarding to a silent owner fails before the deadline for live owners, and the local share decides.
func TestSilentOwnerIsReplaced(t *testing.T) {
	t.Parallel()
	m, r := withStub(t, newStub(t, readOnly))
	m.awaitOld(t, "stub")
	if a := decideBy(m, deadlines(time.Millisecond, time.Hour),
		newRequest(ownedBy(r, "stub", 1)[0], 10, 1)); a.Authority != owner.Share || a.Over {
		t.Errorf("%+v", a)
	}
}

// A call waits for an owner that replies after the deadline for silent owners.
func TestCallWaitsForSlowOwner(t *testing.T) {
	t.Parallel()
	backend := newMember(t, "stub")
	backend.alone()
	m, r := withStub(t, newStub(t, func(conn net.Conn) {
		srv := server{p: backend.Peer, conn: slow{conn}, in: frames{src: conn}, from: "m0"}
		srv.run()
	}))
	m.awaitOld(t, "stub")
	if a := decideBy(m, deadlines(time.Millisecond, patience),
		newRequest(ownedBy(r, "stub", 1)[0], 10, 1)); a.Path != owner.Forwarded || a.After != 1 {
		t.Errorf("%+v", a)
	}
}

// slow is a connection with delayed writes.
type slow struct{ net.Conn }

func (s slow) Write(b []byte) (int, error) {
	time.Sleep(50 * time.Millisecond)
	return s.Conn.Write(b)
}

// A group that would wait for longer than its caller is refused. A group with little delay never is.
func TestQueueTooLong(t *testing.T) {
	var l link
	for range 10 * paceSamples {
		l.recordPace(int64(time.Second), 1000) // a millisecond each
	}
	if l.pace < int64(900*time.Microsecond) || l.pace > int64(time.Millisecond) {
		t.Fatalf("pace %v", time.Duration(l.pace))
	}
	for range minQueue - 1 {
		l.sentGroups.put(sentGroup{call: new(call)})
	}
	if l.queueTooLong(0) {
		t.Errorf("%d groups are too many", l.sentGroups.len())
	}
	l.sentGroups.put(sentGroup{call: new(call)})
	if !l.queueTooLong(int64(20*time.Millisecond)) || l.queueTooLong(int64(100*time.Millisecond)) {
		t.Errorf("of %d groups of a millisecond one more is answered in time: %v, %v", l.sentGroups.len(),
			l.queueTooLong(int64(20*time.Millisecond)), l.queueTooLong(int64(100*time.Millisecond)))
	}
	for range 10 * paceSamples {
		l.recordPace(int64(time.Millisecond), 1) // no queue
	}
	if l.queueTooLong(int64(20 * time.Millisecond)) {
		t.Errorf("pace %v after the queue has gone", time.Duration(l.pace))
	}
	if math.MaxInt64/l.pace < 1<<20 {
		t.Error("the product may overflow")
	}
}
