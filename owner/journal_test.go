package owner

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/lending"
	"github.com/keyward/keyward/ring"
)

const testWindow = 2 * time.Hour

// disk is a journal in memory. What was written is durable once sync has run.
type disk struct {
	t       testing.TB
	n       *Node
	batch   JournalBatch
	written []protocol.CounterRecord // with what they reserve ahead as a charge of boot
	pending []protocol.CounterRecord
}

func newDisk(t testing.TB, n *Node) *disk {
	n.SetJournal(true)
	return &disk{t: t, n: n}
}

// write takes what is due at now, and returns how many counters that were.
func (d *disk) write(now int64) (counters int) {
	d.n.BeginRound()
	for more := true; more; {
		d.batch.Reset()
		more = d.n.Due(now, &d.batch)
		counters += d.take()
	}
	return counters
}

// walk takes all counters.
func (d *disk) walk(now int64) (counters int) {
	var c JournalCursor
	for more := true; more; {
		d.batch.Reset()
		more = d.n.Walk(now, &c, &d.batch)
		counters += d.take()
	}
	return counters
}

func (d *disk) take() int {
	if len(d.batch.Ahead) != len(d.batch.Counters) {
		d.t.Fatalf("%d counters, %d ahead", len(d.batch.Counters), len(d.batch.Ahead))
	}
	for i, c := range d.batch.Counters {
		c.State.Slots = slices.Clone(c.State.Slots)
		if a := uint64(d.batch.Ahead[i]); a > 0 {
			last := c.State.Slots[len(c.State.Slots)-1].At
			j := slices.IndexFunc(c.State.Slots, func(f limit.Slot) bool { return f.At == last && f.Writer == d.n.options.BootID })
			c.State.Slots[j].Charged += a
		}
		d.pending = append(d.pending, c)
	}
	return len(d.batch.Counters)
}

// sync makes durable what was written.
func (d *disk) sync(now int64) Ready {
	d.written, d.pending = append(d.written, d.pending...), nil
	return d.n.Written(now, &d.batch)
}

// used returns the count that n has of req's key, in the present window.
func used(n *Node, now int64, req Request) uint64 { return n.RecordedUsage(now, &req) }

// durably returns req as a request of a rule with durability: strict.
func durably(req Request) Request {
	req.Strict = true
	return req
}

// TestJournalIsDue requires that a counter is due at once when half of U hits are not written, and otherwise after the
// longest delay.
func TestJournalIsDue(t *testing.T) {
	n := alone(Options{DataWindow: time.Hour})
	d := newDisk(t, n)
	req := ask(1, 1000, testWindow, 1) // U is 10
	if n.JournalIn() != math.MaxInt64 {
		t.Errorf("%v without a counter", n.JournalIn())
	}
	for i := range 4 {
		take(n, t0, req)
		if in := n.JournalIn(); in != lateRound {
			t.Errorf("%v after %d hits", in, i+1)
		}
	}
	if got := d.write(t0); got != 0 {
		t.Errorf("%d counters due", got)
	}
	if in := n.JournalIn(); in != lateRound {
		t.Errorf("%v while a counter is due later", in)
	}
	take(n, t0, req)
	if in := n.JournalIn(); in != journalRound {
		t.Errorf("%v after half of U", in)
	}
	if got := d.write(t0); got != 1 {
		t.Errorf("%d counters due", got)
	}
	take(n, t0+second, req)
	late := t0 + second + int64(n.lateness())
	if d.write(t0+int64(n.lateness())-1) != 0 || d.write(late) != 1 {
		t.Error("not due after the longest delay")
	}
	if got := n.Stats(late).UnwrittenIn; got != 6 {
		t.Errorf("%d hits owed before they are durable", got)
	}
	if d.write(late+int64(time.Minute)) != 0 || n.JournalIn() != math.MaxInt64 {
		t.Error("due again without a hit")
	}
	d.sync(late)
	if got := n.Stats(late).UnwrittenIn; got != 0 {
		t.Errorf("%d hits owed", got)
	}
	if got := used(reload(d.written), t0, req); got != 6 {
		t.Errorf("%d loaded", got)
	}
}

// reload returns a Node that has loaded records.
func reload(records []protocol.CounterRecord) *Node {
	n := New(Options{Self: "a", BootID: 0x777, DataWindow: time.Hour})
	n.Load(t0, records)
	return n
}

