package cluster

import (
	"fmt"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

var epoch = time.Unix(1750000000, 0)

// testbed is a machine under test with the cluster that it observes.
type testbed struct {
	*machine
	observation
	now time.Time
}

func newBed(expect int) *testbed {
	b := &testbed{now: epoch, machine: &machine{capacity: 1024, expect: expect, start: epoch, nref: nRefMemory{decay: time.Minute}, left: map[ring.ID]time.Time{}}}
	b.timing.setDefaults()
	b.self = boot("me-1", 1)
	b.departed = map[uint64]departure{}
	return b
}

// boot returns a joining member.
func boot(id ring.ID, inst uint64) membership.Member {
	return membership.Member{
		ID: id, BootID: inst, Incarnation: 1, Weight: 1, StartedAt: int64(inst), Gossip: fmt.Sprintf("10.0.0.%d:7946", inst),
		ProtocolMin: 1, ProtocolMax: 2,
	}
}

// look steps once after d, and applies the outcome to self as Cluster does.
func (b *testbed) look(d time.Duration) outcome {
	b.now = b.now.Add(d)
	o := b.step(b.now, b.observation)
	b.self = o.self
	b.departed = map[uint64]departure{}
	return o
}

// fill adds n active members.
func (b *testbed) fill(n int) {
	for i := range n {
		m := boot(ring.ID(fmt.Sprintf("other-%d", i)), uint64(i+10))
		m.State = membership.Active
		b.others = append(b.others, m)
	}
	b.join = joinStatus{rounds: 1, listed: n + 1}
	for _, m := range b.others {
		b.join.others = append(b.join.others, m.Gossip)
	}
}

func (b *testbed) agree() {
	for i := range b.others {
		b.others[i].Ring = b.ring.Fingerprint()
	}
}

func (b *testbed) lose(i int, graceful bool) {
	m := b.others[i]
	b.others = slices.Delete(slices.Clone(b.others), i, i+1)
	b.departed[m.BootID] = departure{id: m.ID, gossip: m.Gossip, graceful: graceful, handedOff: graceful}
}
