package peer

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner"
)

// A result that comes when its call has given up changes nothing, and the call is not used again.
func TestResultAfterTheCall(t *testing.T) {
	m := newMember(t, "m0").alone()
	c := m.newCall().(*call)
	results, done := make([]owner.Result, 1), newSyncWaiter().(syncWaiter)
	c.mu.Lock()
	c.start(0, &callArgs{by(0), []owner.Request{newRequest("k", 10, 1)}, results, done})
	c.setDeadline(by(0))
	results[0].Kind = owner.Pending
	c.dispatch(0, 0)
	for range 2 { // Node does not know the request, as if its result were on the way: that is waited for once
		c.now = c.checkAt
		c.expire()
	}
	if !c.leaked || c.open != 0 || results[0].Kind != owner.Decided || results[0].Path != owner.Fallback {
		t.Errorf("leaked %v, %d open, %+v", c.leaked, c.open, results[0])
	}
	if c.advance() == nil {
		t.Error("the call has not ended")
	}
	before := results[0]
	c.slots[0].complete(&owner.Result{Decision: limit.Decision{After: 7}})
	if results[0] != before || m.calls.Get() == any(c) {
		t.Errorf("%+v after %+v", results[0], before)
	}
}

// noWaiter is a waiter that drops its result.
type noWaiter int

func (noWaiter) complete(*owner.Result) {}

// loneOwner returns a member whose successor has just failed, so strict requests wait.
func loneOwner(t *testing.T) (m *member, q owner.Request) {
	t.Helper()
	ms := newCluster(t, 2)
	ms[1].Close()
	ms[0].awaitLinks(t, 0)
	q = newRequest(ownedBy(ringOf("m0", "m1"), "m0", 1)[0], 100, 1)
	return ms[0], q
}

// A deferred group does not delay those behind it, and is dropped when its requester has given up.
func TestDeferredGroup(t *testing.T) {
	m, q := loneOwner(t)
	conn := handshake(t, m)
	strict := newRequest(ownedBy(ringOf("m0", "m1"), "m0", 2)[1], 100, 1)
	strict.Strict = true
	b := appendRequests(nil, requestGroup{id: 1, ttl: 50 * time.Millisecond, count: 2}, []owner.Request{q, strict},
		[]uint16{0, 1})
	q.Op = owner.Read
	b = appendRequests(b, requestGroup{id: 2, ttl: time.Hour, count: 1}, []owner.Request{q}, []uint16{0})
	conn.Write(b)
	in := &frames{src: conn}
	if id, outcome, results := nextAnswer(t, in); id != 2 || outcome != groupServed || len(results) != 1 ||
		results[0].Kind != owner.Decided {
		t.Errorf("%d, %d, %+v", id, outcome, results)
	}
	await(t, "the group to be dropped", func() bool { return m.node.Stats(m.Now()).Pending == 0 })
	if n := testutil.ToFloat64(m.m.waits[waitExpired]); n < 1 {
		t.Errorf("%v expired", n)
	}
	q.Op = owner.DryRun
	conn.Write(appendRequests(nil, requestGroup{id: 3, ttl: time.Hour, count: 1}, []owner.Request{q}, []uint16{0}))
	if id, _, _ := nextAnswer(t, in); id != 3 {
		t.Errorf("group %d was answered after it was dropped", id)
	}
}

// fillPending makes as many requests wait in m's Node as it allows.
func fillPending(m *member) {
	other := newRequest(ownedBy(ringOf("m0", "m1"), "m0", 2)[1], 1<<30, 1)
	other.Strict = true
	for i := range 8192 { // owner.Options.MaxWaiting
		other.Waiter = noWaiter(i)
		m.node.Decide(m.Now(), &other)
	}
}

// Above the bound an all-or-nothing call is charged once, as any other call: it is not sent to owners for a second round.
func TestTooManyWaitsOfAStopCall(t *testing.T) {
	m, _ := loneOwner(t)
	fillPending(m)
	var charged []uint64
	for i, stop := range []bool{false, true} {
		q := newRequest(ownedBy(ringOf("m0", "m1"), "m0", 4)[2+i], 100, 1)
		q.Strict = true
		results := make([]owner.Result, 1)
		m.Decide(by(time.Hour), stop, []owner.Request{q}, results)
		if results[0].Kind != owner.Decided || results[0].Path != owner.Fallback {
			t.Errorf("stop %v: %+v", stop, results[0])
		}
		q.Op, q.Hits = owner.Read, 0
		charged = append(charged, m.decideOne(time.Hour, q).After)
	}
	if charged[0] == 0 || charged[0] != charged[1] {
		t.Errorf("charged %d, and %d by an all-or-nothing call", charged[0], charged[1])
	}
}