// TestJournalLacks requires that rules with short windows, durability: memory and approximate rules are not written.
func TestJournalLacks(t *testing.T) {
	n := alone(Options{DataWindow: time.Hour})
	d := newDisk(t, n)
	memory := ask(2, 10, testWindow, 1)
	memory.Volatile = true
	drift := ask(3, 10, testWindow, 1)
	drift.Mechanism = policy.Approximate
	bucket := ask(4, 3600, time.Hour, 1)
	bucket.Rule.Algorithm, bucket.Rule.Burst = limit.TokenBucket, 60
	for _, req := range []Request{ask(1, 10, time.Hour-1, 1), memory, drift, bucket} {
		take(n, t0, req)
	}
	if d.write(t0)+d.write(t0+int64(time.Hour)) > 0 || n.JournalIn() != math.MaxInt64 {
		t.Error("due")
	}
	n = alone(Options{DataWindow: time.Hour})
	d = newDisk(t, n)
	take(n, t0, memory)
	take(n, t0, ask(5, 10, testWindow, 1))
	if got := d.walk(t0); got != 1 {
		t.Errorf("%d counters in a walk", got)
	}
}

// TestJournalWalk requires that a walk returns every counter once, and that merged ones are due.
func TestJournalWalk(t *testing.T) {
	const keys = 5000
	n := alone(Options{DataWindow: time.Hour})
	d := newDisk(t, n)
	for i := range keys {
		take(n, t0, ask(i, 10, testWindow, 2))
	}
	if got := d.walk(t0); got != keys {
		t.Errorf("%d counters", got)
	}
	d.sync(t0)
	m := reload(d.written)
	for i := range keys {
		if got := used(m, t0, ask(i, 10, testWindow, 1)); got != 2 {
			t.Fatalf("key %d: %d", i, got)
		}
	}
	if got := newDisk(t, m).write(t0); got != keys {
		t.Errorf("%d merged counters are due", got)
	}
}

// TestStrictWaitsForJournal requires that strict requests wait for the journal unless it has reserved them.
func TestStrictWaitsForJournal(t *testing.T) {
	n := alone(Options{DataWindow: time.Hour})
	d := newDisk(t, n)
	req := durably(ask(1, 1000, testWindow, 1))
	req.Waiter = "first"
	if res := take(n, t0, req); res.Kind != Pending || n.JournalIn() != 0 {
		t.Fatalf("%+v, journal in %v", res, n.JournalIn())
	}
	d.write(t0)
	if fx := d.sync(t0); len(fx.Done) != 1 || fx.Done[0].Waiter != Waiter("first") || fx.Done[0].Result.Over {
		t.Fatalf("%+v", fx.Done)
	}
	for i := range 10 { // U
		if res := take(n, t0, req); res.Kind != Decided || res.Over {
			t.Fatalf("hit %d: %+v", i, res)
		}
		if in := n.JournalIn(); i > 5 && in != journalRound {
			t.Errorf("%v after %d of the reserve", in, i+1)
		}
	}
	req.Waiter = "burst"
	if res := take(n, t0, req); res.Kind != Pending {
		t.Fatalf("beyond the reserve: %+v", res)
	}
	if fx := n.SetJournal(false); len(fx.Done) != 1 || fx.Done[0].Waiter != Waiter("burst") {
		t.Fatalf("when the journal is down: %+v", fx.Done)
	}
	if res := take(n, t0, req); res.Kind != Decided {
		t.Errorf("while the journal is down: %+v", res)
	}
	if got := used(reload(d.written), t0, req); got != 11 {
		t.Errorf("%d loaded of the first hit and the reserve", got)
	}
}

// TestStrictReservesNoMoreThanTheLimit requires that the last hits of a limit neither wait more than once nor reserve
// more than is left.
func TestStrictReservesNoMoreThanTheLimit(t *testing.T) {
	n := alone(Options{DataWindow: time.Hour})
	d := newDisk(t, n)
	req := durably(ask(1, 1000, testWindow, 1))
	waits := 0
	for i := range 1000 {
		res := take(n, t0, req)
		if res.Kind == Pending {
			waits++
		} else if res.Over {
			t.Fatalf("hit %d is over", i)
		}
		if n.JournalIn() <= journalRound {
			d.write(t0)
			d.sync(t0)
		}
	}
	if waits != 1 {
		t.Errorf("%d hits waited", waits)
	}
	before := len(d.written)
	if res := take(n, t0, req); res.Kind != Decided || !res.Over {
		t.Errorf("above the limit: %+v", res)
	}
	if d.write(t0 + int64(n.lateness())); len(d.written) != before {
		t.Error("a refused hit is written")
	}
	if got := used(reload(d.written), t0, req); got != 1000 {
		t.Errorf("%d loaded", got)
	}
}

