package handoff

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

func TestStoppedMemberLosesItsOwnership(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	whole := c.ring()
	b := c.machines["b"]
	delete(c.machines, "b")
	c.run(3 * time.Second)
	c.adoptAll()
	c.run(3 * time.Second)
	c.steady()
	c.machines["b"] = b
	c.check(1) // it runs again and has not processed anything yet
	c.send("b", b.Tick(c.now))
	c.pump()
	c.check(1)
	for _, id := range []ring.ID{"a", "c"} {
		c.adopt(id, whole)
		c.pump()
		c.check(0)
	}
	c.run(2 * time.Second)
	c.steady()
}

// TestStoppedMemberProcessesItsBacklog: the first things that a member does after a stop are those that arrived meanwhile.
// They tell it of a joining member that has taken over its keys since.
func TestStoppedMemberProcessesItsBacklog(t *testing.T) {
	c := newCluster(t, "a", "b")
	b := c.machines["b"]
	delete(c.machines, "b")
	c.boot("c", membership.Joining)
	joiner := protocol.Message{Kind: protocol.Ping, Seq: 1, Flags: protocol.NeverOwned, Sent: c.now, Now: c.now}
	c.run(3 * time.Second)
	c.states["c"], c.nref = membership.Active, 3
	c.adoptAll()
	c.run(3 * time.Second)
	c.steady()

	c.machines["b"], c.states["c"] = b, membership.Joining
	c.adopt("b", c.ring())
	c.check(1)
	c.send("b", b.Step(c.now, "c", c.bootID("c"), &joiner))
	c.check(1)
	c.states["c"] = membership.Active
	c.adopt("b", c.ring())
	c.check(1)
	c.run(2 * time.Second)
	c.check(1)
	c.adoptAll()
	c.run(2 * time.Second)
	c.steady()
}

// TestJoinersReplaceNoConfirmation: a member that half of its cluster confirms is not in the majority because another joins.
func TestJoinersReplaceNoConfirmation(t *testing.T) {
	c := newCluster(t, "a", "b", "c", "d")
	extent := func() Extent {
		e, _, _ := c.machines["b"].View().Extent(c.now, policy.PartQuorum)
		return e
	}
	c.boot("e", membership.Joining)
	c.cut = func(from, to ring.ID) bool { return (from == "b") != (to == "b") && from != "d" && to != "d" }
	c.adoptAll()
	c.run(3 * time.Second)
	if e := extent(); e != ExtentPart {
		t.Fatalf("confirmed by one of three: extent %d", e)
	}
	joiner := protocol.Message{Kind: protocol.Ping, Seq: 1, Flags: protocol.NeverOwned, Sent: c.now, Now: c.now}
	c.machines["b"].Step(c.now, "e", c.bootID("e"), &joiner)
	c.states["e"], c.nref = membership.Active, 5
	c.adoptAll()
	if e := extent(); e != ExtentPart {
		t.Fatalf("after a member has joined: extent %d", e)
	}
}
