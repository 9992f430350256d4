package handoff

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// copiesLost is a join during which the Acks that lose names do not reach the joiner. It returns by how many transfers of
// copies member a made it an heir.
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
				t.Fatal("it is taken to have copies, of which nobody knows that they came")
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

// Copies for an heir are sent until it says that it has them: when the connection breaks before the Ack that they follow
// has arrived, and when it breaks after that.
func TestCopiesAreSentUntilTheyArrive(t *testing.T) {
	if n := copiesLost(t, func(bool) bool { return false }); n != 1 {
		t.Fatalf("sent %d times, nothing being lost", n)
	}
	acks := 0
	if n := copiesLost(t, func(bool) bool {
		acks++
		return acks <= 2
	}); n != 2 {
		t.Fatalf("sent %d times, all having been lost once", n)
	}
	lost := 0
	if n := copiesLost(t, func(copies bool) bool {
		if copies {
			lost++
		}
		return copies && lost <= 2
	}); n != 3 {
		t.Fatalf("sent %d times, having been lost twice", n)
	}
}

// Who leaves stays until the heirs have their copies.
func TestLeaverWaitsForCopies(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	c.lose = func(from ring.ID, tr Transfer) bool { return from == "c" && tr.SuccessorCopy }
	c.states["c"] = membership.Leaving
	c.adoptAll()
	c.run(3 * time.Second)
	if c.machines["c"].Progress().HandedOff {
		t.Fatal("done, without anybody having got the copies")
	}
	c.lose = nil
	c.run(2 * time.Second)
	if p := c.machines["c"].Progress(); !p.HandedOff {
		t.Fatalf("not done: %+v", p)
	}
}
