package owner

import (
	"math"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

func TestTakeCounts(t *testing.T) {
	n := alone(Options{})
	for i, want := range []struct {
		hits, after uint64
		over        bool
		remaining   uint32
	}{{2, 2, false, 1}, {2, 4, true, 0}, {0, 4, true, 0}, {math.MaxUint64, math.MaxUint64, true, 0}, {1, math.MaxUint64, true, 0}} {
		res := take(n, t0+int64(i), ask(1, 3, time.Minute, want.hits))
		if res.Kind != Decided || res.Authority != Full || res.Path != Local || res.After != want.after || res.Over != want.over || res.Remaining != want.remaining {
			t.Errorf("hit %d: %+v", i, res)
		}
	}
	if res := take(n, t0+60*second, ask(1, 3, time.Minute, 3)); res.Over || res.Before != 0 {
		t.Errorf("the next window: %+v", res)
	}
}

func TestPeekLookAndRefund(t *testing.T) {
	n := alone(Options{})
	req := ask(1, 10, time.Minute, 4)
	if res := take(n, t0, withOp(req, DryRun)); res.After != 4 || res.Remaining != 6 || n.Stats(t0).Keys != 0 {
		t.Errorf("peek at nothing: %+v", res)
	}
	take(n, t0, req)
	if res := take(n, t0, withOp(req, DryRun)); res.Before != 4 || res.After != 8 {
		t.Errorf("peek: %+v", res)
	}
	if res := take(n, t0, withOp(ask(1, 10, time.Minute, 7), Read)); res.After != 4 || res.Before != res.After-7 || res.Over || res.Remaining != 6 {
		t.Errorf("look: %+v", res)
	}
	if res := take(n, t0, withOp(ask(1, 10, time.Minute, 9), Refund)); res.Before != 4 || res.After != 0 || res.Over {
		t.Errorf("refund: %+v", res)
	}
	if res := take(n, t0, req); res.Before != 0 {
		t.Errorf("take after the refund: %+v", res)
	}
	if res := take(n, t0, withOp(ask(2, 10, time.Minute, 9), Refund)); res.After != 0 || res.Over || n.Stats(t0).RefundsDropped != 0 {
		t.Errorf("refund of nothing: %+v", res)
	}
}

// TestChangedLimit requires that a limit changed in the middle of a window uses the same count.
func TestChangedLimit(t *testing.T) {
	n := alone(Options{})
	take(n, t0, ask(1, 10, time.Minute, 8))
	if res := take(n, t0, ask(1, 5, time.Minute, 1)); !res.Over || res.Before != 8 {
		t.Errorf("lowered: %+v", res)
	}
	if res := take(n, t0, ask(1, 100, time.Minute, 1)); res.Over || res.Remaining != 90 {
		t.Errorf("raised: %+v", res)
	}
}

func TestOthersAreAsked(t *testing.T) {
	ids := []ring.ID{"a", "b", "c"}
	r := ringOf(ids...)
	n := member(Options{Self: "b"}, t0, ids...)
	for i := range 300 {
		req := ask(i, 10, time.Minute, 1)
		want := r.At(r.Owner(req.RingPos)).ID
		res := n.Decide(t0, &req)
		if mine := want == "b"; mine != (res.Kind == Decided) || !mine && (res.Kind != Forward || res.Member != want) {
			t.Fatalf("key %d of %s: %+v", i, want, res)
		}
		results := make([]Result, 1)
		n.Serve(t0, false, []Request{req}, results)
		if (want == "b") != (results[0].Kind == Decided) {
			t.Fatalf("key %d of %s served: %+v", i, want, results[0])
		}
	}
}

// TestChargesOutlastOwnership requires that a key that returns to a former owner finds the charges it left there.
func TestChargesOutlastOwnership(t *testing.T) {
	n := member(Options{Self: "a"}, t0, "a")
	two := ringOf("a", "b")
	i := ownedBy(t, two, "b", 0)
	take(n, t0, ask(i, 10, time.Hour, 10))
	move(n, t0+second, "a", "b")
	if res := take(n, t0+second, ask(i, 10, time.Hour, 1)); res.Kind != Forward || res.Member != "b" {
		t.Fatalf("moved: %+v", res)
	}
	move(n, t0+2*second, "a")
	if res := take(n, t0+2*second, ask(i, 10, time.Hour, 1)); !res.Over || res.Before != 10 {
		t.Fatalf("back: %+v", res)
	}
}

func TestRepeatedRequestsAreHitsInARow(t *testing.T) {
	n := alone(Options{})
	req := ask(1, 3, time.Minute, 1)
	results := make([]Result, 2)
	n.DecideAll(t0, false, []Request{req, req}, results)
	if results[0].Remaining != 2 || results[1].Remaining != 1 {
		t.Errorf("%+v", results)
	}
}

// TestLateHit requires that a hit with an older time is not counted in a window that is closed, and does not reset the
// count of the next one.
func TestLateHit(t *testing.T) {
	n := alone(Options{})
	end := t0 + 60*second
	take(n, end-1, ask(1, 2, time.Minute, 2))
	n.Tick(end)
	if res := take(n, end-1, ask(1, 2, time.Minute, 1)); res.Over || res.Before != 0 {
		t.Errorf("late hit: %+v", res)
	}
	if res := take(n, end, ask(1, 2, time.Minute, 1)); res.Before != 1 {
		t.Errorf("the late hit is not in the new window: %+v", res)
	}
}

func TestPauseFencesTheOwner(t *testing.T) {
	ids := []ring.ID{"a", "b"}
	n := member(Options{Self: "a"}, t0, ids...)
	i := ownedBy(t, ringOf(ids...), "a", 0)
	if res := take(n, t0+1400*1e6, ask(i, 10, time.Hour, 2)); res.Authority != Full {
		t.Fatalf("before: %+v", res)
	}
	now := t0 + 1600*1e6
	if res := take(n, now, ask(i, 10, time.Hour, 2)); res.Authority != Share || res.Path != Fallback || res.Over || res.Remaining != 1 {
		t.Errorf("paused: %+v", res) // half of 10, of which 2 are spent with full authority
	}
	if res := take(n, now, ask(i, 10, time.Hour, 2)); !res.Over {
		t.Errorf("paused, share spent: %+v", res)
	}
	results := make([]Result, 1)
	n.Serve(now, false, []Request{ask(i, 10, time.Hour, 2)}, results)
	if results[0].Kind != Forward || results[0].Member != "" {
		t.Errorf("paused, asked as the owner: %+v", results[0])
	}
	n.Tick(now)
	// Of the 4 hits, the share admitted 2. They count here, and the refused ones do not.
	if res := take(n, now, ask(i, 10, time.Hour, 1)); res.Authority != Full || res.Before != 4 {
		t.Errorf("awake: %+v", res)
	}
	if f := n.Stats(now); f.ShareBound != 2 || f.Admitted[Share] != 2 {
		t.Errorf("facts: %+v", f)
	}
}

func TestPauseChangesNothingAlone(t *testing.T) {
	n, m := alone(Options{}), alone(Options{})
	rnd := random(5)
	for now := t0; now < t0+100*second; now += second / 2 {
		m.Tick(now)
		req := withOp(ask(rnd.IntN(3), 5, 10*time.Second, rnd.Uint64N(4)), Op(rnd.IntN(3)))
		if res, b := take(n, now, req), take(m, now, req); res != b {
			t.Fatalf("without ticks %+v, with %+v", res, b)
		}
	}
}

func TestShareUntilJoined(t *testing.T) {
	n := New(Options{Self: "a"})
	if res := take(n, t0, ask(1, 5, time.Minute, 6)); res.Authority != Share || !res.Over {
		t.Errorf("no ring: %+v", res)
	}
	n.SetMembership(t0, &membership.View{Self: "a", Ring: ringOf("a"), NRef: 4})
	for i := range 5 {
		if res := take(n, t0, ask(2, 16, time.Minute, 1)); res.Authority != Share || res.Over != (i >= 4) {
			t.Errorf("hit %d, not joined: %+v", i, res)
		}
	}
	n.SetMembership(t0, &membership.View{Self: "a", Joined: true})
	if res := take(n, t0, ask(3, 5, time.Minute, 1)); res.Authority != Share {
		t.Errorf("empty ring: %+v", res)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	n := member(Options{Self: "a", DenyCache: 100}, t0, "a", "b")
	r := ringOf("a", "b")
	mine, theirs := ownedBy(t, r, "a", 0), ownedBy(t, r, "b", 0)
	req, other := ask(mine, 1e6, time.Hour, 1), withDegraded(ask(theirs, 1e6, time.Hour, 1), policy.FailClosed)
	reqs := []Request{req, ask(ownedBy(t, r, "a", mine+1), 5, time.Hour, 1), req}
	results := make([]Result, len(reqs))
	seen := Result{Kind: Decided}
	for name, f := range map[string]func(){
		"Take":          func() { n.Decide(t0, &req) },
		"Take, asked":   func() { n.Decide(t0, &other) },
		"TakeAll":       func() { n.DecideAll(t0, false, reqs, results) },
		"TakeAll, stop": func() { n.DecideAll(t0, true, reqs, results) },
		"Serve":         func() { n.Serve(t0, false, reqs, results) },
		"Serve, stop":   func() { n.Serve(t0, true, reqs, results) },
		"Degrade":       func() { n.Degrade(t0, &req) },
		"Observe":       func() { n.Observe(t0, &other, &seen) },
	} {
		if got := testing.AllocsPerRun(100, f); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
}

// TestChargesWithReplicasAllocateNothing requires that a charge that has to be replicated allocates nothing.
func TestChargesWithReplicasAllocateNothing(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	n := w.nodes["a"]
	req := ask(ownedBy(t, w.ring(), "a", 0), 4e9, time.Hour, 1)
	log := ask(ownedBy(t, w.ring(), "a", 100), 4e9, time.Hour, 1)
	log.Rule.Algorithm = limit.TokenBucket
	for _, req := range []*Request{&req, &log} {
		n.Decide(w.now, req)
		if got := testing.AllocsPerRun(100, func() {
			if res := n.Decide(w.now, req); res.Kind != Decided || res.Authority != Full {
				t.Fatalf("%+v", res)
			}
		}); got != 0 {
			t.Errorf("%v: %v allocations", req.Rule.Algorithm, got)
		}
	}
}

// BenchmarkTakeWithCopies measures a decision with its replica, which is sent, merged and confirmed every 5 ms.
func BenchmarkTakeWithCopies(b *testing.B) {
	w := newNetwork(b, 1, Options{}, "a", "b")
	n := w.nodes["a"]
	var reqs []Request
	for i := range 1000 {
		reqs = append(reqs, ask(ownedBy(b, w.ring(), "a", i*10), 1e6, time.Minute, 1))
	}
	w.queue = nil
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		n.Decide(w.now, &reqs[i%len(reqs)])
		if i%5000 == 4999 { // as at a million decisions a second
			fx := n.Flush(w.now)
			for _, o := range fx.Messages {
				for _, back := range w.nodes["b"].Step(w.now, "a", w.insts["a"]|1, &o.Msg).Messages {
					n.Step(w.now, "b", w.insts["b"]|1, &back.Msg)
				}
			}
		}
	}
}

// threadTime returns the CPU time of this thread: the cost of a lock without the time of other threads.
func threadTime() time.Duration {
	const threadClock = 3 // CLOCK_THREAD_CPUTIME_ID; getrusage has only the resolution of the kernel's ticks
	var t syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadClock, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		return 0
	}
	return time.Duration(t.Nano())
}

// spin returns the CPU time of about as much work as a merge without memory access. It shows which long times are due
// to the machine.
func spin() time.Duration {
	begin := threadTime()
	for range 600 {
		spun = counter.Mix(spun + 1)
	}
	return threadTime() - begin
}

var spun uint64

// BenchmarkMove measures the nanoseconds to read and to merge one counter of a transfer, and the longest time that
// either holds a lock, in CPU time: at most 200 us. spins show what the machine adds to anything.
func BenchmarkMove(b *testing.B) {
	const keys = 1_000_000
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w := newNetwork(b, 1, Options{MaxKeys: 2 * keys, DomainQuota: 2 * keys}, "a")
	n := w.nodes["a"]
	for i := range keys {
		req := ask(i, 100, time.Hour, 1)
		n.Decide(w.now, &req)
	}
	w.boot("b", membership.Active)
	to, into := w.ring(), w.nodes["b"]
	transfer := handoff.Transfer{To: "b", Ring: to}
	var longestRead, longestMerge time.Duration
	long, longSpins := 0, 0
	for b.Loop() {
		var read, merged time.Duration
		var buf []protocol.CounterRecord
		moved := 0
		for c := (&transferScan{transfer: transfer, filter: newTransferFilter(&transfer, "a")}); c.shard < counter.Shards; {
			s := &n.shards[c.shard]
			begin := threadTime()
			buf = c.read(n, s, w.now, buf[:0])
			took := threadTime() - begin
			read, longestRead = read+took, max(longestRead, took)
			for i := range buf {
				s, hash := into.shard(buf[i].Key)
				begin := threadTime()
				into.mergeOne(s, hash, w.now, &buf[i])
				took := threadTime() - begin
				merged, longestMerge = merged+took, max(longestMerge, took)
				if took > 200*time.Microsecond {
					long++
				}
				if spin() > 200*time.Microsecond {
					longSpins++
				}
			}
			moved += len(buf)
		}
		b.ReportMetric(float64(read)/float64(moved), "read-ns/key")
		b.ReportMetric(float64(merged)/float64(moved), "merge-ns/key")
		b.ReportMetric(float64(moved), "keys")
	}
	b.ReportMetric(float64(long), "merges-over-200us")
	b.ReportMetric(float64(longSpins), "spins-over-200us")
	b.ReportMetric(float64(longestRead.Microseconds()), "longest-read-us")
	b.ReportMetric(float64(longestMerge.Microseconds()), "longest-merge-us")
}

func BenchmarkTake(b *testing.B) {
	n := member(Options{Self: "a", Seed: [2]uint64{1, 2}}, t0, "a", "b", "c")
	var reqs []Request
	for i := range 1000 {
		i = ownedBy(b, ringOf("a", "b", "c"), "a", i*10)
		reqs = append(reqs, ask(i, 1e6, time.Minute, 1))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		n.Decide(t0, &reqs[i%len(reqs)])
	}
}

func BenchmarkTakeParallel(b *testing.B) {
	n := alone(Options{Seed: [2]uint64{1, 2}})
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			req := Request{Key: Key{counter.Mix(uint64(i % 1000)), 1}, Hits: 1, Rule: limit.Rule{Window: time.Minute, Limit: 1e6}}
			n.Decide(t0, &req)
		}
	})
}
