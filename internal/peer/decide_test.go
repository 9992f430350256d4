package peer

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// Every key is counted at one member, whichever member receives the requests, and exactly its limit is admitted.
func TestExact(t *testing.T) {
	ms := newCluster(t, 3)
	const keys, lim, callers, rounds = 40, 50, 4, 10
	var admitted [keys]atomic.Int64
	var fallbacks atomic.Int64
	var wg sync.WaitGroup
	for _, m := range ms {
		for range callers {
			wg.Go(func() {
				reqs, results := make([]owner.Request, keys), make([]owner.Result, keys)
				for k := range reqs {
					reqs[k] = newRequest(fmt.Sprint("exact ", k), lim, 1)
				}
				for range rounds {
					m.Decide(by(patience), false, reqs, results)
					for k := range results {
						if !results[k].Over {
							admitted[k].Add(1)
						}
						if results[k].Path == owner.Fallback {
							fallbacks.Add(1)
						}
					}
				}
			})
		}
	}
	wg.Wait()
	if n := fallbacks.Load(); n != 0 {
		t.Errorf("%d results came from degraded policies", n)
	}
	for k := range admitted {
		if n := admitted[k].Load(); n != lim {
			t.Errorf("key %d: %d admitted, want %d", k, n, lim)
		}
	}
	counters := 0
	for _, m := range ms {
		counters += m.Stats().Keys
	}
	if counters != keys {
		t.Errorf("%d counters for %d keys", counters, keys)
	}
}

func TestPaths(t *testing.T) {
	ms := newCluster(t, 2)
	r := ringOf("m0", "m1")
	if a := ms[0].decideOne(patience, newRequest(ownedBy(r, "m0", 1)[0], 5, 1)); a.Path != owner.Local || a.Over {
		t.Errorf("own key: %+v", a)
	}
	a := ms[0].decideOne(patience, newRequest(ownedBy(r, "m1", 1)[0], 5, 3))
	if a.Path != owner.Forwarded || a.Kind != owner.Decided || a.Before != 0 || a.After != 3 || a.Remaining != 2 ||
		a.Reset <= 0 {
		t.Errorf("other's key: %+v", a)
	}
	if n := ms[0].forwardCount(forwardOK); n != 1 {
		t.Errorf("%v requests decided by others, want 1", n)
	}
}

// More requests than one group may have are split, and all of them are decided.
func TestManyRequests(t *testing.T) {
	ms := newCluster(t, 2)
	names := ownedBy(ringOf("m0", "m1"), "m1", 2*maxRequests+10)
	for _, stop := range []bool{false, true} {
		reqs, results := make([]owner.Request, len(names)), make([]owner.Result, len(names))
		for i, n := range names {
			reqs[i] = newRequest(fmt.Sprint(n), 10, 1)
		}
		ms[0].Decide(by(patience), stop, reqs, results)
		for i := range results {
			if results[i].Path != owner.Forwarded || results[i].Over {
				t.Fatalf("stop %v: result %d: %+v", stop, i, results[i])
			}
		}
	}
}

func TestStopMode(t *testing.T) {
	ms := newCluster(t, 3)
	r := ringOf("m0", "m1", "m2")
	mine, one, two := ownedBy(r, "m0", 1)[0], ownedBy(r, "m1", 2), ownedBy(r, "m2", 1)[0]
	for _, tt := range []struct{ name, a, b string }{
		{"one other owner", one[0], one[1]},
		{"here and there", mine, one[0]},
		{"two others", one[1], two},
	} {
		t.Run(tt.name, func(t *testing.T) {
			suffix := tt.name
			reqs := []owner.Request{newRequest(tt.a, 15, 10), newRequest(tt.b, 14, 10)}
			for i := range reqs {
				reqs[i].Key[0] += ring.Hash(suffix) // other counters of the same owners
			}
			step := func(hits uint64, wantAfter [2]uint64, wantOver [2]bool) {
				t.Helper()
				reqs[0].Hits, reqs[1].Hits = hits, hits
				results := make([]owner.Result, 2)
				ms[0].Decide(by(patience), true, reqs, results)
				for i := range results {
					if results[i].Path == owner.Fallback || results[i].After != wantAfter[i] ||
						results[i].Over != wantOver[i] {
						t.Errorf("hits %d, result %d: %+v, want after %d, over %v", hits, i, results[i],
							wantAfter[i], wantOver[i])
					}
				}
			}
			step(11, [2]uint64{11, 11}, [2]bool{})
			step(2, [2]uint64{13, 13}, [2]bool{})
			// The second would exceed its limit, so only the second is charged.
			step(2, [2]uint64{13, 15}, [2]bool{false, true})
			step(2, [2]uint64{13, 17}, [2]bool{false, true})
		})
	}
}