// TestJournalForgetsWindows requires that a record of one window confirms no hits of the next one.
func TestJournalForgetsWindows(t *testing.T) {
	n := alone(Options{DataWindow: time.Hour})
	d := newDisk(t, n)
	req := durably(ask(1, 1000, testWindow, 1))
	take(n, t0, req)
	d.write(t0)
	later := t0 + int64(testWindow)
	req.Waiter = "next"
	if res := take(n, later, req); res.Kind != Pending {
		t.Fatalf("the first hit of the next window: %+v", res)
	}
	if fx := d.sync(later); slices.ContainsFunc(fx.Done, func(d Done) bool { return d.Waiter == Waiter("next") }) {
		t.Error("confirmed by a record of the window before")
	}
	d.write(later)
	if fx := d.sync(later); !slices.ContainsFunc(fx.Done, func(d Done) bool { return d.Waiter == Waiter("next") }) {
		t.Errorf("not confirmed by its own record: %+v", fx.Done)
	}
}

// TestStrictLogsAndBuckets requires that every charge of a strict rule waits whose records reserve nothing.
func TestStrictLogsAndBuckets(t *testing.T) {
	for _, a := range []limit.Algorithm{limit.SlidingLog, limit.TokenBucket} {
		n := alone(Options{DataWindow: time.Hour})
		d := newDisk(t, n)
		req := durably(ask(1, 50, testWindow, 1))
		req.Rule.Algorithm = a
		for i := range int64(5) {
			if res := take(n, t0+i, req); res.Kind != Pending {
				t.Fatalf("%v: hit %d: %+v", a, i, res)
			}
			d.write(t0 + i)
			if fx := d.sync(t0 + i); len(fx.Done) != 1 {
				t.Fatalf("%v: hit %d: %+v", a, i, fx.Done)
			}
		}
		if got := used(reload(d.written), t0+10, req); got != 5 {
			t.Errorf("%v: %d loaded", a, got)
		}
	}
}

// TestStrictWaitsForBoth requires that a strict request is decided when both the successor and the journal have it,
// whichever is first.
func TestStrictWaitsForBoth(t *testing.T) {
	for _, journalFirst := range []bool{true, false} {
		w := newNetwork(t, 1, Options{DataWindow: time.Hour}, "a", "b", "c")
		n := w.nodes["a"]
		d := newDisk(t, n)
		i := ownedBy(t, w.ring(), "a", 0)
		req := durably(ask(i, 1000, testWindow, 1))
		req.Waiter = "x"
		if res := n.Decide(w.now, &req); res.Kind != Pending {
			t.Fatalf("%+v", res)
		}
		done := func() bool { _, ok := w.done["a"][Waiter("x")]; return ok }
		if journalFirst {
			d.write(w.now)
			w.effects("a", d.sync(w.now))
		} else {
			w.run(100 * time.Millisecond)
		}
		if done() {
			t.Fatalf("journal first %v: decided too early", journalFirst)
		}
		if journalFirst {
			w.run(100 * time.Millisecond)
		} else {
			d.write(w.now)
			w.effects("a", d.sync(w.now))
		}
		if !done() {
			t.Errorf("journal first %v: not decided", journalFirst)
		}
	}
}

// TestSuccessorsWrite requires that the journals of owner and successor each have the counts, within U.
func TestSuccessorsWrite(t *testing.T) {
	w := newNetwork(t, 1, Options{DataWindow: time.Hour}, "a", "b", "c")
	disks := []*disk{}
	for _, id := range w.ids() {
		disks = append(disks, newDisk(t, w.nodes[id]))
	}
	const keys, hits = 60, 300
	for range hits {
		for i := range keys {
			req := ask(i, 1000, testWindow, 1)
			r := w.ring()
			w.ask(r.At(r.Owner(req.RingPos)).ID, req, func(Result) {})
		}
	}
	w.run(time.Second)
	copies := map[int]int{}
	for _, d := range disks {
		d.write(w.now)
		d.sync(w.now)
		n := reload(d.written)
		for i := range keys {
			switch got := used(n, w.now, ask(i, 1000, testWindow, 1)); {
			case got > hits:
				t.Errorf("key %d: %d", i, got)
			case got > hits-10:
				copies[i]++
			}
		}
	}
	for i := range keys {
		if copies[i] < 2 {
			t.Errorf("key %d is in %d journals", i, copies[i])
		}
	}
}

