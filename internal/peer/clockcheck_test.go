package peer

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/owner"
)

// testClocks are clocks that a test can advance. A member whose clocks stop is one of which the test advances the
// others.
type testClocks struct {
	start time.Time
	ahead struct{ mono, wall, boot atomic.Int64 }
}

func newTestClocks() *testClocks { return &testClocks{start: time.Now()} }

// advance advances all clocks.
func (h *testClocks) advance(d time.Duration) {
	h.ahead.mono.Add(int64(d))
	h.ahead.wall.Add(int64(d))
	h.ahead.boot.Add(int64(d))
}

func (h *testClocks) read() reading {
	since, wall := int64(time.Since(h.start)), h.start.UnixNano()
	return reading{mono: since + h.ahead.mono.Load(), wall: wall + since + h.ahead.wall.Load(),
		boot: since + h.ahead.boot.Load() + 1}
}

func (h *testClocks) mono() int64 { return h.read().mono }

// newClockCluster returns a cluster of three. The first member has its own clocks, the other two share theirs.
func newClockCluster(t *testing.T) (m *member, ms []*member, own, others *testClocks) {
	own, others = newTestClocks(), newTestClocks()
	first := true
	ms = newCluster(t, 3, func(o *Options) {
		o.clocks = others
		if first {
			o.clocks = own
		}
		first = false
	})
	return ms[0], ms, own, others
}

func (m *member) revoked(reason string) float64 {
	return testutil.ToFloat64(m.m.revocations.WithLabelValues(reason))
}

// A member revokes its ownership before the next decision if its machine was suspended, whether or not its wall clock
// was corrected, or if its wall clock was set. It regains ownership when the others have confirmed it.
func TestRevokedBeforeTheNextDecision(t *testing.T) {
	for _, tt := range []struct {
		name       string
		boot, wall time.Duration
		reason     string
	}{
		{"suspended", 9 * time.Second, 9 * time.Second, revokedSuspend},
		{"suspended, and the wall clock is not corrected", 9 * time.Second, 0, revokedSuspend},
		{"suspended for 60 ms", 60 * time.Millisecond, 60 * time.Millisecond, revokedSuspend},
		{"set ahead", 0, 3 * time.Second, revokedStep},
		{"set back", 0, -3 * time.Second, revokedStep},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, ms, own, _ := newClockCluster(t)
			q := newRequest(ownedBy(ringOf(ids(ms)...), m.id, 1)[0], 100_000, 1)
			if a := m.decideOne(patience, q); a.Authority != owner.Full || a.Path == owner.Forwarded {
				t.Fatalf("%+v", a)
			}
			own.ahead.boot.Add(int64(tt.boot))
			own.ahead.wall.Add(int64(tt.wall))
			before := m.node.Progress()
			time.Sleep(2 * clockCheckEvery) // a decision may rely on a check of the clocks that is this old
			a := m.decideOne(time.Millisecond, q)
			if m.revoked(tt.reason) != 1 {
				t.Fatalf("ownership not revoked: %+v", a)
			}
			if after := m.node.Progress(); !before.Complete() || a.Authority == owner.Full && a.Before == 1 &&
				after.Complete() {
				t.Errorf("decided by the old ownership: %+v", a)
			}
			m.awaitComplete(t, ms)
			await(t, "full authority", func() bool { return m.decideOne(patience, q).Authority == owner.Full })
			if n := m.revoked(revokedStep) + m.revoked(revokedSuspend) + m.revoked(revokedPeers); n != 1 {
				t.Errorf("ownership revoked %v times", n)
			}
		})
	}
}

// Short suspensions add up.
func TestShortSuspensionsAddUp(t *testing.T) {
	m, _, own, _ := newClockCluster(t)
	for i := range 3 {
		if m.revoked(revokedSuspend) != 0 {
			t.Fatalf("ownership revoked after %d short suspensions", i)
		}
		own.ahead.boot.Add(int64(maxLostTime / 3))
		m.checkClocks()
	}
	own.ahead.boot.Add(int64(maxLostTime / 3))
	if m.checkClocks(); m.revoked(revokedSuspend) != 1 {
		t.Error("ownership not revoked")
	}
}

// If all clocks of a member stop, as when a virtual machine moves to another host, it revokes its ownership when
// heartbeats show that the other members' clocks have advanced. Their clocks agree, so they keep ownership.
func TestRevokedByThePeersClocks(t *testing.T) {
	m, ms, _, others := newClockCluster(t)
	await(t, "replies to heartbeats", func() bool { return len(m.ClockOffsets()) == 2 })
	others.advance(9 * time.Second)
	await(t, "ownership to be revoked", func() bool { return m.revoked(revokedPeers) == 1 })
	for _, o := range ms[1:] {
		if o.revoked(revokedPeers) != 0 {
			t.Errorf("%s has revoked its ownership, too", o.id)
		}
	}
	await(t, "the reason to be logged", func() bool { return m.logged("ownership revoked after a clock jump") })
}

// One member whose clock jumps does not make the others revoke their ownership.
func TestOneClockAffectsNoOtherMember(t *testing.T) {
	m, ms, own, _ := newClockCluster(t)
	for _, o := range ms[1:] {
		await(t, "replies to heartbeats", func() bool { return len(o.ClockOffsets()) == 2 })
	}
	own.advance(9 * time.Second)
	for _, o := range ms[1:] {
		await(t, "the others to hear of it", func() bool {
			return o.ClockOffsets()[m.id] > 8*time.Second ||
				o.revoked(revokedPeers) > 0
		})
	}
	for _, o := range ms {
		if n := o.revoked(revokedPeers) + o.revoked(revokedStep) + o.revoked(revokedSuspend); n != 0 {
			t.Errorf("%s has revoked its ownership %v times", o.id, n)
		}
	}
}

// The system's clocks do not diverge by themselves.
func TestSystemClocksAgree(t *testing.T) {
	m := newMember(t, "m0").alone()
	for range 100 {
		r := m.clock.read()
		if d := m.lostTime(r); d.Abs() > 10*time.Millisecond {
			t.Fatalf("lost %v", d)
		}
		time.Sleep(time.Millisecond)
	}
}
