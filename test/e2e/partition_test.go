package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// cutCase is a way to cut five members in two.
type cutCase struct {
	policy string // --partition
	deaf   int    // members at the end of the list that are cut off
	oneWay bool   // they do not hear the others, who still hear them
	extra  func(limit float64) float64
}

// A part of the cluster that reaches all but f of the members of reference still gives out whole limits, f being 1.
func tolerated(limit float64) float64 { return limit / 5 }

func noExtra(float64) float64 { return 0 }

// The tests below cut a cluster in two under load, both parts asked, and heal it: of no limit more is admitted than the
// policy's bound, and soon after the heal there is one ring and every limit is exact again.

func TestPartitionThreeAndTwo(t *testing.T) {
	cutCase{policy: "share", deaf: 2, extra: tolerated}.run(t)
}

func TestPartitionFourAndOne(t *testing.T) {
	cutCase{policy: "share", deaf: 1, extra: tolerated}.run(t)
}

func TestPartitionOneWay(t *testing.T) {
	cutCase{policy: "share", deaf: 1, oneWay: true, extra: tolerated}.run(t)
}

func TestPartitionQuorum(t *testing.T) {
	cutCase{policy: "quorum", deaf: 2, extra: noExtra}.run(t)
}

func TestPartitionAvailable(t *testing.T) {
	cutCase{policy: "available", deaf: 2, extra: func(limit float64) float64 { return limit }}.run(t) // (m-1) L
}

// needsNamespaces skips the test where it cannot make network namespaces.
func needsNamespaces(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	for _, tool := range []string{"ip", "iptables"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
}

// newNetwork returns a network for the members of l, which end before it does.
func newNetwork(t *testing.T, l *lab.Lab) *lab.Network {
	t.Helper()
	network, err := lab.NewNetwork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // cleanups run last to first: the members must have ended
		if err := l.StopTogether(); err != nil {
			t.Error(err)
		}
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	return network
}

func (c cutCase) run(t *testing.T) {
	needsNamespaces(t)
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": handoffRules}, Expect: 5, Args: []string{"--partition", c.policy}})
	network := newNetwork(t, l)
	members := names(5)
	f := networkFleet(t, l, network, members)
	ld := startLoad(t, f, 400)
	before := equal("before", "h100", 100, 1, 24)
	ld.begin(before)
	steadily(2 * time.Second) // about a third of each limit is spent
	seen := observe(t, f.live)
	c.cut(t, network, members)
	during := equal("during", "h100", 100, 1, 24)
	ld.begin(during)
	steadily(10 * time.Second)
	if err := network.Heal(); err != nil {
		t.Fatal(err)
	}
	healed := time.Now()
	f.agree()
	took := time.Since(healed)
	t.Logf("one ring %s after the heal", took.Round(10*time.Millisecond))
	if took > oneRing {
		t.Errorf("one ring only %s after the heal", took)
	}
	steadily(4 * time.Second)
	report(t, "heal", healed, seen)
	bound := func(a *account) float64 { return a.unreplicated() + shares(seen, a, 5, 5) + c.extra(float64(a.limit)) }
	recovered(t, ld, seen, append(before, during...), bound)
	agreedCounts(t, f, during)
}

func (c cutCase) cut(t *testing.T, network *lab.Network, members []string) {
	t.Helper()
	far, near := members[5-c.deaf:], members[:5-c.deaf]
	var err error
	if c.oneWay {
		err = network.Deafen(far, near)
	} else {
		err = network.Cut(far, near)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// networkFleet starts members in namespaces of their own.
func networkFleet(t *testing.T, l *lab.Lab, network *lab.Network, members []string) *fleet {
	t.Helper()
	f := &fleet{t: t, l: l}
	f.doors.Store(&[]*door{})
	for _, n := range members {
		s, err := l.AddSidecarOn(network, n)
		if err != nil {
			t.Fatal(err)
		}
		f.live = append(f.live, s)
	}
	awaitRing(t, l, members...)
	for _, s := range f.live {
		f.admit(s)
	}
	return f
}

// agreedCounts wants every member to give the same count for a key.
func agreedCounts(t *testing.T, f *fleet, accounts []*account) {
	t.Helper()
	for _, a := range accounts[:5] {
		counts := map[string][]string{}
		for _, s := range f.live {
			c, err := lab.CounterOf(t.Context(), s.Metrics, "app", a.rule, a.value)
			if err != nil {
				t.Error(err)
				return
			}
			c.Reset, c.Lent = 0, nil // they depend on the time and on who answers
			text := fmt.Sprintf("%+v", c)
			counts[text] = append(counts[text], s.Name)
		}
		if len(counts) != 1 {
			t.Errorf("%s: the members do not agree: %v", a, counts)
		}
	}
}
