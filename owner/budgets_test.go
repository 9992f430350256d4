package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
)

func TestBudgets(t *testing.T) {
	n := alone(Options{})
	hourly := limit.Rule{Window: time.Hour, Limit: 100}
	do := func(now int64, i int, id uint64, op Op, r limit.Rule, hits uint64, flags claim.Flags) {
		t.Helper()
		q := hold(i, id, op, r, hits)
		q.Hold.Flags = flags
		n.Decide(now, &q)
	}
	do(t0, 1, 1, Reserve, hourly, 40, 0)
	do(t0+second, 1, 2, Reserve, hourly, 20, 0)
	do(t0+second, 1, 2, Commit, hourly, 5, 0)
	do(t0, 2, 1, Reserve, limit.Rule{Algorithm: limit.InFlight, Window: time.Minute, Limit: 4}, 1, claim.InFlight)
	do(t0, 3, 1, Take, hourly, 90, claim.Once)
	do(t0, 6, 1, Take, hourly, 90, claim.Set)
	do(t0, 4, 1, Reserve, hourly, 10, 0)
	do(t0, 4, 1, Release, hourly, 0, 0)
	q := ask(5, 100, time.Hour, 99) // has no holds
	n.Decide(t0, &q)

	list, total := n.Budgets(t0+second, 10)
	if total != 3 || len(list) != 3 {
		t.Fatalf("%d budgets, %+v", total, list)
	}
	b := list[0]
	if b.Key != key(1) || b.Used != 45 || b.Held != 40 || b.Spent() != 5 || b.Open != 1 || b.Oldest != t0 || b.Rule != hourly || b.Reset <= 0 {
		t.Errorf("the key with most of its limit used: %+v", b)
	}
	if b = list[1]; b.Key != key(2) || b.Used != 1 || b.Held != 1 || b.Spent() != 0 || b.Rule.Algorithm != limit.InFlight {
		t.Errorf("requests in flight: %+v", b)
	}
	if b = list[2]; b.Key != key(4) || b.Used != 0 || b.Open != 0 || b.Oldest != 0 {
		t.Errorf("a key whose hold was released: %+v", b)
	}
	if list, total = n.Budgets(t0+second, 1); len(list) != 1 || total != 3 || list[0].Key != key(1) {
		t.Errorf("at most one of %d: %+v", total, list)
	}
	if f := n.Stats(t0 + second); f.OpenHolds != 2 || f.OpenHoldHits != 41 {
		t.Errorf("%d holds of %d hits are open", f.OpenHolds, f.OpenHoldHits)
	}
}

// TestHoldStatistics requires that each count of Stats.Holds increases by what it counts.
func TestHoldStatistics(t *testing.T) {
	n := alone(Options{})
	r := limit.Rule{Window: time.Hour, Limit: 100}
	do := func(now int64, id uint64, op Op, hits uint64, change func(*Hold)) {
		q := hold(1, id, op, r, hits)
		if change != nil {
			change(q.Hold)
		}
		n.Decide(now, &q)
	}
	do(t0, 1, Reserve, 10, nil)
	do(t0, 1, Reserve, 10, nil) // a repetition
	do(t0, 1, Reserve, 9, nil)  // a collision
	do(t0, 2, Reserve, 1, func(h *Hold) { h.Max = 1 })
	do(t0, 1, Commit, 4, nil) // gives 6 back
	do(t0, 3, Reserve, 5, nil)
	do(t0, 3, Commit, 7, nil) // 2 more
	do(t0, 4, Commit, 3, nil) // not known
	do(t0, 6, Release, 0, nil)
	do(t0, 5, Reserve, 5, func(h *Hold) { h.TTL = time.Second })
	n.Tick(t0 + 5*second)
	want := holdCounts{Reserved: 3, Refused: 1, Repeats: 1, Collisions: 1, GivenBack: 6, Excess: 2, Unmatched: 2, Unknown: 1, Lapsed: 1}
	if f := n.Stats(t0 + 5*second); f.Holds != want || f.OpenHolds != 0 {
		t.Errorf("%+v, not %+v", f.Holds, want)
	}
}

func TestBudgetEvents(t *testing.T) {
	n := alone(Options{})
	r := limit.Rule{Window: time.Hour, Limit: 100}
	now := t0
	events := func() (percents []uint8) {
		now += second
		for _, e := range n.Tick(now).Budgets {
			if e.Limit != 100 || e.Used < uint64(e.Percent) {
				t.Errorf("%+v", e)
			}
			percents = append(percents, e.Percent)
		}
		return percents
	}
	id := uint64(0)
	reserve := func(i int, r limit.Rule, hits uint64) uint64 {
		id++
		q := hold(i, id, Reserve, r, hits)
		n.Decide(now, &q)
		return id
	}
	settle := func(i int, id uint64, op Op, hits uint64) {
		q := hold(i, id, op, r, hits)
		n.Decide(now, &q)
	}
	expect := func(what string, want ...uint8) {
		t.Helper()
		if got := events(); string(got) != string(want) {
			t.Errorf("%s: %v, not %v", what, got, want)
		}
	}
	reserve(1, r, 79)
	expect("79 %")
	last := reserve(1, r, 1)
	expect("80 %", 80)
	settle(1, last, Release, 0)
	reserve(1, r, 1)
	expect("80 % again")
	last = reserve(1, r, 10)
	settle(1, last, Commit, 20) // beyond its estimate
	expect("a commit to 100 %", 100)
	settle(1, 999, Commit, 50)
	expect("above the limit")
	reserve(2, r, 100)
	expect("all at once", 100)
	reserve(3, limit.Rule{Algorithm: limit.InFlight, Window: time.Hour, Limit: 100}, 100)
	expect("requests in flight")
	q := ask(4, 100, time.Hour, 100)
	n.Decide(now, &q)
	expect("a rule without holds")
	now = r.End(r.Index(now)) + second
	reserve(1, r, 85)
	expect("the next window", 80)
	if f := n.Stats(now); f.BudgetEvents != [2]uint64{2, 2} || f.BudgetEventsLost != 0 {
		t.Errorf("counted %v, %d lost", f.BudgetEvents, f.BudgetEventsLost)
	}
}

// TestBudgetEventsAreBounded requires that events that find no room are counted.
func TestBudgetEventsAreBounded(t *testing.T) {
	n := alone(Options{MaxHolds: 1 << 18})
	r := limit.Rule{Window: time.Hour, Limit: 10}
	s, _ := n.shard(key(1))
	sent := uint64(0)
	for i := 1; sent < maxBudgetEvents+10; i++ {
		if other, _ := n.shard(key(i)); other == s {
			q := hold(i, 1, Reserve, r, 10)
			n.Decide(t0, &q)
			sent++
		}
	}
	f := n.Stats(t0)
	if got := len(n.Tick(t0 + milli).Budgets); got != maxBudgetEvents || f.BudgetEventsLost != 10 {
		t.Errorf("%d events, %d lost", got, f.BudgetEventsLost)
	}
}
