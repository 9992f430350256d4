package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// askStatic asks n for one hit by req until it refuses one, and returns the number of hits that it admitted.
func askStatic(t *testing.T, n *Node, now int64, req Request) (admitted uint64) {
	t.Helper()
	for {
		res := take(n, now, req)
		if res.Kind != Decided || res.Authority != Static || res.Path != Local || res.Over != (res.After > uint64(req.Rule.Depth())) {
			t.Fatalf("%s: %+v", n.options.Self, res)
		}
		if res.Over {
			return admitted
		}
		admitted++
	}
}

// TestStatic requires that the members of a ring admit the limit together, each its share, and that they neither
// forward nor replicate anything. A member that gets a larger share after another has left reports what it admits
// above its former one.
func TestStatic(t *testing.T) {
	for _, alg := range algorithms {
		req := ask(1, 100, time.Minute, 1)
		req.Mechanism, req.Rule.Algorithm = policy.Static, alg
		var nodes []*Node
		sum, least := uint64(0), uint64(33)
		if alg.Bucket() {
			least = 32 // the part of a bucket is rounded down
		}
		for _, id := range []ring.ID{"a", "b", "c"} {
			n := member(Options{Self: id}, t0, "a", "b", "c")
			nodes = append(nodes, n)
			got := askStatic(t, n, t0+second, req)
			if got < least || got > 34 {
				t.Errorf("%v: %s has admitted %d of its third of 100", alg, id, got)
			}
			if used := n.RecordedUsage(t0+second, &req); used != got && (alg.Bucket() || used != got+1) {
				t.Errorf("%v: %s has counted %d, want %d, or one more", alg, id, used, got)
			}
			sum += got
			if f := n.Stats(t0 + second); f.Forwarded != 0 || f.Keys != 0 || f.Unreplicated != 0 || f.Bound() != 0 ||
				n.FlushIn() == 0 || f.Decided[Static] != got+1 {
				t.Errorf("%v: %s: %+v", alg, id, f)
			}
		}
		if sum > 100 || sum < 100-3*(33-least) {
			t.Errorf("%v: the members have admitted %d of 100", alg, sum)
		}
		bound := uint64(0)
		for _, n := range nodes[:2] { // c has left; its hits are not known any more
			move(n, t0+2*second, "a", "b")
			sum += askStatic(t, n, t0+2*second, req)
			bound += n.Stats(t0 + 2*second).ShareBound
		}
		if !alg.Bucket() && sum < 100+30 || bound+100 < sum {
			t.Errorf("%v: %d admitted, limit 100, the members report at most %d above it", alg, sum, bound)
		}
	}
}

// TestStaticAfterBoot requires that a member reports all that it admits in a window that began before it started: an
// earlier boot may have admitted its share already.
func TestStaticAfterBoot(t *testing.T) {
	req := ask(1, 100, time.Minute, 1)
	req.Mechanism = policy.Static
	n := New(Options{Self: "a"})
	move(n, t0+30*second, "a", "b")
	if got := askStatic(t, n, t0+30*second, req); got != 50 || n.Stats(t0+30*second).Bound() != 50 {
		t.Errorf("%d admitted, bound %d", got, n.Stats(t0+30*second).Bound())
	}
	if got := askStatic(t, n, t0+61*second, req); got != 50 || n.Stats(t0+61*second).Bound() != 0 {
		t.Errorf("in the next window: %d admitted, bound %d", got, n.Stats(t0+61*second).Bound())
	}
}

// TestStaticInStopMode requires that a used up static limit keeps the other limits of a call from being charged, and
// the other way around, also if another member owns their keys.
func TestStaticInStopMode(t *testing.T) {
	n := member(Options{Self: "a"}, t0, "a", "b")
	static, own := ask(1, 2, time.Minute, 1), ask(ownedBy(t, ringOf("a", "b"), "a", 2), 2, time.Minute, 1)
	static.Mechanism = policy.Static
	results := make([]Result, 2)
	for i, over := range []bool{false, true, true} {
		n.DecideAll(t0+second, true, []Request{static, own}, results)
		if results[0].Over != over || results[1].Over || results[0].Authority != Static || results[1].Authority != Full {
			t.Errorf("call %d: %+v", i, results)
		}
	}
	if res := take(n, t0+second, withOp(own, Read)); res.After != 1 {
		t.Errorf("the other limit has %d hits, not 1", res.After)
	}
	own.RingPos = ask(ownedBy(t, ringOf("a", "b"), "b", 2), 2, time.Minute, 1).RingPos
	n.DecideAll(t0+second, true, []Request{static, own}, results)
	if results[0].Kind != Forward || results[0].Member != "a" || results[1].Kind != Forward || results[1].Member != "b" {
		t.Errorf("with another owner: %+v", results)
	}
}

// TestStaticWithoutOwner requires that a static rule is decided in the same way when the degraded policies decide the
// rest of its call.
func TestStaticWithoutOwner(t *testing.T) {
	req := ask(1, 2, time.Minute, 1)
	req.Mechanism, req.Degraded = policy.Static, policy.FailClosed
	n := member(Options{Self: "a"}, t0, "a", "b")
	if res := n.Degrade(t0, &req); res.Over || res.Authority != Static {
		t.Errorf("degraded: %+v", res)
	}
	if res := n.Shed(t0, &req); !res.Over || res.Authority != Static {
		t.Errorf("shed: %+v", res)
	}
}