// A member that no longer owns a key names the new owner, to which the request is then forwarded.
func TestReroute(t *testing.T) {
	ms := newCluster(t, 3)
	before, after := ringOf("m0", "m1", "m2"), ringOf("m0", "m2")
	var name string
	for _, n := range ownedBy(before, "m1", 100) {
		if after.At(after.Owner(ring.Hash(n))).ID == "m2" {
			name = n
			break
		}
	}
	for _, m := range ms[1:] {
		m.setRing([]*member{ms[0], ms[2]}, ms)
	}
	look := newRequest(name, 10, 0)
	look.Op = owner.Read
	await(t, "the key to be handed over", func() bool { return ms[2].decideOne(patience, look).Path == owner.Local })
	if a := ms[0].decideOne(patience, newRequest(name, 10, 4)); a.Path != owner.Forwarded || a.After != 4 {
		t.Errorf("%+v", a)
	}
	if no, yes := ms[0].forwardCount(forwardNotOwner), ms[0].forwardCount(forwardOK); no != 1 || yes != 1 {
		t.Errorf("%v not owner and %v ok, want 1 and 1", no, yes)
	}
	// The same with stop, with one and with two members.
	for _, names := range [][]string{{name}, {name, ownedBy(before, "m0", 1)[0]}} {
		reqs, results := make([]owner.Request, len(names)), make([]owner.Result, len(names))
		for i, n := range names {
			reqs[i] = newRequest(n, 10, 1)
		}
		ms[0].Decide(by(patience), true, reqs, results)
		for i := range results {
			if results[i].Path == owner.Fallback || results[i].Over {
				t.Errorf("stop, %d requests: result %d: %+v", len(names), i, results[i])
			}
		}
	}
}

// Members that each take another one for the owner of a key do not forward in a loop: the member that received the
// request tries again, at growing intervals, until the deadline.
func TestNoLoop(t *testing.T) {
	var ms []*member
	for i := range 3 {
		ms = append(ms, newMember(t, ring.ID(fmt.Sprintf("m%d", i))))
	}
	q := newRequest("any", 10, 1)
	for i, owns := range []ring.ID{"m1", "m2", "m1"} {
		ms[i].SetView(viewOf(ms[i].id, ringOf(owns), membersOf(ms)))
	}
	for _, m := range ms {
		m.awaitLinks(t, 2)
		await(t, "the others to trust "+string(m.id), func() bool {
			a := m.node.Decide(m.Now(), &q)
			return a.Kind == owner.Forward && a.Member != ""
		})
	}
	for _, stop := range []bool{false, true} {
		before := ms[0].forwardCount(forwardNotOwner)
		results := make([]owner.Result, 1)
		ms[0].Decide(by(10*maxRetryDelay), stop, []owner.Request{newRequest("any", 10, 1)}, results)
		if results[0].Path != owner.Fallback || results[0].Kind != owner.Decided {
			t.Errorf("stop %v: %+v", stop, results[0])
		}
		// Seven delays add up to one of the longest, and ten of those are the whole time. With stop, each round
		// forwards twice.
		if n := ms[0].forwardCount(forwardNotOwner) - before; n < 2 || n > 2*(10+8) {
			t.Errorf("stop %v: forwarded %v times", stop, n)
		}
	}
	for _, m := range ms[1:] {
		if n := m.forwardCount(forwardOK) + m.forwardCount(forwardNotOwner); n != 0 {
			t.Errorf("%s has forwarded %v requests that were forwarded to it", m.id, n)
		}
	}
}

