package peer

import (
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// Every key is counted at one member whoever is asked, and exactly its limit is admitted.
func TestExact(t *testing.T) {
	ms := newCluster(t, 3)
	const keys, lim, askers, rounds = 40, 50, 4, 10
	var admitted [keys]atomic.Int64
	var fallbacks atomic.Int64
	var wg sync.WaitGroup
	for _, m := range ms {
		for range askers {
			wg.Go(func() {
				qs, as := make([]owner.Question, keys), make([]owner.Answer, keys)
				for k := range qs {
					qs[k] = question(fmt.Sprint("exact ", k), lim, 1)
				}
				for range rounds {
					m.Decide(time.Now().Add(patience), false, qs, as)
					for k := range as {
						if !as[k].Over {
							admitted[k].Add(1)
						}
						if as[k].Path == owner.Fallback {
							fallbacks.Add(1)
						}
					}
				}
			})
		}
	}
	wg.Wait()
	if n := fallbacks.Load(); n != 0 {
		t.Errorf("%d answers came from degraded policies", n)
	}
	for k := range admitted {
		if n := admitted[k].Load(); n != lim {
			t.Errorf("key %d: %d admitted, want %d", k, n, lim)
		}
	}
	counters := 0
	for _, m := range ms {
		counters += m.Facts().Keys
	}
	if counters != keys {
		t.Errorf("%d counters for %d keys", counters, keys)
	}
}

func TestPaths(t *testing.T) {
	ms := newCluster(t, 2)
	r := ringOf("m0", "m1")
	if a := ms[0].ask(patience, question(ownedBy(r, "m0", 1)[0], 5, 1)); a.Path != owner.Local || a.Over {
		t.Errorf("own key: %+v", a)
	}
	a := ms[0].ask(patience, question(ownedBy(r, "m1", 1)[0], 5, 3))
	if a.Path != owner.Forwarded || a.Kind != owner.Decided || a.Before != 0 || a.After != 3 || a.Remaining != 2 || a.Reset <= 0 {
		t.Errorf("other's key: %+v", a)
	}
	if n := ms[0].counted(ok); n != 1 {
		t.Errorf("%v questions answered by others, want 1", n)
	}
}

// More questions than one group holds are split, and all of them are answered.
func TestManyQuestions(t *testing.T) {
	ms := newCluster(t, 2)
	names := ownedBy(ringOf("m0", "m1"), "m1", 2*maxQuestions+10)
	for _, stop := range []bool{false, true} {
		qs, as := make([]owner.Question, len(names)), make([]owner.Answer, len(names))
		for i, n := range names {
			qs[i] = question(fmt.Sprint(n), 10, 1)
		}
		ms[0].Decide(time.Now().Add(patience), stop, qs, as)
		for i := range as {
			if as[i].Path != owner.Forwarded || as[i].Over {
				t.Fatalf("stop %v: answer %d: %+v", stop, i, as[i])
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
			qs := []owner.Question{question(tt.a, 15, 10), question(tt.b, 14, 10)}
			for i := range qs {
				qs[i].Key[0] += ring.Hash(suffix) // other counters of the same owners
			}
			step := func(hits uint64, wantAfter [2]uint64, wantOver [2]bool) {
				t.Helper()
				qs[0].Hits, qs[1].Hits = hits, hits
				as := make([]owner.Answer, 2)
				ms[0].Decide(time.Now().Add(patience), true, qs, as)
				for i := range as {
					if as[i].Path == owner.Fallback || as[i].After != wantAfter[i] || as[i].Over != wantOver[i] {
						t.Errorf("hits %d, answer %d: %+v, want after %d, over %v", hits, i, as[i], wantAfter[i], wantOver[i])
					}
				}
			}
			step(11, [2]uint64{11, 11}, [2]bool{})
			step(2, [2]uint64{13, 13}, [2]bool{})
			// The second would go over, so the first is not charged and the second is.
			step(2, [2]uint64{13, 15}, [2]bool{false, true})
			step(2, [2]uint64{13, 17}, [2]bool{false, true})
		})
	}
}

// A member that has died is answered for at once; its share of the keys is admitted by the others' shares.
func TestOwnerDies(t *testing.T) {
	ms := newCluster(t, 3)
	name := ownedBy(ringOf("m0", "m1", "m2"), "m2", 1)[0]
	const lim = 90
	q := question(name, lim, 1)
	if a := ms[0].ask(patience, q); a.Path != owner.Forwarded {
		t.Fatalf("before: %+v", a)
	}
	ms[2].Close()
	ms[0].awaitLinks(t, 1)
	ms[1].awaitLinks(t, 1)
	admitted := 0
	for range lim {
		for _, m := range ms[:2] {
			a := m.ask(patience, q)
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
	if n := ms[0].counted(unreachable); n != lim {
		t.Errorf("%v questions to an unreachable member, want %d", n, lim)
	}
}

// Questions that are out when a stream breaks do not wait for their deadline.
func TestStreamBreaks(t *testing.T) {
	s := newStub(t, func(conn net.Conn) {
		in := frames{src: conn}
		for {
			if in.fill() != nil {
				return
			}
			if typ, _, whole, _ := in.next(); whole && typ == frameAsk {
				return // having read the question
			}
		}
	})
	m, r := withStub(t, s)
	m.awaitLinks(t, 1)
	// Were it to wait, the test would time out.
	a := m.ask(time.Hour, question(ownedBy(r, "stub", 1)[0], 10, 1))
	if a.Path != owner.Fallback {
		t.Errorf("%+v", a)
	}
	if n := m.counted(broken); n != 1 {
		t.Errorf("%v questions broken, want 1", n)
	}
}

// A member that is silent costs a few questions their deadline; the others are answered without it at once, and when it
// speaks again it is asked again.
func TestSilentMember(t *testing.T) {
	var speak atomic.Bool
	backend := newMember(t, "stub")
	backend.SetView(ringOf("m0", "stub"), owner.Standing{NRef: 2, Joined: true}, nil)
	s := newStub(t, func(conn net.Conn) {
		if !speak.Load() {
			swallow(conn)
			return
		}
		srv := server{node: backend.node, clock: backend.clock, conn: conn, in: frames{src: conn}, from: "m0"}
		srv.run()
	})
	m, r := withStub(t, s)
	m.awaitLinks(t, 1)
	q := question(ownedBy(r, "stub", 1)[0], math.MaxUint32, 1)
	await(t, "questions not to be sent any more", func() bool {
		if a := m.ask(5*time.Millisecond, q); a.Path != owner.Fallback {
			t.Fatalf("%+v", a)
		}
		return m.counted(unreachable) > 0
	})
	if m.counted(timeout) < doubtAfter {
		t.Errorf("given up after %v timeouts", m.counted(timeout))
	}
	await(t, "the silent stream to be closed", func() bool { return m.logged("silent for") })
	speak.Store(true)
	await(t, "the member to be asked again", func() bool { return m.ask(patience, q).Path == owner.Forwarded })
}

// A port that accepts and never shakes hands is never waited for.
func TestSilentPort(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	m, r := withStub(t, &stub{addr: Addr{HostPort: ln.Addr().String()}})
	if a := m.ask(time.Hour, question(ownedBy(r, "stub", 1)[0], 10, 1)); a.Path != owner.Fallback {
		t.Errorf("%+v", a)
	}
}

func TestQueueFull(t *testing.T) {
	m, r := withStub(t, newStub(t, swallow), func(o *Options) { o.QueueGroups = 4 })
	m.awaitLinks(t, 1)
	q := question(ownedBy(r, "stub", 1)[0], 10, 1)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { m.ask(time.Hour, q) })
	}
	await(t, "six questions to be turned back", func() bool { return m.counted(queueFull) == 6 })
	if w := m.Links()[0].Waiting; w != 4 {
		t.Errorf("%d groups waiting, want 4", w)
	}
	m.Close() // breaks the stream
	wg.Wait()
	if n := m.counted(broken); n != 4 {
		t.Errorf("%v questions broken, want 4", n)
	}
}

// What waits to be written is bounded in bytes as well.
func TestQueueBytes(t *testing.T) {
	hold := make(chan struct{})
	s := newStub(t, func(conn net.Conn) { <-hold })
	defer close(hold)
	m, r := withStub(t, s, func(o *Options) { o.QueueBytes = 32 << 10; o.QueueGroups = 1 << 20 })
	m.awaitLinks(t, 1)
	names := ownedBy(r, "stub", maxQuestions)
	qs, as := make([]owner.Question, len(names)), make([]owner.Answer, len(names))
	for i := range qs {
		qs[i] = question(names[i], 10, 1)
	}
	await(t, "the queue to be full", func() bool {
		m.Decide(time.Now().Add(time.Millisecond), false, qs, as)
		return m.counted(queueFull) > 0 || !m.Links()[0].Live
	})
}

func TestDeadlinePassed(t *testing.T) {
	ms := newCluster(t, 2)
	name := ownedBy(ringOf("m0", "m1"), "m1", 1)[0]
	if a := ms[0].ask(-time.Second, question(name, 10, 1)); a.Path != owner.Fallback {
		t.Errorf("%+v", a)
	}
	if a := ms[1].ask(patience, question(name, 10, 0)); a.Before != 0 {
		t.Errorf("the owner was charged %d for a question without time", a.Before)
	}
}

// A member that no longer owns a key names the one that does, and that one is asked.
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
		m.SetView(after, owner.Standing{NRef: 3, Joined: true}, nil)
	}
	if a := ms[0].ask(patience, question(name, 10, 4)); a.Path != owner.Forwarded || a.After != 4 {
		t.Errorf("%+v", a)
	}
	if no, yes := ms[0].counted(notOwner), ms[0].counted(ok); no != 1 || yes != 1 {
		t.Errorf("%v not owner and %v ok, want 1 and 1", no, yes)
	}
	// In stop mode as well, over one and over two members.
	for _, names := range [][]string{{name}, {name, ownedBy(before, "m0", 1)[0]}} {
		qs, as := make([]owner.Question, len(names)), make([]owner.Answer, len(names))
		for i, n := range names {
			qs[i] = question(n, 10, 1)
		}
		ms[0].Decide(time.Now().Add(patience), true, qs, as)
		for i := range as {
			if as[i].Path == owner.Fallback || as[i].Over {
				t.Errorf("stop mode, %d questions: answer %d: %+v", len(names), i, as[i])
			}
		}
	}
}