// TestColdStart requires that members with other names that have loaded the journals of a former cluster, each some of
// them, decide by the counts of that.
func TestColdStart(t *testing.T) {
	w := newNetwork(t, 1, Options{DataWindow: time.Hour}, "a", "b", "c")
	const keys = 100
	for i := range keys {
		req := ask(i, 10, testWindow, 7)
		r := w.ring()
		w.ask(r.At(r.Owner(req.RingPos)).ID, req, func(Result) {})
	}
	w.run(time.Second)
	var journals [][]protocol.CounterRecord
	for _, id := range w.ids() {
		d := newDisk(t, w.nodes[id])
		d.walk(w.now)
		d.sync(w.now)
		journals = append(journals, d.written)
	}
	next := newNetworkAfter(t, w.now, func(i int, n *Node) {
		if i < len(journals) {
			n.Load(w.now, journals[i])
		}
	}, "p", "q", "r", "s")
	for i := range keys {
		req := ask(i, 10, testWindow, 4)
		r := next.ring()
		next.ask(r.At(r.Owner(req.RingPos)).ID, req, func(res Result) {
			if !res.Over || res.Before != 7 {
				t.Errorf("key %d: %+v", i, res)
			}
		})
	}
}

// newNetworkAfter is newNetwork at a later time, whose nodes load is called for before they have a ring.
func newNetworkAfter(t *testing.T, now int64, load func(i int, n *Node), ids ...ring.ID) *network {
	t.Helper()
	w := newNetwork(t, 2, Options{DataWindow: time.Hour})
	w.now = now + second
	for i, id := range ids {
		w.boot(id, membership.Active)
		load(i, w.nodes[id])
	}
	w.nref = len(ids)
	w.adopt()
	w.run(3 * time.Second)
	for _, id := range ids {
		if !w.nodes[id].Progress().Complete() {
			t.Fatalf("%s: %+v", id, w.nodes[id].Progress())
		}
	}
	return w
}

// TestLateLoad requires that counters that are loaded into a running cluster reach their owners.
func TestLateLoad(t *testing.T) {
	w := newNetwork(t, 1, Options{DataWindow: time.Hour}, "a", "b", "c")
	former := alone(Options{DataWindow: time.Hour, BootID: 0x55})
	const keys = 50
	for i := range keys {
		take(former, w.now, ask(i, 10, testWindow, 7))
	}
	d := newDisk(t, former)
	d.walk(w.now)
	d.sync(w.now)
	w.nodes["a"].Load(w.now, d.written)
	w.run(time.Second)
	for i := range keys {
		req := ask(i, 10, testWindow, 4)
		r := w.ring()
		w.ask(r.At(r.Owner(req.RingPos)).ID, req, func(res Result) {
			if !res.Over || res.Before != 7 {
				t.Errorf("key %d: %+v", i, res)
			}
		})
	}
}

// TestLoadOnlyRaises requires that loading old, repeated and reordered records lowers no count.
func TestLoadOnlyRaises(t *testing.T) {
	for _, a := range algorithms {
		rnd := random(uint64(a))
		n := alone(Options{DataWindow: time.Hour})
		d := newDisk(t, n)
		req := ask(1, 1000, testWindow, 3)
		req.Rule.Algorithm = a
		now := t0
		for range 40 {
			take(n, now, req)
			now += rnd.Int64N(second)
			d.walk(now)
			d.sync(now)
		}
		most, m := used(n, now, req), reload(nil)
		for range 200 {
			i := rnd.IntN(len(d.written))
			before := used(m, now, req)
			m.Load(now, d.written[i:i+1])
			if got := used(m, now, req); got < before {
				t.Fatalf("%v: from %d to %d", a, before, got)
			}
		}
		m.Load(now, d.written)
		if got := used(m, now, req); got < most {
			t.Errorf("%v: %d of %d", a, got, most)
		}
	}
}

