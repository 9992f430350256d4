package durable

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/journal/modeldisk"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

const second = int64(time.Second)

var t0 = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).UnixNano()

// rig is one member alone with a journal on a model disk, whose process and disk can fail.
type rig struct {
	t    testing.TB
	disk *modeldisk.Disk
	now  int64
	boot uint64
	mu   sync.Mutex
	done map[owner.Waiter]bool // guarded by mu
	hook atomic.Pointer[func(modeldisk.Operation)]
	ring atomic.Pointer[CompleteRing]
	node *owner.Node
	k    *Keeper
	o    journal.Options
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, disk: modeldisk.New(rand.New(rand.NewPCG(1, 1))), now: t0, boot: 1}
	r.disk.Before = func(op modeldisk.Operation, _ string) {
		if f := r.hook.Load(); f != nil {
			(*f)(op)
		}
	}
	r.start()
	return r
}

// start boots the member, which loads what it finds.
func (r *rig) start() Recovery {
	r.boot += 0x10
	r.node = owner.New(owner.Options{Self: "a", BootID: r.boot | 3, DataWindow: time.Hour})
	r.done = map[owner.Waiter]bool{}
	o := r.o
	o.FS, o.Dir, o.Label, o.Scheme, o.Member, o.Boot = r.disk.FS(), "/data", "test", 1, "a", r.boot|3
	r.k = New(Options{Node: r.node, Journal: o, Apply: r.apply, Ring: r.ring.Load})
	res := r.k.Load(r.t.Context(), r.time)
	r.k.ChargeAhead(r.now, true)
	r.k.Start()
	m := ring.Member{ID: "a", BootID: r.boot | 3, Incarnation: 1, Weight: 1}
	r.node.SetMembership(r.now, &membership.View{
		Self: "a", BootID: m.BootID, Ring: ring.New([]ring.Member{m}), NRef: 1, Joined: true, Standalone: true,
		Members: []membership.Member{{ID: "a", BootID: m.BootID, State: membership.Active, Weight: 1}},
	})
	r.node.Tick(r.now)
	return res
}

func (r *rig) setRing(x *CompleteRing) { r.ring.Store(x) }

func (r *rig) time() int64 { return r.now }

func (r *rig) apply(fx owner.Ready) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range fx.Done {
		r.done[fx.Done[i].Waiter] = true
	}
}

// confirmed reports whether the pending request of that waiter has its result.
func (r *rig) confirmed(w owner.Waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done[w]
}

// before makes f run before every operation on the disk.
func (r *rig) before(f func(op modeldisk.Operation)) { r.hook.Store(&f) }

// kill ends the process.
func (r *rig) kill() {
	r.disk.Kill()
}

// request returns a request for hits on key i.
func request(i int, hits uint64) owner.Request {
	return owner.Request{
		Key: owner.Key{uint64(i) * 0x9E3779B97F4A7C15, uint64(i)}, RingPos: uint64(i) << 40, Domain: 7, Hits: hits, Waiter: i,
		Rule: limit.Rule{Window: 30 * 24 * time.Hour, Limit: 1000},
	}
}

func strict(q owner.Request) owner.Request {
	q.Strict = true
	return q
}

func (r *rig) take(q owner.Request) owner.Result { return r.node.Decide(r.now, &q) }

func (r *rig) used(i int) uint64 {
	q := request(i, 1)
	return r.node.RecordedUsage(r.now, &q)
}

// rounds makes rounds until none is due at once.
func (r *rig) rounds() {
	r.t.Helper()
	for range 1000 {
		if again := r.k.Round(r.now); again != 0 {
			return
		}
	}
	r.t.Fatal("rounds do not end")
}

// later moves the time on, so that everything is due.
func (r *rig) later() {
	r.now += int64(time.Minute)
	r.node.Tick(r.now)
}

func (r *rig) want(i int, used uint64) {
	r.t.Helper()
	if got := r.used(i); got != used {
		r.t.Errorf("key %d: %d hits, want %d", i, got, used)
	}
}

// boots returns the directories of boots on the disk.
func (r *rig) boots() int {
	r.t.Helper()
	bs, err := journal.Boots(r.disk.FS(), "/data", "test")
	if err != nil {
		r.t.Fatal(err)
	}
	return len(bs)
}

