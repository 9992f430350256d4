package handoff

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
)

// TestLateTickLosesNoOwnership: a member stops after a confirmation has arrived that the next Tick would have published.
// The first message after the stop finds it still confirmed.
func TestLateTickLosesNoOwnership(t *testing.T) {
	c := newCluster(t, "a", "b")
	a := c.machines["a"]
	before := a.View()
	seq := a.peers["b"].seq
	c.now += 200 * ms
	pong := protocol.Message{Kind: protocol.Pong, Flags: protocol.Confirmed, Sent: c.now, Now: c.now}
	a.Step(c.now, "b", c.bootID("b"), &pong)
	if !a.extentStale {
		t.Fatal("the confirmation was published at once")
	}
	c.now = a.View().confirmations.until[0] + ms
	ping := protocol.Message{Kind: protocol.Ping, Ring: before.ring.Fingerprint(), Seq: seq, Sent: c.now, Now: c.now}
	a.Step(c.now, "b", c.bootID("b"), &ping)
	if a.View().epoch != before.epoch {
		t.Error("the ownership was revoked")
	}
}

// TestPeerRestartsInPair: the other member of a cluster of two fails and joins again, before or after it was dropped
// from the ring. The first one keeps its ownership.
func TestPeerRestartsInPair(t *testing.T) {
	for _, dropped := range []bool{true, false} {
		c := newCluster(t, "a", "b")
		r, h := c.ring(), uint64(1)
		for r.At(r.Owner(h)).ID != "a" {
			h += 0x9E3779B97F4A7C15
		}
		delete(c.machines, "b")
		if dropped {
			c.run(3 * time.Second)
			c.adoptAll()
			c.run(3 * time.Second)
		}
		c.boot("b", membership.Joining)
		c.adoptAll()
		c.run(time.Second)
		c.states["b"] = membership.Active
		c.adoptAll()
		for len(c.queue) > 0 {
			if got := c.holders(h); len(got) != 1 || got[0] != "a" {
				t.Fatalf("dropped %v: the key of a is owned by %v", dropped, got)
			}
			e := c.queue[0]
			c.queue = c.queue[1:]
			c.send(e.To, c.machines[e.To].Step(c.now, e.from, e.bootID, &e.Msg))
		}
		c.run(time.Second)
		c.steady()
	}
}
