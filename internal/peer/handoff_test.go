package peer

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/owner"
)

// traffic requests hits on the same keys from members, without pause, until it is stopped.
type traffic struct {
	keys      int
	lim       uint32
	admitted  []atomic.Int64
	fallbacks atomic.Int64
	decided   atomic.Int64
	done      chan struct{}
	wg        sync.WaitGroup
}

func startTraffic(ms []*member, keys int, lim uint32, algorithm limit.Algorithm) *traffic {
	l := &traffic{keys: keys, lim: lim, admitted: make([]atomic.Int64, keys), done: make(chan struct{})}
	for _, m := range ms {
		for range 2 {
			l.wg.Go(func() { l.run(m, algorithm) })
		}
	}
	return l
}

func (l *traffic) run(m *member, algorithm limit.Algorithm) {
	reqs, results := make([]owner.Request, l.keys), make([]owner.Result, l.keys)
	for k := range reqs {
		reqs[k] = newRequest(fmt.Sprint("load ", k), l.lim, 1)
		reqs[k].Rule.Algorithm = algorithm
	}
	for {
		select {
		case <-l.done:
			return
		default:
		}
		m.Decide(by(patience), false, reqs, results)
		for k := range results {
			if results[k].Path == owner.Fallback {
				l.fallbacks.Add(1)
			}
			if !results[k].Over {
				l.admitted[k].Add(1)
			}
		}
		l.decided.Add(1)
	}
}

// awaitMore waits until more requests have been decided.
func (l *traffic) awaitMore(t *testing.T) {
	t.Helper()
	from := l.decided.Load()
	await(t, "decisions", func() bool { return l.decided.Load() > from+20 })
}

// changeRing makes on the ring of members ms, and waits until the handoff is complete.
func changeRing(t *testing.T, on, ms []*member) {
	t.Helper()
	want := ringOf(ids(on)...).Fingerprint()
	for _, m := range ms {
		m.setRing(on, ms)
	}
	for _, m := range ms {
		await(t, fmt.Sprintf("%s to be done with the ring of %v", m.id, ids(on)), func() bool {
			p := m.node.Progress()
			return p.Ring == want && p.Unconfirmed == 0 && (p.Complete() || p.HandedOff)
		})
	}
}

// join makes m a joining member, and waits until it has its replicas.
func join(t *testing.T, m *member, ms []*member) {
	t.Helper()
	all := append(slices.Clone(ms), m)
	for _, o := range all {
		v := viewOf(o.id, ringOf(ids(ms)...), membersOf(all))
		v.Members[len(ms)].State = membership.Joining
		o.SetView(v)
	}
	await(t, string(m.id)+" to be warm", func() bool { return m.node.Progress().Prefetched })
}

// A member joins, and others leave and return, under traffic: no charge is lost and none counts twice.
func TestHandoff(t *testing.T) {
	all := newCluster(t, 3)
	d := newMember(t, "m3")
	all = append(all, d)
	a, b, c := all[0], all[1], all[2]
	l := startTraffic([]*member{a, b, c}, 40, 10_000_000, limit.FixedWindow)
	l.awaitMore(t)
	join(t, d, all[:3])
	for _, on := range [][]*member{all, {a, b, d}, {b, c, d}, all, {a, b, c}} {
		l.awaitMore(t)
		changeRing(t, on, all)
	}
	l.awaitMore(t)
	close(l.done)
	l.wg.Wait()
	if n := l.fallbacks.Load(); n != 0 {
		t.Errorf("%d results came from degraded policies", n)
	}
	for k := range l.admitted {
		q := newRequest(fmt.Sprint("load ", k), l.lim, 0)
		q.Op = owner.Read
		if a := d.decideOne(patience, q); a.After != uint64(l.admitted[k].Load()) {
			t.Errorf("key %d: %d counted after %d were admitted", k, a.After, l.admitted[k].Load())
		}
	}
	if n := testutil.ToFloat64(a.m.keysSent); n == 0 {
		t.Error("no counters were sent")
	}
	for _, text := range []string{"transfer started", "transfer sent", "ring complete"} {
		if !a.logged(text) {
			t.Errorf("%q is not logged", text)
		}
	}
}

