package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
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

func TestStandalone(t *testing.T) {
	t.Parallel()
	var views []*membership.View
	reg := prometheus.NewPedanticRegistry()
	var log strings.Builder
	c, err := Start(Options{
		Node: "alone", Peer: "[::1]:7947", Registerer: reg, OnView: func(v *membership.View) { views = append(views, v) },
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	v := c.View()
	if !v.Standalone || !v.Joined || v.NRef != 1 || v.Ring.Len() != 1 || v.SelfMember().Peer != "[::1]:7947" ||
		v.SelfMember().State != membership.Active {
		t.Errorf("view %+v", v)
	}
	if len(views) != 1 || views[0] != v {
		t.Error("the first view should be published before Start returns")
	}
	c.SetRules(3, 4)
	eventually(t, "rules in the view",
		func() bool { return c.View().SelfMember().InForce == 3 && allPrepared(c.View(), 4) })
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
	if got := testutil.ToFloat64(c.metrics.standalone); got != 1 {
		t.Errorf("keyward_standalone %v", got)
	}
	c.Leave(context.Background())
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "standalone") {
		t.Errorf("want one warning:\n%s", log.String())
	}
	if v := c.View(); v.Ring.Len() != 1 && v.SelfMember().State != membership.Leaving {
		t.Errorf("after leaving: %+v", v)
	}
}

func TestMembersFindEachOther(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var mu sync.Mutex
		inside := 0
		all := three(t, func(o *Options) {
			o.RLS, o.Peer, o.Route, o.Page = o.Node+":1", o.Node+":2", o.Node+":3", o.Node+":4"
			o.PodUID, o.Weight, o.Expect = "uid-"+o.Node, 2, 3
			busy := false
			o.OnView = func(*membership.View) {
				mu.Lock()
				defer mu.Unlock()
				if busy {
					inside++
				}
				busy = true
				mu.Unlock()
				mu.Lock()
				busy = false
			}
		})
		for _, c := range all {
			v := c.View()
			for _, id := range []ring.ID{"a-0", "b", "c"} {
				m, ok := v.Find(id)
				if !ok || m.RLS != string(id)+":1" || m.Peer != string(id)+":2" || m.Route != string(id)+":3" || m.Page != string(id)+":4" ||
					m.Weight != 2 || m.Expect != 3 || m.State != membership.Active || m.Pod == 0 || m.BootID == 0 || m.Gossip == "" {
					t.Errorf("%s sees %s as %+v", v.Self, id, m)
				}
			}
			if v.NRef != 3 || v.Standalone {
				t.Errorf("%s: N_ref %d", v.Self, v.NRef)
			}
			if !strings.HasPrefix(v.SelfMember().Name, string(v.Self)+"/") {
				t.Errorf("memberlist name %q", v.SelfMember().Name)
			}
			if got := testutil.ToFloat64(c.metrics.ringMembers); got != 3 {
				t.Errorf("keyward_ring_members %v", got)
			}
		}
		if inside > 0 {
			t.Error("two OnView calls at a time")
		}
	})
}

// Announcements reach the live members, however many members have died.
func TestAnnouncementsReachLiveMembers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		rarely := func(o *Options) { // so that announcements arrive by gossip
			withFastProbes(o)
			o.Timing.PushPull, o.Timing.JoinIdle = time.Hour, time.Hour
		}
		all := three(t, rarely)
		var dying []*Cluster
		for i := range 8 {
			o := options(fmt.Sprintf("dying-%d", i), all[0].Gossip())
			rarely(&o)
			dying = append(dying, up(t, o))
		}
		eventually(t, "all on one ring", func() bool { return whole(append(slices.Clone(all), dying...)...) })
		for _, c := range dying {
			c.Close()
		}
		for _, c := range all {
			eventually(t, "the deaths to be seen", func() bool { return c.View().Ring.Len() == len(all) })
		}
		for i := range uint64(10) {
			all[0].SetRules(i+1, i+1)
			for _, c := range all[1:] {
				eventually(t, "the announcement",
					func() bool { m, _ := c.View().Find(all[0].View().SelfMember().ID); return m.InForce == i+1 })
			}
		}
	})
}