// Two members that each think the other owns a key do not send it back and forth.
func TestNoLoop(t *testing.T) {
	ms := newCluster(t, 2)
	ms[0].SetView(ringOf("m1"), owner.Standing{NRef: 2, Joined: true}, addrsOf(ms))
	ms[1].SetView(ringOf("m0"), owner.Standing{NRef: 2, Joined: true}, addrsOf(ms))
	for _, stop := range []bool{false, true} {
		as := make([]owner.Answer, 1)
		ms[0].Decide(time.Now().Add(time.Hour), stop, []owner.Question{question("any", 10, 1)}, as)
		if as[0].Path != owner.Fallback || as[0].Kind != owner.Decided {
			t.Errorf("stop %v: %+v", stop, as[0])
		}
	}
	if n := ms[1].counted(ok) + ms[1].counted(notOwner); n != 0 {
		t.Errorf("the asked member asked %v questions itself", n)
	}
}

func addrsOf(ms []*member) map[ring.ID]Addr {
	addrs := map[ring.ID]Addr{}
	for _, m := range ms {
		addrs[m.id] = Addr{HostPort: m.Addr().String(), Inst: instOf(m.id)}
	}
	return addrs
}

func TestClosed(t *testing.T) {
	ms := newCluster(t, 2)
	r := ringOf("m0", "m1")
	ms[0].Close()
	ms[0].SetView(r, owner.Standing{NRef: 2, Joined: true}, addrsOf(ms)) // starts nothing
	if a := ms[0].ask(patience, question(ownedBy(r, "m1", 1)[0], 10, 1)); a.Path != owner.Fallback || a.Kind != owner.Decided {
		t.Errorf("%+v", a)
	}
	if n := len(ms[0].Links()); n != 0 {
		t.Errorf("%d links after Close", n)
	}
}