func TestClosed(t *testing.T) {
	ms := newCluster(t, 2)
	r := ringOf("m0", "m1")
	ms[0].Close()
	ms[0].setMembers(ms) // starts nothing
	if a := ms[0].decideOne(patience, newRequest(ownedBy(r, "m1", 1)[0], 10, 1)); a.Path != owner.Fallback ||
		a.Kind != owner.Decided {
		t.Errorf("%+v", a)
	}
	if n := len(ms[0].Links()); n != 0 {
		t.Errorf("%d links after Close", n)
	}
}

// The ring changes during requests: every request is decided, and what the owners of a key admit is within its limit.
func TestChurn(t *testing.T) {
	ms := newCluster(t, 3)
	const keys, lim = 20, 30
	var admitted [keys]atomic.Int64
	done := make(chan struct{})
	var wg, churn sync.WaitGroup
	churn.Go(func() {
		rings := [][]*member{ms[:2], ms, ms[1:]}
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			ms[i%3].setRing(rings[i/5%3], ms)
		}
	})
	for _, m := range ms {
		wg.Go(func() {
			reqs, results := make([]owner.Request, keys), make([]owner.Result, keys)
			for k := range reqs {
				reqs[k] = newRequest(fmt.Sprint("churn ", k), lim, 1)
			}
			for i := range 60 {
				clear(results)
				m.Decide(by(time.Second), i%2 == 0, reqs, results)
				for k := range results {
					if results[k].Kind != owner.Decided {
						t.Errorf("undecided: %+v", results[k])
					}
					if i%2 != 0 && !results[k].Over && results[k].Authority != owner.Share {
						admitted[k].Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	close(done)
	churn.Wait()
	for k := range admitted {
		if n := admitted[k].Load(); n > lim {
			t.Errorf("key %d: %d admitted by its holders", k, n)
		}
	}
}

// A reply that arrives after the call has ended changes nothing, not even for the next use of the pooled call.
func TestLateReply(t *testing.T) {
	m := newMember(t, "m0").alone()
	c := m.newCall().(*call)
	late := appendResult(nil, &owner.Result{Kind: owner.Decided, Authority: owner.Cached})
	reply := func() *wire.Reader { r := wire.NewReader(late); return &r }
	results, done := make([]owner.Result, 1), newSyncWaiter().(syncWaiter)
	start := func() (gen uint64) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.start(0, &callArgs{by(time.Hour), make([]owner.Request, 1), results, done})
		c.setDeadline(by(time.Hour))
		c.addRequest("x", 0, 0, 0)
		c.groups[0].stage, c.unsent = groupSent, 0
		return c.gen
	}
	gen := start()
	c.mu.Lock()
	c.finish()
	c.mu.Unlock()
	start()
	if err := c.handleReply(&sentGroup{call: c, gen: gen}, 1, replyHead{outcome: groupServed, count: 1},
		reply()); err != nil {
		t.Error(err)
	}
	c.failGroup(gen, 0, forwardBroken)
	c.slots[0].complete(&owner.Result{})
	if results[0] != (owner.Result{}) || c.open != 1 || len(done) != 0 {
		t.Errorf("results %+v, %d open, %d completions", results, c.open, len(done))
	}
	if err := c.handleReply(&sentGroup{call: c, gen: c.gen}, 1, replyHead{outcome: groupServed, count: 1},
		reply()); err != nil || len(done) != 1 || results[0].Authority != owner.Cached {
		t.Errorf("the present life: %+v, %v", results, err)
	}
}

// A lasting failure is logged once, however often the member is dialed.
func TestLogsOnce(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var dialled atomic.Int32
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			readHandshake(conn, frameHello)
			conn.Close()
			dialled.Add(1)
		}
	})
	m, _ := withStub(t, &stub{addr: ln.Addr().String()})
	await(t, "some attempts", func() bool { return dialled.Load() > 3 })
	m.Close()
	ln.Close()
	wg.Wait()
	if n := strings.Count(m.log.String(), "peer unreachable"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, m.log)
	}
	var text string
	for port := range 3 {
		err := fmt.Errorf("handshake: %w", &net.OpError{Op: "read", Source: &net.TCPAddr{Port: port},
			Err: os.ErrDeadlineExceeded})
		if k := stableError(err); text != "" && k != text {
			t.Errorf("%q and %q", k, text)
		} else {
			text = k
		}
	}
}