func TestRulesTravel(t *testing.T) {
	virtual(t, func(t *testing.T) {
		all := three(t, nil)
		for _, c := range all {
			if allPrepared(c.View(), 9) {
				t.Fatal("prepared before any announcement")
			}
			c.SetRules(1, 9)
		}
		for _, c := range all {
			eventually(t, "all prepared", func() bool { return allPrepared(c.View(), 9) })
		}
		all[0].SetRules(9, 9)
		for _, c := range all[1:] {
			eventually(t, "one ahead", func() bool {
				m, _ := c.View().Find(all[0].View().Self)
				return m.InForce == 9 && allPrepared(c.View(), 9)
			})
		}
		// After many changes in a row, the last one remains.
		for i := range uint64(200) {
			all[1].SetRules(i, i+1000)
		}
		for _, c := range all {
			eventually(t, "the last of many",
				func() bool { m, _ := c.View().Find("b"); return m.InForce == 199 && m.Prepared == 1199 })
		}
	})
}

func TestGracefulLeave(t *testing.T) {
	virtual(t, func(t *testing.T) {
		all := three(t, nil)
		all[2].Drain()
		for _, c := range all[:2] {
			eventually(t, "draining: off the ring, still known, N_ref less one", func() bool {
				v := c.View()
				m, ok := v.Find("c")
				return v.Ring.Len() == 2 && ok && m.State == membership.Leaving && v.NRef == 2
			})
		}
		eventually(t, "the leaver sees that all have removed it", func() bool {
			select {
			case <-all[2].drained:
				return true
			default:
				return false
			}
		})
		if v := all[2].View(); v.Ring.Len() != 2 || v.SelfMember().State != membership.Leaving {
			t.Errorf("the leaver's own view: ring of %d, %v", v.Ring.Len(), v.SelfMember().State)
		}
		all[2].Leave(t.Context())
		for _, c := range all[:2] {
			eventually(t, "gone", func() bool { return len(c.View().Members) == 2 && c.View().NRef == 2 })
			if got := testutil.ToFloat64(c.metrics.deaths); got != 0 {
				t.Errorf("a graceful leave counted as %v deaths", got)
			}
		}
		all[2].Leave(t.Context()) // a second call does nothing
		all[2].Close()
	})
}

func TestAllLeaveTogether(t *testing.T) {
	virtual(t, func(t *testing.T) {
		all := three(t, nil)
		var wg sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for _, c := range all {
			wg.Go(func() { c.Leave(ctx) })
		}
		wg.Wait()
		if ctx.Err() != nil {
			t.Error("they wait for each other")
		}
	})
}

func TestCrashAndRestart(t *testing.T) {
	virtual(t, func(t *testing.T) {
		all := three(t, withFastProbes)
		at := all[2].Gossip()
		all[2].Close()
		for _, c := range all[:2] {
			eventually(t, "dead, but counted as alive",
				func() bool { return c.View().Ring.Len() == 2 && c.View().NRef == 3 })
			if got := testutil.ToFloat64(c.metrics.deaths); got != 1 {
				t.Errorf("%v deaths", got)
			}
		}
		o := options("c", all[0].Gossip())
		withFastProbes(&o)
		o.Bind = at
		all[2] = up(t, o)
		eventually(t, "back", func() bool { return whole(all...) })

		// Restart once more, before the others notice: the newer boot takes precedence at once.
		old := all[2].View().SelfMember().BootID
		all[2].Close()
		all[2] = up(t, o)
		eventually(t, "the new boot on all rings", func() bool {
			m, ok := all[0].View().Find("c")
			return ok && m.BootID != old && whole(all...)
		})
		select {
		case err := <-all[2].Fatal():
			t.Errorf("considered its own former boot a conflict: %v", err)
		default:
		}
	})
}