// Rings change while questions are asked: every question is answered, and what is admitted of a key stays below its
// limit for each member that has owned it.
func TestChurn(t *testing.T) {
	ms := newCluster(t, 3)
	const keys, lim = 20, 30
	var admitted [keys]atomic.Int64
	done := make(chan struct{})
	var wg, churn sync.WaitGroup
	churn.Go(func() {
		rings := []*ring.Ring{ringOf("m0", "m1"), ringOf("m0", "m1", "m2"), ringOf("m1", "m2")}
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			m := ms[i%3]
			m.SetView(rings[i%len(rings)], owner.Standing{NRef: 3, Joined: true}, addrsOf(ms))
		}
	})
	for _, m := range ms {
		wg.Go(func() {
			qs, as := make([]owner.Question, keys), make([]owner.Answer, keys)
			for k := range qs {
				qs[k] = question(fmt.Sprint("churn ", k), lim, 1)
			}
			for i := range 60 {
				clear(as)
				m.Decide(time.Now().Add(patience), i%2 == 0, qs, as)
				for k := range as {
					if as[k].Kind != owner.Decided {
						t.Errorf("undecided: %+v", as[k])
					}
					if !as[k].Over {
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
		if n := admitted[k].Load(); n > 3*lim+lim {
			t.Errorf("key %d: %d admitted", k, n)
		}
	}
}