// TestRestart requires that counters outlive kills and power losses, that a boot replaces the journals of former ones,
// and that nothing is written while nothing has happened.
func TestRestart(t *testing.T) {
	r := newRig(t)
	if r.rounds(); len(r.disk.Files("/data")) > 0 {
		t.Errorf("%v without a hit", r.disk.Files("/data"))
	}
	for round := range 6 {
		for i := range 300 {
			r.take(request(i, 10))
		}
		r.rounds()
		if round%2 == 0 {
			r.kill()
		} else {
			r.disk.PowerLoss()
		}
		res := r.start()
		if res.Counters == 0 || res.Boots != 1 || res.Bad > 0 {
			t.Errorf("%+v", res)
		}
		for i := range 300 {
			r.want(i, uint64(10*(round+1)))
		}
		if r.rounds(); r.boots() != 1 {
			t.Errorf("%d boots", r.boots())
		}
	}
	syncs := 0
	r.before(func(op modeldisk.Operation) {
		if op == modeldisk.Sync || op == modeldisk.Write {
			syncs++
		}
	})
	for range 10 {
		r.later()
		r.rounds()
	}
	if syncs > 0 {
		t.Errorf("%d writes and syncs while idle", syncs)
	}
}

// TestStopIsComplete requires that a boot that stops in good order writes every hit, also of refused requests, and
// that nothing is charged for what it had reserved.
func TestStopIsComplete(t *testing.T) {
	r := newRig(t)
	for i := range 50 {
		r.take(strict(request(i, 3)))
	}
	r.take(request(60, 1000))
	r.take(request(60, 5))
	r.take(request(61, 1))
	r.rounds()
	if err := r.k.Stop(r.now); err != nil {
		t.Fatal(err)
	}
	r.kill()
	if res := r.start(); !res.Clean {
		t.Errorf("%+v", res)
	}
	for i := range 50 {
		r.want(i, 3)
	}
	r.want(60, 1005)
	r.want(61, 1)
}

// TestReservedAhead requires that hits that were reserved count after a kill, and not if ChargeAhead forgets them.
func TestReservedAhead(t *testing.T) {
	r := newRig(t)
	r.take(strict(request(1, 1)))
	r.rounds()
	if !r.confirmed(1) {
		t.Fatal("the first hit is not confirmed")
	}
	for range 10 {
		if res := r.take(strict(request(1, 1))); res.Kind != owner.Decided {
			t.Fatalf("%+v", res)
		}
	}
	r.kill()
	r.start()
	r.want(1, 11)
	r.kill()
	r.node = owner.New(owner.Options{Self: "a", BootID: 0x77, DataWindow: time.Hour})
	k := New(Options{Node: r.node, Journal: journal.Options{FS: r.disk.FS(), Dir: "/data", Label: "test", Scheme: 1, Boot: 0x77}})
	k.Load(t.Context(), r.time)
	if k.ReservedAhead() != 1 {
		t.Errorf("%d counters with reserves", k.ReservedAhead())
	}
	k.ChargeAhead(r.now, false)
	r.want(1, 1)
}

// TestFaults requires that no fault of the disk keeps strict requests waiting, that the last good generation stays, and
// that everything is written again when the fault has gone.
func TestFaults(t *testing.T) {
	for name, spoil := range map[string]func(d *modeldisk.Disk){
		"sync":      func(d *modeldisk.Disk) { d.Fail(modeldisk.Sync, syscall.EIO) },
		"write":     func(d *modeldisk.Disk) { d.Fail(modeldisk.Write, syscall.EIO) },
		"full":      func(d *modeldisk.Disk) { d.SetBudget(0) },
		"read-only": func(d *modeldisk.Disk) { d.SetReadOnly(true) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for i := range 20 {
				r.take(request(i, 100))
			}
			r.rounds()
			spoil(r.disk)
			r.take(strict(request(30, 50)))               // more than is reserved
			open := name == "full" || name == "read-only" // a preallocated segment can still be written
			if again := r.k.Round(r.now); (again == retryAfter) == open {
				t.Fatalf("again in %v", time.Duration(again))
			}
			if !r.confirmed(30) {
				t.Error("a strict request waits while the journal is down")
			}
			if res := r.take(strict(request(31, 50))); !open && res.Kind != owner.Decided {
				t.Errorf("%+v while the journal is down", res)
			}
			for range 3 {
				r.now += retryAfter
				r.k.Round(r.now)
			}
			r.disk.Heal()
			r.disk.SetBudget(1 << 30)
			r.disk.SetReadOnly(false)
			r.take(request(32, 100))
			r.now += retryAfter
			r.rounds()
			r.disk.PowerLoss()
			r.start()
			for i := range 20 {
				r.want(i, 100)
			}
			r.want(32, 100)
			if r.used(30) < 50 || r.used(31) < 50 {
				t.Errorf("%d and %d of 50 hits", r.used(30), r.used(31))
			}
		})
	}
}