func TestColdStartWaitsForExpect(t *testing.T) {
	virtual(t, func(t *testing.T) {
		expect := func(o Options) Options { o.Expect = 3; return o }
		a := up(t, expect(options("a")))
		b := up(t, expect(options("b", a.Gossip(), "127.0.0.1:1")))
		eventually(t, "two that have met",
			func() bool { return len(a.View().Members) == 2 && len(b.View().Members) == 2 })
		throughout(t, "off the ring", func() bool {
			v, w := a.View(), b.View()
			return !v.Joined && !w.Joined && v.Ring.Len() == 0 && w.Ring.Len() == 0 && v.NRef == 3 && w.NRef == 3
		}, rounds(a, 3))
		c := up(t, expect(options("c", a.Gossip(), "127.0.0.1:1")))
		eventually(t, "a cluster with the third", func() bool { return whole(a, b, c) })
	})
}

func TestAloneWithoutOtherAddresses(t *testing.T) {
	t.Parallel()
	probe := up(t, options("probe"))
	own := probe.Gossip() // with a free port
	probe.Close()
	z := newZone(t)
	o := options("a", "dns+itself.test"+own[strings.LastIndexByte(own, ':'):])
	o.Resolver, o.Bind = resolver(t, z), own
	c := up(t, o)
	if c.View().Joined {
		t.Error("joined before it has tried")
	}
	eventually(t, "a failed lookup", func() bool { return c.table.snapshot().join.rounds > 0 })
	z.set("itself.test", "127.0.0.1")
	eventually(t, "alone", func() bool { return c.View().Joined && c.View().Ring.Len() == 1 && c.View().NRef == 1 })
	if got := testutil.ToFloat64(c.metrics.joinFailures.WithLabelValues(failedLookup)); got < 1 {
		t.Error("the failed lookup is not counted")
	}
}

func TestObserverWatches(t *testing.T) {
	virtual(t, func(t *testing.T) {
		all := three(t, withProbes)
		o := options("xds", all[0].Gossip())
		withProbes(&o)
		o.Role = membership.RoleObserver
		x := up(t, o)
		eventually(t, "the observer sees the ring", func() bool {
			v := x.View()
			return v.Joined && v.Ring.Fingerprint() == all[0].View().Ring.Fingerprint() && v.NRef == 3 &&
				len(v.Members) == 4
		})
		eventually(t, "and is visible, but not counted", func() bool {
			v := all[1].View()
			return len(v.Members) == 4 && v.Ring.Len() == 3 && v.NRef == 3 && allPrepared(v, 0)
		})
		x.Close()
		eventually(t, "removed",
			func() bool { return len(all[1].View().Members) == 3 && all[1].View().NRef == 3 })
		if got := testutil.ToFloat64(all[1].metrics.deaths); got != 0 {
			t.Errorf("%v deaths", got)
		}
	})
}

func TestNameCollision(t *testing.T) {
	virtual(t, func(t *testing.T) {
		all := three(t, nil)
		before := all[1].View().Ring.Fingerprint()
		c := up(t, options("b", all[0].Gossip()))
		var err error
		eventually(t, "the newcomer gives up", func() bool {
			select {
			case err = <-c.Fatal():
				return true
			default:
				return false
			}
		})
		for _, want := range []string{`"b"`, c.Gossip(), all[1].Gossip()} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("no %s in %q", want, err)
			}
		}
		if v := c.View(); v.Problem == "" || v.SelfMember().Gossip != "" || v.Joined {
			t.Errorf("the newcomer's view: problem %q, me %+v", v.Problem, v.SelfMember())
		}
		for _, m := range all {
			if m.View().Ring.Fingerprint() != before || !whole(all...) {
				t.Errorf("%s moved to another ring", m.View().Self)
			}
			select {
			case err := <-m.Fatal():
				t.Errorf("%s, an older one, stops: %v", m.View().Self, err)
			default:
			}
		}
	})
}

