package handoff

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// copiesLost runs a join during which Acks to the joining member are lost as lose decides. It returns the number of
// transfers of successor replicas from member a.
func copiesLost(t *testing.T, lose func(copies bool) bool) (sent int) {
	c := newCluster(t, "a", "b", "c")
	c.boot("d", membership.Joining)
	c.adoptAll()
	c.run(time.Second)
	c.lose = func(from ring.ID, tr Transfer) bool {
		if from != "a" || tr.To != "d" {
			return false
		}
		if tr.SuccessorCopy {
			sent++
			if tr.CopiedFor != nil {
				t.Fatal("CopiedFor is set although no replicas were confirmed")
			}
		}
		return lose(tr.SuccessorCopy)
	}
	c.states["d"] = membership.Active
	c.adoptAll()
	c.run(5 * time.Second)
	c.steady()
	return sent
}

// TestCopiesAreSentUntilTheyArrive requires that successor replicas are sent until the successor confirms them, whether
// the connection breaks before the preceding Ack arrives or after it.
func TestCopiesAreSentUntilTheyArrive(t *testing.T) {
	if n := copiesLost(t, func(bool) bool { return false }); n != 1 {
		t.Fatalf("sent %d times without any loss", n)
	}
	acks := 0
	if n := copiesLost(t, func(bool) bool {
		acks++
		return acks <= 2
	}); n != 2 {
		t.Fatalf("sent %d times after every Ack was lost once", n)
	}
	lost := 0
	if n := copiesLost(t, func(copies bool) bool {
		if copies {
			lost++
		}
		return copies && lost <= 2
	}); n != 3 {
		t.Fatalf("sent %d times after two losses", n)
	}
}

// TestLeaverWaitsForCopies requires that a leaving member stays until the successors have their replicas.
func TestLeaverWaitsForCopies(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	c.lose = func(from ring.ID, tr Transfer) bool { return from == "c" && tr.SuccessorCopy }
	c.states["c"] = membership.Leaving
	c.adoptAll()
	c.run(3 * time.Second)
	if c.machines["c"].Progress().HandedOff {
		t.Fatal("handed off although no successor has received its replicas")
	}
	c.lose = nil
	c.run(2 * time.Second)
	if p := c.machines["c"].Progress(); !p.HandedOff {
		t.Fatalf("not handed off: %+v", p)
	}
}

// TestLateRequestForOwnership requires that a request which a ping with a later adoption has overtaken does not make the
// transfer for that adoption begin again.
func TestLateRequestForOwnership(t *testing.T) {
	c := newCluster(t, "a", "b")
	m := c.machines["a"]
	p := m.peers["b"]
	before := p.sending
	late := protocol.Message{Kind: protocol.OwnershipRequest, Ring: m.view.ring.Fingerprint(), Seq: p.seq - 1}
	m.Step(c.now, "b", p.BootID, &late)
	if p.sending != before || p.seq == late.Seq {
		t.Fatalf("the transfer was %+v, and is %+v", before, p.sending)
	}
}