// TestGoodGenerationStays requires that counters of the last good generation are loaded when the disk has failed since.
func TestGoodGenerationStays(t *testing.T) {
	r := newRig(t)
	r.take(request(1, 100))
	r.rounds()
	r.disk.Fail(modeldisk.Sync, syscall.EIO)
	for range 5 {
		r.take(request(1, 100))
		r.later()
		r.rounds()
	}
	r.disk.Heal()
	r.disk.PowerLoss()
	if r.start(); r.used(1) < 100 {
		t.Errorf("%d hits", r.used(1))
	}
}

// TestUnreadableJournalStays requires that a journal that cannot be read completely is loaded where it can be, and
// neither removed nor written to.
func TestUnreadableJournalStays(t *testing.T) {
	r := newRig(t)
	r.take(request(1, 100))
	r.rounds()
	r.kill()
	r.disk.Fail(modeldisk.Read, syscall.EIO)
	r.start()
	r.disk.Heal()
	r.take(request(2, 100))
	r.rounds()
	if r.boots() != 2 {
		t.Errorf("%d boots", r.boots())
	}
	r.kill()
	r.start()
	r.want(1, 100)
	r.want(2, 100)
}

// TestOtherBootsAreLeftAlone requires that journals of running members, of other labels and of other versions of keys
// are not loaded, and that one is loaded when it is free.
func TestOtherBootsAreLeftAlone(t *testing.T) {
	r := newRig(t)
	other := owner.New(owner.Options{Self: "b", BootID: 0x5003, DataWindow: time.Hour})
	running := New(Options{Node: other, Journal: journal.Options{FS: r.disk.FS(), Dir: "/data", Label: "test", Scheme: 1, Boot: 0x5003}})
	m := ring.Member{ID: "b", BootID: 0x5003, Incarnation: 1, Weight: 1}
	other.SetMembership(r.now, &membership.View{Self: "b", BootID: 0x5003, Ring: ring.New([]ring.Member{m}), NRef: 1, Joined: true,
		Members: []membership.Member{{ID: "b", BootID: 0x5003, State: membership.Active, Weight: 1}}})
	other.Tick(r.now)
	q := request(1, 100)
	other.Decide(r.now, &q)
	running.Start()
	running.Round(r.now)
	running.Round(r.now)
	res := r.start()
	if res.Locked != 1 || res.Counters != 0 {
		t.Errorf("%+v", res)
	}
	r.want(1, 0)
	if err := running.Close(); err != nil {
		t.Fatal(err)
	}
	if res := r.k.Load(t.Context(), r.time); res.Locked != 0 || res.Counters != 1 {
		t.Errorf("%+v", res)
	}
	r.want(1, 100)
}

// TestLateJournalIsWrittenAgain requires that counters which are loaded while the member writes are in its own journal
// before the one that they come from is removed.
func TestLateJournalIsWrittenAgain(t *testing.T) {
	r := newRig(t)
	r.take(request(1, 3)) // fewer than half of U
	r.later()
	r.rounds()
	former := r.k
	r.boot, r.node = r.boot+0x100, nil
	r.start() // the former process still holds its journal
	r.take(request(2, 100))
	r.rounds()
	if err := former.Close(); err != nil {
		t.Fatal(err)
	}
	if res := r.k.Load(t.Context(), r.time); res.Boots != 1 {
		t.Fatalf("%+v", res)
	}
	if r.rounds(); r.boots() != 1 {
		t.Errorf("%d journals", r.boots())
	}
	r.disk.PowerLoss()
	r.start()
	r.want(1, 3)
	r.want(2, 100)
}

// TestRemovedDirectory requires that a member whose directory is removed reports that it is down, and writes everything to
// a new one.
func TestRemovedDirectory(t *testing.T) {
	r := newRig(t)
	r.take(strict(request(1, 100)))
	r.rounds()
	for _, f := range r.disk.Files("/data") {
		if err := r.disk.FS().Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	dir := r.k.journal.Dir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := r.disk.FS().Remove(d); err != nil {
			t.Fatal(err)
		}
	}
	r.take(strict(request(2, 50)))
	if again := r.k.Round(r.now); again != retryAfter || gaugeValue(t, r.k.metrics.up) != 0 {
		t.Errorf("again in %v", time.Duration(again))
	}
	r.now += retryAfter
	r.rounds()
	if up := gaugeValue(t, r.k.metrics.up); up != 1 {
		t.Errorf("up is %v", up)
	}
	r.disk.PowerLoss()
	r.start()
	if r.used(1) < 100 || r.used(2) < 50 {
		t.Errorf("%d and %d hits", r.used(1), r.used(2))
	}
}

