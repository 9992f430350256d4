package rls

import (
	"testing"

	"github.com/keyward/keyward/owner"
)

// TestCallTally checks that hits are added up for each key between two collections, for a bounded number of keys, and without
// an allocation for a known one.
func TestCallTally(t *testing.T) {
	s := new(Service)
	collect := func() map[owner.Key]uint64 {
		all := map[owner.Key]uint64{}
		s.CollectCalls(func(q *owner.Request, hits uint64) { all[q.Key] += hits })
		return all
	}
	q := func(i int) *owner.Request {
		return &owner.Request{Key: owner.Key{uint64(i), 1}, Hits: 7, Op: owner.Take}
	}
	s.called.add(q(1), 3)
	s.called.add(q(1), 4)
	s.called.add(q(2), 1)
	if all := collect(); len(all) != 2 || all[q(1).Key] != 7 || all[q(2).Key] != 1 {
		t.Errorf("%v", all)
	}
	if all := collect(); len(all) != 0 {
		t.Errorf("again: %v", all)
	}
	for i := range 2 * maxCalled {
		s.called.add(q(i), 1)
	}
	if all := collect(); len(all) != maxCalled {
		t.Errorf("%d keys", len(all))
	}
	r := q(1)
	s.called.add(r, 1)
	if n := testing.AllocsPerRun(100, func() { s.called.add(r, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestCallsThatFitNoWindow checks that a call with more hits than the limit is no demand: one would keep the limit from Envoys
// for minutes.
func TestCallsThatFitNoWindow(t *testing.T) {
	r := newRig(t, "domain: app\ndescriptors:\n- key: k\n  rate_limit: {unit: minute, requests_per_unit: 100}\n  metadata: {keyward: {mechanism: quota}}\n")
	for hits, want := range map[uint32]uint64{1: 1, 100: 100, 101: 0, 1_000_000_000: 0} {
		q := request("app", descriptor("k", "v"))
		q.HitsAddend = hits
		r.ask(t, q)
		got := uint64(0)
		r.CollectCalls(func(_ *owner.Request, hits uint64) { got += hits })
		if got != want {
			t.Errorf("%d hits: a demand of %d, want %d", hits, got, want)
		}
	}
}
