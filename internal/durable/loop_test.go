package durable

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/keyward/keyward/journal/modeldisk"
	"github.com/keyward/keyward/owner"
)

// runLoop runs f with the Loop of a member whose clock is that of the bubble.
func runLoop(t *testing.T, f func(r *rig, l *Loop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		begun := time.Now()
		l := Run(r.k, func() int64 { return t0 + int64(time.Since(begun)) }, nil)
		f(r, l)
		if err := l.Stop(t.Context()); err != nil && !errors.Is(err, modeldisk.ErrDead) {
			t.Error(err)
		}
	})
}

// take decides a request at the present time of the bubble, and wakes the Loop.
func (r *rig) decide(l *Loop, q owner.Request) owner.Result {
	res := r.node.Decide(l.now(), &q)
	l.Decided()
	return res
}

// TestLoop requires that a strict request waits for no longer than the disk needs, that others are written within
// 200 ms, and that nothing runs while nothing happens.
func TestLoop(t *testing.T) {
	runLoop(t, func(r *rig, l *Loop) {
		synctest.Wait()
		if r.decide(l, strict(request(1, 1))); r.confirmed(1) {
			t.Error("confirmed before it was written")
		}
		if synctest.Wait(); !r.confirmed(1) {
			t.Error("not confirmed at once")
		}
		records := func() float64 { return counterValue(t, r.k.metrics.records) }
		before := records()
		r.decide(l, request(2, 500))
		synctest.Wait()
		if records() != before {
			t.Error("an async hit is written at once: no others can be collected")
		}
		if time.Sleep(200 * time.Millisecond); records() != before+1 {
			t.Errorf("%v records", records()-before)
		}
		syncs := 0
		r.before(func(op modeldisk.Operation) {
			if op == modeldisk.Sync {
				syncs++
			}
		})
		time.Sleep(time.Hour)
		if syncs > 0 {
			t.Errorf("%d syncs in an idle hour", syncs)
		}
	})
}

// TestLoopStalls requires that a stalled disk keeps strict requests waiting for at most stallAfter, that it never delays
// async ones, and that requests wait again when it has recovered.
func TestLoopStalls(t *testing.T) {
	runLoop(t, func(r *rig, l *Loop) {
		r.decide(l, strict(request(1, 1)))
		synctest.Wait()
		r.before(func(op modeldisk.Operation) {
			if op == modeldisk.Sync {
				time.Sleep(10 * time.Second)
			}
		})
		r.decide(l, strict(request(2, 50)))
		if time.Sleep(stallAfter - time.Millisecond); r.confirmed(2) {
			t.Error("confirmed by a disk that stalls")
		}
		if time.Sleep(2 * time.Millisecond); !r.confirmed(2) {
			t.Error("still waits for a disk that stalls")
		}
		if res := r.decide(l, strict(request(3, 50))); res.Kind != owner.Decided {
			t.Errorf("%+v while the disk stalls", res)
		}
		if res := r.decide(l, request(4, 50)); res.Kind != owner.Decided {
			t.Errorf("%+v while the disk stalls", res)
		}
		if up := gaugeValue(t, r.k.metrics.up); up != 0 {
			t.Errorf("up is %v", up)
		}
		r.before(func(modeldisk.Operation) {})
		time.Sleep(10 * time.Second)
		if up := gaugeValue(t, r.k.metrics.up); up != 1 {
			t.Errorf("up is %v when the disk has recovered", up)
		}
		if res := r.decide(l, strict(request(5, 50))); res.Kind != owner.Pending {
			t.Errorf("%+v when the disk has recovered", res)
		}
		if synctest.Wait(); !r.confirmed(5) {
			t.Error("not confirmed when the disk has recovered")
		}
	})
}

// TestLoopRetries requires that a failed journal is begun again every 10 s, and contains everything then.
func TestLoopRetries(t *testing.T) {
	runLoop(t, func(r *rig, l *Loop) {
		r.disk.Fail(modeldisk.Sync, syscall.EIO)
		r.decide(l, request(1, 50))
		time.Sleep(time.Second)
		if up := gaugeValue(t, r.k.metrics.up); up != 0 {
			t.Errorf("up is %v", up)
		}
		r.disk.Heal()
		time.Sleep(time.Duration(retryAfter))
		if up := gaugeValue(t, r.k.metrics.up); up != 1 {
			t.Errorf("up is %v after the fault", up)
		}
		r.disk.PowerLoss()
		r.start()
		r.want(1, 50)
	})
}

// TestFailedLoopRests requires that a journal that has failed while a request was waiting is not tried before its time.
func TestFailedLoopRests(t *testing.T) {
	runLoop(t, func(r *rig, l *Loop) {
		r.decide(l, strict(request(1, 1)))
		synctest.Wait()
		var tries atomic.Int64
		late := strict(request(3, 50)) // arrives during the sync that fails
		r.before(func(op modeldisk.Operation) {
			if op == modeldisk.Sync && tries.Add(1) == 1 {
				r.node.Decide(l.now(), &late)
			}
		})
		r.disk.Fail(modeldisk.Sync, syscall.EIO)
		r.decide(l, strict(request(2, 50)))
		time.Sleep(time.Duration(retryAfter) / 2)
		if n := tries.Load(); n != 1 {
			t.Errorf("%d tries", n)
		}
		if in := r.node.JournalIn(); in != 0 {
			t.Errorf("the Node needs a round in %v: the test shows nothing", in)
		}
		if l.waiting.Load() != 0 {
			t.Error("decisions wake a journal that has failed")
		}
		r.disk.Heal()
	})
}

// TestLoopRecordsRings requires that a new ring is written although nothing else is due, once there is a journal.
func TestLoopRecordsRings(t *testing.T) {
	runLoop(t, func(r *rig, l *Loop) {
		r.setRing(ringOf("a"))
		l.RingComplete()
		if synctest.Wait(); len(r.disk.Files("/data")) == 0 {
			t.Error("other members would miss the journal of a member without counters")
		}
		r.decide(l, request(1, 50))
		time.Sleep(time.Second)
		r.setRing(ringOf("a", "b"))
		l.RingComplete()
		synctest.Wait()
		r.kill()
		if res := r.start(); res.Ring == nil || len(res.Ring.Members) != 2 {
			t.Errorf("%+v", res)
		}
	})
}