// TestLoadWhileAnotherBegins requires that a member begins its journal although another one that shares its directory
// looks for journals at any moment meanwhile.
func TestLoadWhileAnotherBegins(t *testing.T) {
	for at := 0; ; at++ {
		r := newRig(t)
		other := New(Options{
			Node: owner.New(owner.Options{Self: "b", BootID: 7, DataWindow: time.Hour}), Apply: r.apply, Ring: r.ring.Load,
			Journal: journal.Options{FS: r.disk.FS(), Dir: "/data", Label: "test", Scheme: 1, Member: "b", Boot: 7},
		})
		r.take(request(1, 100))
		n, searched := 0, false
		r.before(func(op modeldisk.Operation) {
			if n++; n-1 == at && !searched {
				searched = true
				other.Load(t.Context(), r.time)
				other.Round(r.now)
			}
		})
		r.k.Round(r.now)
		if !searched {
			return
		}
		if r.k.state == failed {
			t.Errorf("the journal fails if another member searches before operation %d", at)
		}
		r.before(func(modeldisk.Operation) {})
		r.rounds()
		r.kill()
		if res := r.start(); res.Bad > 0 {
			t.Errorf("operation %d: %+v", at, res)
		}
		r.want(1, 100)
	}
}

// TestLockedDirectory requires that a member whose new directory another one has locked for a moment, to look into it,
// tries again soon.
func TestLockedDirectory(t *testing.T) {
	r := newRig(t)
	r.take(request(1, 100))
	locked, release := false, func() {}
	r.before(func(op modeldisk.Operation) {
		if op != modeldisk.Lock || locked {
			return
		}
		locked = true
		lock, err := r.disk.FS().Lock(filepath.Join(r.k.journal.Dir(), "LOCK"))
		if err != nil {
			t.Fatal(err)
		}
		release = func() { lock.Close() }
	})
	if again := r.k.Round(r.now); !locked || again != lockedRetry {
		t.Fatalf("locked %v; again after %v", locked, time.Duration(again))
	}
	release()
	r.now += lockedRetry
	r.rounds()
	if r.k.state == failed {
		t.Error("the journal is still down")
	}
}

// TestUnlistedDirectory requires that a directory that cannot be read is tried again.
func TestUnlistedDirectory(t *testing.T) {
	r := newRig(t)
	r.take(request(1, 100))
	r.rounds()
	r.kill()
	r.disk.Fail(modeldisk.List, syscall.EIO)
	if res := r.start(); !res.Hidden || !r.k.loaded.waits() {
		t.Errorf("%+v", res)
	}
	r.disk.Heal()
	if res := r.k.Load(t.Context(), r.time); res.Hidden || res.Boots != 1 {
		t.Errorf("%+v", res)
	}
	r.want(1, 100)
}

// TestDamagedHeader requires that the blocks of a segment are loaded although its header is damaged, and that the damage
// is counted.
func TestDamagedHeader(t *testing.T) {
	r := newRig(t)
	r.take(request(1, 100))
	r.rounds()
	r.kill()
	for _, f := range r.disk.Files("/data") {
		if strings.HasSuffix(f, ".seg") {
			b := r.disk.Bytes(f)
			copy(b, make([]byte, 64))
			r.disk.SetBytes(f, b)
		}
	}
	if res := r.start(); res.Bad == 0 || counterValue(t, r.k.metrics.bad) == 0 {
		t.Errorf("%+v", res)
	}
	r.want(1, 100)
}