// The same for all algorithms, with limits that are used up meanwhile.
func TestHandoffSpends(t *testing.T) {
	for a := limit.FixedWindow; a <= limit.InFlight; a++ {
		t.Run(a.String(), func(t *testing.T) {
			ms := newCluster(t, 3, func(o *Options) { o.Algorithms = knownAlgorithms })
			const lim = 60
			l := startTraffic(ms, 10, lim, a)
			for _, on := range [][]*member{ms[:2], ms, ms[1:]} {
				for _, m := range ms {
					m.setRing(on, ms)
				}
				l.awaitMore(t)
			}
			close(l.done)
			l.wg.Wait()
			if n := l.fallbacks.Load(); n != 0 {
				t.Errorf("%d results came from degraded policies", n)
			}
			for k := range l.admitted {
				if n := l.admitted[k].Load(); n != lim {
					t.Errorf("key %d: %d admitted, want %d", k, n, lim)
				}
			}
		})
	}
}

// When an owner fails, its successor has all charges except those of the last moments.
func TestTakeover(t *testing.T) {
	ms := newCluster(t, 3)
	const keys, lim, spent = 20, 1000, 400
	names := ownedBy(ringOf("m0", "m1", "m2"), "m2", keys)
	for _, n := range names {
		for range spent / 100 {
			if a := ms[0].decideOne(patience, newRequest(n, lim, 100)); a.Path != owner.Forwarded {
				t.Fatalf("%+v", a)
			}
		}
	}
	await(t, "the copies to be confirmed", func() bool { return ms[2].node.FlushIn() == math.MaxInt64 })
	ms[2].Close()
	left := ms[:2]
	for _, m := range left {
		v := viewOf(m.id, ringOf(ids(left)...), membersOf(left))
		v.NRef = 3
		m.SetView(v)
	}
	for _, m := range left {
		await(t, string(m.id)+" to hold its keys", func() bool { return m.node.Progress().Complete() })
	}
	for _, n := range names {
		if a := ms[0].decideOne(patience, newRequest(n, lim, 1)); a.Path == owner.Fallback || a.Before != spent {
			t.Errorf("%s: %+v, want %d spent", n, a, spent)
		}
	}
	if n := testutil.ToFloat64(ms[2].m.replicas(forwardOK)); n == 0 {
		t.Error("no batch of copies was acknowledged")
	}
}

// A strict request is decided when two members have its charge. Without a second member it is degraded.
func TestStrict(t *testing.T) {
	ms := newCluster(t, 2)
	r := ringOf("m0", "m1")
	for i, m := range ms {
		for _, owns := range ms {
			q := newRequest(ownedBy(r, owns.id, 2)[i], 100, 7)
			q.Strict = true
			a := m.decideOne(patience, q)
			if a.Path == owner.Fallback || a.After != 7 {
				t.Errorf("%s asks %s: %+v", m.id, owns.id, a)
			}
			if n := testutil.ToFloat64(owns.m.replicas(forwardOK)); n == 0 {
				t.Errorf("%s replied before its replica was confirmed", owns.id)
			}
		}
	}
	ms[1].Close()
	ms[0].awaitLinks(t, 0)
	q := newRequest(ownedBy(r, "m0", 3)[2], 100, 7)
	q.Strict = true
	for _, stop := range []bool{false, true} {
		results := make([]owner.Result, 1)
		ms[0].Decide(by(20*time.Millisecond), stop, []owner.Request{q}, results)
		if results[0].Kind != owner.Decided || results[0].Path != owner.Fallback {
			t.Errorf("stop %v, no successor: %+v", stop, results[0])
		}
	}
	await(t, "nothing to wait any more", func() bool { return ms[0].node.Stats(ms[0].Now()).Pending == 0 })
}

