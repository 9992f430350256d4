package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

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

// A member that is leaving may still want to announce something when memberlist has forgotten it already.
func TestNothingIsAnnouncedAfterLeave(t *testing.T) {
	o := options("a")
	o.Timing.Probe = 10 * time.Millisecond
	shortStart(&o)
	a := up(t, o)
	eventually(t, "one", func() bool { return whole(a) })
	if err := a.gossip.leave(time.Second); err != nil {
		t.Fatal(err)
	}
	eventually(t, "memberlist to forget this member", func() (forgotten bool) {
		defer func() { forgotten = recover() != nil }()
		return a.gossip.list.UpdateNode(time.Nanosecond) == nil && false
	})
	a.gossip.announce(time.Nanosecond)
}