// TestRing requires that the newest complete ring is found again, and how many of its members' journals.
func TestRing(t *testing.T) {
	r := newRig(t)
	self := journal.RingMember{Name: "a", Boot: r.boot | 3}
	first := &CompleteRing{At: r.now, Members: []journal.RingMember{self, {Name: "b", Boot: 5}}}
	second := &CompleteRing{At: r.now + 1, Members: []journal.RingMember{{Name: "b", Boot: 5}, self, {Name: "c", Boot: 9}}}
	r.setRing(first)
	r.take(request(1, 100))
	r.rounds()
	r.setRing(second)
	r.k.Round(r.now)
	r.kill()
	res := r.start()
	if res.Ring == nil || res.Ring.ID() != second.ID() || len(res.Ring.Members) != 3 || res.OfRing != 1 {
		t.Errorf("%+v", res)
	}
	for range 3 { // crashes before there is another ring
		r.setRing(nil)
		r.rounds()
		r.kill()
		if res := r.start(); res.Ring == nil || res.Ring.ID() != second.ID() || res.OfRing != 1 {
			t.Errorf("after another crash: %+v", res)
		}
	}
	if first.ID() == second.ID() || first.ID() == 0 || (&CompleteRing{}).ID() != 0 {
		t.Error("rings are confused")
	}
	swapped := &CompleteRing{Members: []journal.RingMember{second.Members[2], second.Members[0], second.Members[1]}}
	if swapped.ID() != second.ID() {
		t.Error("the order of members changes the ID")
	}
}

// TestGenerationsReplaceEachOther requires that the size of a journal is bounded by what counts.
func TestGenerationsReplaceEachOther(t *testing.T) {
	r := newRig(t)
	r.o.SegmentBytes = 1 << 20
	r.kill()
	r.start()
	hourly := func(i int) owner.Request {
		q := request(i, 10)
		q.Rule.Window = time.Hour
		return q
	}
	const keys = 3000
	most := int64(0)
	for range 300 {
		for i := range keys {
			r.take(hourly(i))
		}
		r.rounds()
		most = max(most, r.disk.Used("/data"))
		r.later()
	}
	if most > 3*keys*counterBytes+64<<20 {
		t.Errorf("%d bytes", most)
	}
	if g := r.k.journal.Status().Generation; g < 3 {
		t.Errorf("only %d generations: the test shows nothing", g)
	}
	q := hourly(7)
	r.take(q)
	r.rounds()
	used := r.node.RecordedUsage(r.now, &q)
	r.disk.PowerLoss()
	r.start()
	if got := r.node.RecordedUsage(r.now, &q); got != used || used == 0 {
		t.Errorf("%d of %d hits", got, used)
	}
}

// TestSizeLimit requires that a journal that has no room left does not exceed its size, reports that it is down, and
// continues when counters have ended.
func TestSizeLimit(t *testing.T) {
	r := newRig(t)
	r.kill()
	r.o.MaxBytes, r.o.SegmentBytes = 8<<20, 1<<20
	r.start()
	down := false
	for i := range 400 {
		for j := range 300 {
			r.take(strict(request(300*i+j, 10)))
		}
		again := r.k.Round(r.now)
		for again == 0 {
			again = r.k.Round(r.now)
		}
		down = down || again == retryAfter
		if used := r.disk.Used("/data"); used > 8<<20 {
			t.Fatalf("%d bytes", used)
		}
		r.now += second
	}
	if !down {
		t.Error("never full: the test shows nothing")
	}
	defer func() { // when the counters have ended, there is room again
		r.now += int64(31 * 24 * time.Hour)
		for range 100 {
			r.node.Tick(r.now)
		}
		r.take(request(5, 100))
		r.rounds()
		if r.k.state != complete {
			t.Errorf("state %d when the counters have ended: %s", r.k.state, r.k.cause)
		}
		r.disk.PowerLoss()
		r.start()
		r.want(5, 100)
	}()
	if res := r.take(strict(request(1, 50))); res.Kind != owner.Decided {
		t.Errorf("%+v while the journal is full", res)
	}
}

// TestLoadEnds requires that Load returns when its context ends.
func TestLoadEnds(t *testing.T) {
	r := newRig(t)
	for i := range 3000 {
		r.take(request(i, 100))
	}
	r.rounds()
	r.kill()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	k := New(Options{Node: owner.New(owner.Options{Self: "a", BootID: 0x77, DataWindow: time.Hour}),
		Journal: journal.Options{FS: r.disk.FS(), Dir: "/data", Label: "test", Scheme: 1, Boot: 0x77}})
	if res := k.Load(ctx, r.time); res.Counters > 300 {
		t.Errorf("%+v", res)
	}
}

// TestCauseOf requires that a failure is logged once for each cause.
func TestCauseOf(t *testing.T) {
	a, b := fmt.Errorf("write 1: %w", syscall.EIO), fmt.Errorf("write 2: %w", syscall.EIO)
	if causeOf(a) != causeOf(b) || causeOf(a) == causeOf(errors.New("another")) {
		t.Error("causes are confused")
	}
}