// Above the bound no request waits: requests are degraded here, and returned to their requesters.
func TestTooManyWaits(t *testing.T) {
	m, q := loneOwner(t)
	q.Strict = true
	fillPending(m)
	if a := m.decideOne(time.Hour, q); a.Path != owner.Fallback {
		t.Errorf("%+v", a)
	}
	conn := handshake(t, m)
	conn.Write(appendRequests(nil, requestGroup{id: 1, ttl: time.Hour, count: 1}, []owner.Request{q}, []uint16{0}))
	if id, outcome, results := nextAnswer(t, &frames{src: conn}); id != 1 || outcome != groupServed ||
		results[0].Kind != owner.Forward || results[0].Member != "" {
		t.Errorf("%d, %d, %+v", id, outcome, results)
	}
	if n := testutil.ToFloat64(m.m.waits[waitOverflow]); n != 2 {
		t.Errorf("%v over the bound", n)
	}
}

// owed returns a member that has keys keys, and a stub on its ring that waits for its own. serve serves the stub.
func owed(t *testing.T, keys int, serve func(net.Conn, hello)) *member {
	t.Helper()
	s := newStubOf(t, 2, serve)
	m := newMember(t, "m0").alone()
	await(t, "its keys", func() bool { return m.node.Progress().Complete() })
	for i := range keys {
		q := newRequest(fmt.Sprint("many ", i), 10, 1)
		m.node.Decide(m.Now(), &q)
	}
	r := ringOf("m0", "stub")
	m.SetView(viewOf("m0", r, append(membersOf([]*member{m}), announced("stub", s.addr))))
	m.awaitLinks(t, 1)
	hello := m.hello
	hello.from, hello.fromBoot, hello.to, hello.toBoot = "stub", bootOf("stub"), "m0", bootOf("m0")
	conn := dialRaw(t, m, appendHello(nil, hello))
	ping := protocol.Message{Kind: protocol.Ping, Flags: protocol.NeedsAck, Ring: r.Fingerprint(), Seq: 1,
		Sent: m.Now(), Now: m.Now()}
	b, err := appendMsg(nil, &ping, new(counterwire.Writers))
	if err != nil {
		t.Fatal(err)
	}
	conn.Write(b)
	return m
}

// A receiver that does not read blocks its transfer, and nothing else.
func TestTransferBlocks(t *testing.T) {
	var transfers atomic.Int32
	block := make(chan struct{})
	m := owed(t, 300_000, func(conn net.Conn, h hello) {
		if h.purpose == forTransfer {
			conn.(*net.TCPConn).SetReadBuffer(4096)
			transfers.Add(1)
			<-block
			return
		}
		readOnly(conn)
	})
	defer close(block)
	sent := func() float64 { return testutil.ToFloat64(m.m.keysSent) }
	await(t, "the transfer to begin", func() bool { return transfers.Load() == 1 && sent() > 0 })
	last := -1.0
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	await(t, "the transfer to stop", func() bool {
		<-tick.C
		was := last
		last = sent()
		return was == last
	})
	if m.node.Progress().Unconfirmed == 0 || m.Stats().Transfers != 1 {
		t.Errorf("after %v counters the transfer is done", last)
	}
	m.Close() // does not wait for the receiver
}

// A transfer that fails starts again.
func TestTransferBreaks(t *testing.T) {
	var transfers atomic.Int32
	m := owed(t, 2000, func(conn net.Conn, h hello) {
		if h.purpose == forTransfer {
			transfers.Add(1)
			return
		}
		readOnly(conn)
	})
	await(t, "another attempt", func() bool { return transfers.Load() > 1 })
	if n := testutil.ToFloat64(m.m.incomplete); n < 1 {
		t.Errorf("%v counted", n)
	}
	if !m.logged("transfer failed") {
		t.Error("not logged")
	}
}