func TestNameOfADeadMember(t *testing.T) {
	virtual(t, func(t *testing.T) {
		all := three(t, withFastProbes)
		all[1].Close() // the others have not noticed
		o := options("b", all[0].Gossip())
		withFastProbes(&o)
		c := up(t, o)
		all[1] = c
		eventually(t, "the name continues elsewhere", func() bool { return whole(all...) })
		select {
		case err := <-c.Fatal():
			t.Errorf("stopped because of a dead member: %v", err)
		default:
		}
	})
}

func TestAboveCapacity(t *testing.T) {
	virtual(t, func(t *testing.T) {
		all := three(t, func(o *Options) { o.Capacity = 4 })
		o := options("d", all[0].Gossip())
		o.Capacity = 4
		d := up(t, o)
		eventually(t, "a clear problem", func() bool { return strings.Contains(d.View().Problem, "ring is full") })
		if !whole(all...) || d.View().SelfMember().State != membership.Joining {
			t.Errorf("ring of %d, newcomer %v", all[0].View().Ring.Len(), d.View().SelfMember().State)
		}
		all[1].Leave(t.Context())
		all[1] = d
		eventually(t, "room for it", func() bool { return whole(all...) && d.View().Problem == "" })
	})
}

func TestIPv6(t *testing.T) {
	t.Parallel()
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6")
	} else if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	o := options("a-0")
	o.Bind = "[::1]:0"
	a := up(t, o)
	o = options("b", a.Gossip())
	o.Bind = "[::1]:0"
	b := up(t, o)
	eventually(t, "a cluster over IPv6", func() bool { return whole(a, b) })
	if m, _ := a.View().Find("b"); m.Gossip != b.Gossip() || !strings.HasPrefix(m.Gossip, "[::1]:") {
		t.Errorf("gossip at %q", m.Gossip)
	}
}

func TestEveryAddress(t *testing.T) {
	t.Parallel()
	o := options("a-0")
	o.Bind, o.Advertise = ":0", "localhost"
	a := up(t, o)
	host, _, err := net.SplitHostPort(a.Gossip())
	if err != nil || !net.ParseIP(host).IsLoopback() {
		t.Fatalf("advertises %q", a.Gossip())
	}
	b := up(t, options("b", a.Gossip()))
	eventually(t, "joined through the advertised address", func() bool { return whole(a, b) })
}

func TestJoinListContainsSelf(t *testing.T) {
	// One list for all members, as in a StatefulSet's template. Ports are chosen first, because each must be known to
	// all.
	var list []string
	var held []net.Listener
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, l)
		list = append(list, l.Addr().String())
	}
	for _, l := range held {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var all []*Cluster
	for i, at := range list {
		o := options(fmt.Sprint("n", i), list...)
		o.Bind = at
		all = append(all, up(t, o))
	}
	eventually(t, "all joined", func() bool { return whole(all...) })
	for _, c := range all {
		if len(c.table.snapshot().join.others) != 2 {
			t.Errorf("others: %v", c.table.snapshot().join.others)
		}
	}
}

func TestGossipKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys := func(name string, lines ...string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	k1, k2 := strings.Repeat("1", 32), strings.Repeat("2", 32)
	all := three(t, func(o *Options) {
		withProbes(o)
		o.Insecure, o.KeyFile = false, keys(o.Node, k1)
	})
	for name, o := range map[string]Options{
		"wrong key":   {KeyFile: keys("wrong", k2), Cluster: "test"},
		"no key":      {Insecure: true, Cluster: "test"},
		"wrong label": {KeyFile: keys("label", k1), Cluster: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			full := options("x", all[0].Gossip())
			full.KeyFile, full.Insecure, full.Cluster = o.KeyFile, o.Insecure, o.Cluster
			x := up(t, full)
			throughout(t, "rejected",
				func() bool { return whole(all...) && len(x.View().Members) == 1 && !x.View().Joined }, rounds(x, 3))
			if got := testutil.ToFloat64(x.metrics.joinFailures.WithLabelValues(failedJoin)); got < 1 {
				t.Error("the failed join is not counted")
			}
		})
	}
	// Change the key in three steps without losing a member.
	for _, step := range [][]string{{k1, k2}, {k2, k1}, {k2}} {
		for _, c := range all {
			keys(c.o.Node, step...)
		}
		for _, c := range all {
			throughout(t, "whole", func() bool { return whole(all...) }, func() bool {
				return string(c.gossip.keys.GetPrimaryKey()) == string(parseKey([]byte(step[0]))) &&
					len(c.gossip.keys.GetKeys()) == len(step)
			})
		}
	}
	late := options("late", all[1].Gossip())
	late.Insecure, late.KeyFile = false, keys("late", k2)
	eventually(t, "a member with the new key alone", func() func() bool {
		c := up(t, late)
		return func() bool { return whole(append([]*Cluster{c}, all...)...) }
	}())
}

