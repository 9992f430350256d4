package cluster

import (
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/keyward/keyward/internal/membership"
)

// Memberlist's Shutdown does not wait for probes in progress, which end in time. Everything else must have ended.
func TestMain(m *testing.M) {
	const list = "github.com/hashicorp/memberlist.(*Memberlist)."
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(list+"probeNode"),
		goleak.IgnoreTopFunction(list+"handleIndirectPing.func2"))
}

// fastTiming is a timing for clusters on loopback in which no member dies. On a busy machine, faster probes would
// consider live members dead.
func fastTiming() Timing {
	return Timing{
		Probe: 20 * time.Second, ProbeTimeout: 150 * time.Millisecond, Gossip: 20 * time.Millisecond,
		PushPull: 2 * time.Second, Stream: time.Second, JoinRetry: 200 * time.Millisecond, JoinIdle: 500 * time.Millisecond,
		JoinDelay: 20 * time.Millisecond, ColdStart: 20 * time.Second, Alone: 300 * time.Millisecond,
		NameConflict: 5 * time.Second, Tick: 20 * time.Millisecond,
	}
}

// withFastProbes makes deaths detected within a second or two. Sometimes a live member is considered dead.
func withFastProbes(o *Options) {
	o.Timing.Probe, o.Timing.ProbeTimeout = 200*time.Millisecond, 150*time.Millisecond
}

// withProbes makes deaths detected within some seconds. A live member may wait for the processor for up to four
// seconds.
func withProbes(o *Options) {
	o.Timing.Probe, o.Timing.ProbeTimeout = time.Second, 800*time.Millisecond
}

// options returns the options of a member on loopback that joins the others.
func options(name string, join ...string) Options {
	if len(join) == 0 {
		join = []string{"127.0.0.1:1"} // not a member
	}
	return Options{Node: name, Bind: "127.0.0.1:0", Insecure: true, Join: join, Cluster: "test", Timing: fastTiming()}
}

// up starts a member, which the test closes at its end.
func up(t *testing.T, o Options) *Cluster {
	t.Helper()
	if n, ok := virtualNetworks.Load(t); ok {
		o.openPort = n.(*virtualNetwork).open
	}
	c, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// three starts the members a, b and c, and waits until they are on one ring.
func three(t *testing.T, change func(*Options)) []*Cluster {
	t.Helper()
	var all []*Cluster
	for _, name := range []string{"a", "b", "c"} {
		o := options(name)
		if len(all) > 0 {
			o.Join = []string{all[0].Gossip()}
		} else {
			o.Node = "a-0" // may start a cluster at once
		}
		if change != nil {
			change(&o)
		}
		all = append(all, up(t, o))
	}
	eventually(t, "three on one ring", func() bool { return whole(all...) })
	return all
}

// whole reports whether all members are on one ring without others, and have received that of each other.
func whole(all ...*Cluster) bool {
	want := all[0].View().Ring.Fingerprint()
	for _, c := range all {
		v := c.View()
		if v.Ring.Len() != len(all) || v.Ring.Fingerprint() != want || v.DifferingRings() != 0 || !v.Joined {
			return false
		}
	}
	return true
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.NewTimer(90 * time.Second) // many deaths at once make memberlist slow on a busy machine
	defer end.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !ok() {
		select {
		case <-end.C:
			t.Fatalf("never: %s", what)
		case <-again.C:
		}
	}
}

// throughout checks that ok remains true until done.
func throughout(t *testing.T, what string, ok, done func() bool) {
	t.Helper()
	eventually(t, what+" to be over", func() bool {
		if !ok() {
			t.Fatalf("not %s", what)
		}
		return done()
	})
}

// rounds returns a function that reports whether c's join loop has run n more rounds.
func rounds(c *Cluster, n int) func() bool {
	first := c.table.snapshot().join.rounds
	return func() bool { return c.table.snapshot().join.rounds >= first+n }
}

// complete makes all of them announce that they hold all of their keys on their rings.
func complete(all ...*Cluster) {
	for _, c := range all {
		c.SetProgress(membership.Progress{CompleteRing: c.View().Ring.Fingerprint()})
	}
}

// allPrepared reports whether every member of v that is not leaving has announced that rules version as prepared or
// in force.
func allPrepared(v *membership.View, version uint64) bool {
	return !slices.ContainsFunc(v.Members, func(m membership.Member) bool {
		return m.Role == membership.RoleMember && m.State != membership.Leaving && m.Prepared != version &&
			m.InForce != version
	})
}
