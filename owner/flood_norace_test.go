//go:build !race

package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// TestFloodNeverAdmitsTooMuch sends more keys than the table and the quotas allow, with several window lengths, sweeps
// and refunds. It requires that no key is admitted beyond its limit, and that the table stays within its limits.
func TestFloodNeverAdmitsTooMuch(t *testing.T) {
	for seed := range uint64(6) {
		rnd := random(seed)
		n := alone(Options{MaxKeys: 300, DomainQuota: 200, Seed: [2]uint64{seed, ^seed}, DenyCache: int(seed%2) * 50})
		windows := []time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour}
		admitted := twin{}
		now, tick := t0, t0
		overflowed := false
		for range 60_000 {
			now += rnd.Int64N(second / 200)
			if now-tick > second {
				n.Tick(now)
				tick = now
			}
			i := rnd.IntN(40)
			if rnd.IntN(4) > 0 {
				i = rnd.IntN(3000)
			}
			req := ask(i, uint32(i%23), windows[i%len(windows)], rnd.Uint64N(4))
			req.Domain = uint64(i % 3 / 2)
			res := n.Decide(now, &req)
			overflowed = overflowed || res.Authority == Overflow
			if req.Hits == 0 || res.Over {
				continue
			}
			if sum := admitted.admit(now, &req); sum > uint64(req.Rule.Limit) {
				t.Fatalf("seed %d: key %d admitted %d of %d, last by %+v", seed, i, sum, req.Rule.Limit, res)
			}
			if uint64(res.Remaining)+admitted.admit(now, &Request{Key: req.Key, Rule: req.Rule}) > uint64(req.Rule.Limit) {
				t.Fatalf("seed %d: promises more than is left: %+v", seed, res)
			}
		}
		f := n.Stats(now)
		if !overflowed || f.OverflowCharges == 0 || f.OverflowKeys == 0 {
			t.Errorf("seed %d: no flood: %+v", seed, f)
		}
		if f.Keys > 300 || keysOf(n, 0) > 200 || f.Sketches > counter.MaxSketches {
			t.Errorf("seed %d: caps: %+v", seed, f)
		}
		if f.Bound() != 0 {
			t.Errorf("seed %d: bound %d", seed, f.Bound())
		}
	}
}

// keysOf returns how many counters of a domain take a place among those that n owns.
func keysOf(n *Node, domain uint16) (keys int) {
	for i := range n.shards {
		for at, more := 0, true; more; at += lockSlots {
			more = n.shards[i].counters.Owned.Each(at, lockSlots, func(e *counter.Owned) {
				if e.Domain() == domain {
					keys++
				}
			})
		}
	}
	return keys
}

// TestFloodForgetsNothing requires that a flood does not change a key in the table.
func TestFloodForgetsNothing(t *testing.T) {
	n := alone(Options{MaxKeys: 100})
	take(n, t0, ask(1, 10, time.Hour, 10))
	for i := range 20_000 {
		take(n, t0, ask(100+i, 10, time.Hour, 1))
	}
	if res := take(n, t0, ask(1, 10, time.Hour, 1)); !res.Over || res.Authority != Full || res.After != 11 {
		t.Errorf("%+v", res)
	}
	n.Tick(t0 + 3601*second)
	for range 10 {
		n.Tick(t0 + 3601*second)
	}
	if f := n.Stats(t0 + 3601*second); f.Keys != 0 {
		t.Errorf("%d keys after their windows", f.Keys)
	}
}

// TestFloodAddsNothing requires that a flood adds nothing to a key in the table, even if a full sketch has an estimate
// for it.
func TestFloodAddsNothing(t *testing.T) {
	n := alone(Options{MaxKeys: 100})
	take(n, t0, ask(1, 10, time.Hour, 7))
	for i := range 2 << 18 {
		take(n, t0, ask(100+i, 10, time.Hour, 5))
	}
	if res := take(n, t0, ask(2, 10, time.Hour, 5)); res.Authority != Overflow || res.Before == 0 {
		t.Fatalf("no flood: %+v", res)
	}
	if res := take(n, t0, ask(1, 10, time.Hour, 3)); res.Over || res.Authority != Full || res.After != 10 {
		t.Errorf("%+v", res)
	}
}

// TestKeyReturnsFromTheSketch requires that a key keeps its count when it moves from the sketch to the table.
func TestKeyReturnsFromTheSketch(t *testing.T) {
	n := alone(Options{MaxKeys: 2, DomainQuota: 2})
	take(n, t0, ask(1, 10, time.Second, 1))
	take(n, t0, ask(2, 10, time.Second, 1))
	if res := take(n, t0, ask(3, 10, time.Hour, 7)); res.Authority != Overflow || res.Remaining != 3 {
		t.Fatalf("first: %+v", res)
	}
	back := withOp(ask(3, 10, time.Hour, 7), Refund)
	if res := take(n, t0, back); res.Over || res.After != 7 || n.Stats(t0).RefundsDropped != 1 {
		t.Fatalf("refund: %+v", res)
	}
	for range 8 {
		n.Tick(t0 + second + int64(limit.ClockTolerance) + counter.Unit)
	}
	if res := take(n, t0+second+int64(limit.ClockTolerance)+counter.Unit, ask(3, 10, time.Hour, 4)); res.Authority != Full || !res.Over || res.Before < 7 {
		t.Fatalf("with a place of its own: %+v", res)
	}
}

// TestFloodOfShares requires that degraded decisions stay within the local share in a flood.
func TestFloodOfShares(t *testing.T) {
	rnd := random(8)
	n := member(Options{Self: "a", MaxKeys: 40}, t0, "a", "b")
	admitted := twin{}
	for now := t0; now < t0+20*second; now += second / 1000 {
		req := ask(rnd.IntN(500), 9, 5*time.Second, 1+rnd.Uint64N(2))
		if res := n.Degrade(now, &req); res.Over {
			continue
		}
		if sum := admitted.admit(now, &req); sum > 5 {
			t.Fatalf("share of 9 over 2: admitted %d", sum)
		} else if f := n.Stats(now); f.ShareBound < sum {
			t.Fatalf("admitted %d, bound %d", sum, f.ShareBound)
		}
	}
	if f := n.Stats(t0 + 20*second); f.ShareKeys > 20 || f.OverflowCharges == 0 {
		t.Errorf("%+v", f)
	}
}
