package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/protocol"
)

// TestClockStopped requires that a member whose clock has stood still for 9 s, while others did not, revokes its
// ownership in the Step that processes the heartbeat that shows it. Nothing is decided by that ownership afterwards.
func TestClockStopped(t *testing.T) {
	w := newNetwork(t, 1, Options{}, "a", "b", "c")
	a := w.nodes["a"]
	req, i := Request{}, 0
	for ; ; i++ {
		if req = ask(i, 10_000, time.Hour, 1); a.Decide(w.clock("a"), &req).Kind == Decided {
			break
		}
	}
	w.now += 9 * second
	w.skew["a"] -= 9 * second
	now := w.clock("a")
	if ans := a.Decide(now, &req); ans.Kind != Decided || ans.Authority != Full {
		t.Fatalf("before anybody was heard: %+v", ans)
	}
	step := func(i int) Ready {
		v := a.serial.view
		msg := protocol.Message{Kind: protocol.Ping, Ring: v.Ring().Fingerprint(), Seq: 1, Sent: w.now, Now: w.now}
		id := w.ids()[i]
		return a.Step(now, id, w.insts[id]|1, &msg)
	}
	if fx := step(1); fx.ClockStopped != 0 || a.Decide(now, &req).Kind != Decided {
		t.Errorf("one peer of two is believed: %v", fx.ClockStopped)
	}
	if fx := step(2); fx.ClockStopped < 8*time.Second || fx.ClockStopped > 9*time.Second {
		t.Errorf("stood still for %v", fx.ClockStopped)
	}
	if ans := a.Decide(now, &req); ans.Kind == Decided && ans.Authority != Share {
		t.Errorf("after both were heard: %+v", ans)
	}
	w.run(5 * time.Second)
	if ans := a.Decide(w.clock("a"), &req); ans.Kind != Decided || ans.Authority != Full {
		t.Errorf("when all have confirmed: %+v", ans)
	}
}