// complete makes all of them announce that they hold all of their keys on their rings.
func complete(all ...*Cluster) {
	for _, c := range all {
		c.SetProgress(membership.Progress{CompleteRing: c.View().Ring.Fingerprint()})
	}
}

func TestPlannedChangesWaitForHandoff(t *testing.T) {
	virtual(t, func(t *testing.T) {
		all := three(t, func(o *Options) {
			o.Handoff, o.Timing.PrefetchTimeout, o.Timing.JoinTurn = true, 50*time.Millisecond, 50*time.Millisecond
		})
		o := options("d", all[0].Gossip())
		o.Handoff = true
		d := up(t, o)
		eventually(t, "joined, and not on the ring", func() bool {
			m, ok := all[1].View().Find("d")
			return d.View().Joined && ok && m.State == membership.Joining && !m.AwaitsTurn
		})
		d.SetProgress(membership.Progress{Prefetched: true})
		eventually(t, "waiting for its turn", func() bool { m, _ := all[1].View().Find("d"); return m.AwaitsTurn })
		throughout(t, "waiting for the others to complete their ring",
			func() bool { return d.View().SelfMember().State == membership.Joining }, rounds(d, 2))
		complete(all...)
		all = append(all, d)
		eventually(t, "its turn", func() bool { return whole(all...) })
		if n := all[0].View().IncompleteMembers(); n != 4 {
			t.Errorf("%d members are not complete, want all 4", n)
		}
		complete(all...)
		eventually(t, "the others see it",
			func() bool { return all[0].View().IncompleteMembers() == 0 && d.View().IncompleteMembers() == 0 })

		d.Drain()
		eventually(t, "removed from the rings",
			func() bool { return whole(all[:3]...) && d.View().DifferingRings() == 0 && d.View().Ring.Len() == 3 })
		select {
		case <-d.Drained():
			t.Fatal("drained with counters that no other member has")
		default:
		}
		d.SetProgress(membership.Progress{HandedOff: true})
		eventually(t, "drained", func() bool {
			select {
			case <-d.Drained():
				return true
			default:
				return false
			}
		})
		d.Leave(t.Context())
		for _, c := range all[:3] {
			eventually(t, "recorded as left after a handoff",
				func() bool { return len(c.View().Left) == 1 && c.View().Left[0] == "d" })
		}
		all[2].Drain()
		eventually(t, "leaving", func() bool { return all[2].View().SelfMember().State == membership.Leaving })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		all[2].Leave(ctx) // with its counters
		eventually(t, "gone, as if it had crashed", func() bool { return len(all[0].View().Members) == 2 })
		if left := all[0].View().Left; len(left) != 1 {
			t.Errorf("left: %v", left)
		}
	})
}

// allPrepared reports whether every member of v that is not leaving has announced that rules version as prepared or
// in force.
func allPrepared(v *membership.View, version uint64) bool {
	return !slices.ContainsFunc(v.Members, func(m membership.Member) bool {
		return m.Role == membership.RoleMember && m.State != membership.Leaving && m.Prepared != version &&
			m.InForce != version
	})
}