// Requests are exchanged with members that support only version 1. These take over keys without messages.
func TestOldMembers(t *testing.T) {
	t.Parallel()
	older, newer := newMember(t, "m0"), newMember(t, "m1")
	older.hello.versions = versions{1, 1}
	both := []*member{older, newer}
	for _, m := range both {
		m.setMembers(both)
	}
	newer.awaitOld(t, "m0")
	older.awaitOld(t, "m1") // to it, the newer one supports version 1
	name := ownedBy(ringOf("m0", "m1"), "m1", 1)[0]
	await(t, "the keys to be taken over", func() bool {
		q := newRequest(name, math.MaxUint32, 1)
		return older.decideOne(patience, q).Path == owner.Forwarded
	})
	if n := testutil.CollectAndCount(newer.m.refused); n != 0 {
		t.Errorf("%d kinds of messages refused", n)
	}
	newer.view.Lock()
	live := newer.membership.Members
	newer.view.Unlock()
	if len(live) != 2 || live[0].NoHandoff || live[1].NoHandoff {
		t.Errorf("the caller's view was changed: %+v", live)
	}
}

// All counters of a leaving member arrive.
func TestTransfer(t *testing.T) {
	ms := newCluster(t, 2)
	await(t, "the ring", func() bool { // or some of the requests wait
		return ms[0].node.Progress().Complete() && ms[1].node.Progress().Complete()
	})
	const keys = 6000 // half of them in a dozen chunks
	for i := range keys {
		q := newRequest(fmt.Sprint("many ", i), 10, 1)
		ms[0].node.Decide(ms[0].Now(), &q)
	}
	before := testutil.ToFloat64(ms[0].m.keysSent)
	mine := ms[0].Stats().Keys
	for _, m := range ms {
		m.setRing(ms[1:], ms)
	}
	await(t, "everything to be handed over", func() bool { return ms[0].node.Progress().HandedOff })
	// A transfer that fails starts again, and so does one during which members were not confirmed.
	again := testutil.ToFloat64(ms[0].m.incomplete) > 0 || ms[0].logged("ownership revoked") ||
		ms[1].logged("ownership revoked")
	// A chunk that is sent twice is more than 200 keys. On a busy machine, requests may still be decided meanwhile.
	if n := testutil.ToFloat64(ms[0].m.keysSent) - before; n < keys/4 || n > float64(mine+200) && !again {
		t.Errorf("%v of %d counters sent", n, mine)
	}
	if n := testutil.ToFloat64(ms[1].m.keysReceived); n < keys/4 {
		t.Errorf("%v counters received", n)
	}
	for i := 0; i < keys; i += 199 {
		q := newRequest(fmt.Sprint("many ", i), 10, 1)
		if q.Op = owner.Read; ownedHere(ms[0], q) {
			if a := ms[1].decideOne(patience, q); a.After != 1 {
				t.Errorf("counter %d: %+v", i, a)
			}
		}
	}
}

func ownedHere(m *member, q owner.Request) bool {
	r := ringOf("m0", "m1")
	return r.At(r.Owner(q.RingPos)).ID == m.id
}

// OnProgress is called when the progress changes, and may set another view.
func TestProgress(t *testing.T) {
	var mu sync.Mutex
	var reported []membership.Progress
	var m *member
	again := make(chan struct{}, 1)
	m = newMember(t, "m0", func(o *Options) {
		o.OnProgress = func(p membership.Progress) {
			mu.Lock()
			reported = append(reported, p)
			mu.Unlock()
			if p.CompleteRing != 0 {
				wake(again)
			}
		}
	})
	m.alone()
	<-again
	m.alone()
	mu.Lock()
	defer mu.Unlock()
	last := reported[len(reported)-1]
	if last.CompleteRing != ringOf("m0").Fingerprint() || last.Unconfirmed != 0 {
		t.Errorf("%+v", reported)
	}
	for i := 1; i < len(reported); i++ {
		if reported[i] == reported[i-1] {
			t.Errorf("reported twice: %+v", reported[i])
		}
	}
}
