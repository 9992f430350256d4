package owner

import (
	"testing"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/ring"
)

// TestTransferOfZoneReplicas requires that a member that joins gets the counters whose zone replicas it will hold, and
// only those that it did not hold before.
func TestTransferOfZoneReplicas(t *testing.T) {
	zones := map[ring.ID]string{"a": "1", "b": "1", "c": "2", "d": "3"}
	ringOf := func(ids ...ring.ID) *ring.Ring {
		var members []ring.Member
		for _, id := range ids {
			members = append(members, ring.Member{ID: id, BootID: 1, Weight: 1, Zone: zones[id]})
		}
		return ring.New(members)
	}
	before, after := ringOf("a", "b", "d"), ringOf("a", "b", "c", "d")
	c := after.Index("c")
	all := newTransferFilter(&handoff.Transfer{To: "c", Ring: after, SuccessorCopy: true}, "a")
	d := newTransferFilter(&handoff.Transfer{To: "d", Ring: after, CopiedFor: before, SuccessorCopy: true}, "a")
	replicas, again := 0, 0
	for i := range uint64(1000) {
		pos := i << 54
		if after.Owner(pos) != after.Index("a") {
			continue
		}
		holds := after.Successor(pos) == c || after.ZoneReplica(pos) == c
		if all.includes(pos) != holds {
			t.Fatalf("%x: sent %v, want %v", pos, !holds, holds)
		}
		if after.ZoneReplica(pos) == c {
			replicas++
		}
		if d.includes(pos) {
			again++
		}
	}
	if replicas < 20 || again > 0 {
		t.Errorf("%d zone replicas are sent, %d that the receiver has", replicas, again)
	}
}
