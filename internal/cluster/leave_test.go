package cluster

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/membership"
)

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

// The last member of a ring waits for one that is joining, which takes over its counters.
func TestLastMemberWaitsForTheNext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := options("a-0")
		o.Handoff = true
		a := up(t, o)
		eventually(t, "a ring of one", func() bool { return whole(a) })
		complete(a)
		o = options("b", a.Gossip())
		o.Handoff = true
		b := up(t, o)
		eventually(t, "joining, without replicas", func() bool {
			m, ok := a.View().Find("b")
			return ok && m.State == membership.Joining && b.View().Joined
		})
		drained := func() bool {
			select {
			case <-a.Drained():
				return true
			default:
				return false
			}
		}
		a.Drain()
		throughout(t, "waiting for the next member", func() bool { return !drained() },
			func() bool { return whole(b) && a.View().Ring.Fingerprint() == b.View().Ring.Fingerprint() })
		throughout(t, "waiting until it has all counters", func() bool { return !drained() }, rounds(a, 2))
		a.SetProgress(membership.Progress{HandedOff: true})
		eventually(t, "drained", drained)
		a.Leave(t.Context())
		b.SetProgress(membership.Progress{CompleteRing: b.View().Ring.Fingerprint()})
		b.Drain()
		eventually(t, "drained without another member", func() bool {
			select {
			case <-b.Drained():
				return b.View().Ring.Len() == 0
			default:
				return false
			}
		})
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