// TestGrantWaitsForJournal requires that a part of a limit is lent only when the journal has its charge.
func TestGrantWaitsForJournal(t *testing.T) {
	n := alone(Options{DataWindow: time.Hour})
	d := newDisk(t, n)
	req := ask(1, 1000, testWindow, 1)
	s, _ := n.shard(req.Key)
	o := &lendingOwner{n, s}
	take(n, t0, req)
	c := &lending.Charge{Hits: 20}
	c.Ref = (&shardOp{Request: &req, now: t0, hash: s.counters.Hash(req.Key), rule: req.Rule}).ref()
	s.mu.Lock()
	c.Entry = s.counters.Find(req.Key)
	o.Charge(c)
	sent := o.AwaitReplication(c, &lending.PendingGrant{To: "b", Grant: lease.Grant{Key: req.Key}})
	s.mu.Unlock()
	if sent || n.JournalIn() != 0 {
		t.Fatalf("sent %v, journal in %v", sent, n.JournalIn())
	}
	d.write(t0)
	if fx := d.sync(t0); len(fx.Leases) != 1 {
		t.Errorf("%+v", fx)
	}
}

// TestJournalAllocatesNothing requires that decisions of rules in the journal do not allocate.
func TestJournalAllocatesNothing(t *testing.T) {
	n := alone(Options{DataWindow: time.Hour})
	d := newDisk(t, n)
	req := ask(1, 1_000_000, testWindow, 1)
	got := testing.AllocsPerRun(2000, func() {
		n.Decide(t0, &req)
		if n.JournalIn() <= journalRound {
			n.BeginRound()
			d.batch.Reset()
			n.Due(t0, &d.batch)
			n.Written(t0, &d.batch)
		}
	})
	if got > 0 {
		t.Errorf("%v allocations", got)
	}
}

// TestDurabilityChanges requires that a counter is in the journal as soon as its rule wants it to be.
func TestDurabilityChanges(t *testing.T) {
	n := alone(Options{DataWindow: time.Hour})
	d := newDisk(t, n)
	req := ask(1, 1000, testWindow, 10)
	req.Volatile = true
	take(n, t0, req)
	if got := d.write(t0) + d.walk(t0); got != 0 {
		t.Errorf("%d records with durability: memory", got)
	}
	req.Volatile = false
	take(n, t0, req)
	if got := d.walk(t0); got != 1 {
		t.Errorf("%d records in a walk after the change", got)
	}
	d.sync(t0)
	if got := used(reload(d.written), t0, req); got != 20 {
		t.Errorf("%d loaded", got)
	}
}

// TestStrictNeedsRoom requires that a strict request is refused, and an async one admitted and written, if there is no room
// to track what the journal lacks.
func TestStrictNeedsRoom(t *testing.T) {
	const most = 128
	former := alone(Options{DataWindow: time.Hour, BootID: 0x55, MaxKeys: 4 * most, DomainQuota: 4 * most})
	from := newDisk(t, former)
	for i := range 2 * most {
		take(former, t0, ask(i, 10, testWindow, 1))
	}
	from.walk(t0)
	from.sync(t0)
	n := alone(Options{DataWindow: time.Hour, MaxKeys: most, DomainQuota: most})
	d := newDisk(t, n)
	n.Load(t0, from.written)
	if res := take(n, t0, durably(ask(1000, 10, testWindow, 1))); res.Kind != Decided || !res.Over || res.Authority != Overflow {
		t.Errorf("strict: %+v", res)
	}
	async := ask(1001, 10, testWindow, 1)
	if res := take(n, t0, async); res.Kind != Decided || res.Over {
		t.Errorf("async: %+v", res)
	}
	d.write(t0)
	d.sync(t0)
	if got := used(reload(d.written), t0, async); got != 1 {
		t.Errorf("%d loaded", got)
	}
}

// TestClosedBeforeJoining requires that a rule that fails closed and is in the journal admits nothing before the member has
// joined: journals may not be loaded yet. Other rules are decided from the local share.
func TestClosedBeforeJoining(t *testing.T) {
	n := New(Options{Self: "a", BootID: 0x777, DataWindow: time.Hour})
	req := withDegraded(ask(1, 100, testWindow, 1), policy.FailClosed)
	if res := take(n, t0, req); res.Kind != Decided || !res.Over {
		t.Errorf("%+v", res)
	}
	short := withDegraded(ask(2, 100, time.Minute, 1), policy.FailClosed)
	for _, req := range []Request{short, ask(3, 100, testWindow, 1)} {
		if res := take(n, t0, req); res.Kind != Decided || res.Over {
			t.Errorf("%+v", res)
		}
	}
}
