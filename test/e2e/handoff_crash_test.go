package e2e

import (
	"context"
	"fmt"
	"math"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

const (
	fullAgain = 6 * time.Second  // from a crash until every decision has full authority again
	oneRing   = 12 * time.Second // from the end of a cut or a pause until all are on one ring
)

// observer reads the members' metrics all the time: the bound that each reports, what it admitted by its share alone, and
// when it last decided with less than full authority.
type observer struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	members map[string]*observed // by metrics address; guarded by mu
	notFull time.Time            // guarded by mu
}

// observed is one boot of a member.
type observed struct {
	bound  float64 // the most it has reported
	share  float64 // hits admitted by its share
	partly float64 // decisions that were not made with full authority
}

// observe reads every 100 ms until it is stopped.
func observe(t testing.TB, members []*lab.Sidecar) *observer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	o := &observer{cancel: cancel, members: map[string]*observed{}}
	for _, s := range members {
		o.done.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				o.read(ctx, s.Metrics)
				<-tick.C
			}
		})
	}
	t.Cleanup(o.stop)
	return o
}

func (o *observer) stop() {
	o.cancel()
	o.done.Wait()
}

// read reads one member; one that does not answer has nothing to tell.
func (o *observer) read(ctx context.Context, page string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	fam, err := scrape(ctx, page, "keyward_authority_total", "keyward_overadmission_bound", "keyward_degraded_admitted_hits_total")
	if err != nil {
		return
	}
	partly := value(fam, "keyward_authority_total", "authority", "part") + value(fam, "keyward_authority_total", "authority", "share")
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.members[page]
	if m == nil {
		m = &observed{partly: partly}
		o.members[page] = m
	}
	if partly > m.partly {
		o.notFull = time.Now()
	}
	m.partly = partly
	m.bound = max(m.bound, value(fam, "keyward_overadmission_bound"))
	m.share = max(m.share, value(fam, "keyward_degraded_admitted_hits_total", "authority", "share"))
}

// phi is the most that was admitted by shares without the owners' knowledge, as the members tell it: the sum of their
// bounds, and never more than all that they admitted so.
func (o *observer) phi() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	bound, share := 0.0, 0.0
	for _, m := range o.members {
		bound += m.bound
		share += m.share
	}
	return min(bound, share)
}

// lastNotFull is when a decision was last made with less than full authority; zero when none was.
func (o *observer) lastNotFull() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.notFull
}

// equal is n keys of one limit: the bounds that members tell are of their largest keys.
func equal(prefix, rule string, limit uint64, hits uint32, n int) []*account {
	all := make([]*account, n)
	for i := range all {
		all[i] = newAccount(rule, fmt.Sprintf("%s-%d", prefix, i), limit, hits, time.Hour)
	}
	return all
}

// faultCases are limits that a fault is tried with; each has a cluster of its own.
var faultCases = []struct {
	rule  string
	limit uint64
	hits  uint32
	keys  int
}{
	{"h100", 100, 1, 36},
	{"h100000", 100_000, 500, 18},
}

// steadily lets the load run for a while, in which something is to be seen.
func steadily(d time.Duration) { <-time.After(d) }

// TestHandoffKilled kills an owner under load: of each limit no more is admitted than the limit, what the owner had not
// replicated, and what the others admitted by their shares; and all decisions have full authority again in time.
func TestHandoffKilled(t *testing.T) {
	for _, c := range faultCases {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": handoffRules}, Expect: 3})
			f := newFleet(t, l, names(3)...)
			ld := startLoad(t, f, 600)
			before := equal("before", c.rule, c.limit, c.hits, c.keys)
			ld.begin(before)
			ld.spent(before, 0.85) // more than a crash may add: if the successor knew nothing, it would be seen
			seen := observe(t, f.live)
			victim := f.live[1]
			f.kill(victim)
			killed := time.Now()
			steadily(fullAgain + 2*time.Second)
			report(t, "kill", killed, seen)
			f.agree()
			f.revive(victim)
			f.admit(victim)
			f.agree()
			recovered(t, ld, seen, before, func(a *account) float64 { return a.unreplicated() + shares(seen, a, 2, 3) })
		})
	}
}

// report logs how long decisions lacked full authority and wants it to have ended in time.
func report(t testing.TB, what string, began time.Time, seen *observer) {
	t.Helper()
	took := seen.lastNotFull().Sub(began).Round(10 * time.Millisecond)
	t.Logf("the last decision without full authority was made %[2]v after the %[1]s", what, max(0, took))
	if took > fullAgain+200*time.Millisecond { // metrics are read ten times a second
		t.Errorf("full authority was back only after %s, later than %s", took, fullAgain)
	}
}

// recovered ends the load: keys that lived through the fault are within the bound, new ones exact.
func recovered(t testing.TB, ld *load, seen *observer, before []*account, b bound) {
	t.Helper()
	after := equal("after", before[0].rule, before[0].limit, before[0].hits, 12)
	ld.begin(after)
	ld.finish()
	seen.stop()
	t.Logf("phi, as the members tell it: %v", seen.phi())
	ld.audit(before, b, false)
	ld.audit(after, nothing, true)
}

// shares is Phi: what the members tell, and never more than the shares of those that answered for an owner.
func shares(seen *observer, a *account, answering, all float64) float64 {
	return math.Min(seen.phi(), answering*(float64(a.limit)/all+1))
}

// TestHandoffPaused stops an owner for five seconds and lets it go on, while it and the others are asked: it must not
// go on as if nothing had happened.
func TestHandoffPaused(t *testing.T) {
	for _, c := range faultCases {
		t.Run(c.rule, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": handoffRules}, Expect: 3})
			f := newFleet(t, l, names(3)...)
			ld := startLoad(t, f, 400)
			before := equal("before", c.rule, c.limit, c.hits, c.keys)
			ld.begin(before)
			steadily(3 * time.Second)
			seen := observe(t, f.live)
			victim := f.live[1]
			d := f.door(victim.Name)
			d.shaky.Store(true)
			f.withdraw(victim.Name)
			const pesterers = 4 // their requests lie in the stopped process's sockets
			stopPestering := pester(t, ld, d, before, pesterers)
			if err := victim.Pause(); err != nil {
				t.Fatal(err)
			}
			steadily(5 * time.Second)
			if err := victim.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			resumed := time.Now()
			f.agree()
			rejoined := time.Since(resumed)
			steadily(2 * time.Second)
			stopPestering()
			t.Logf("one ring %s after the end of the pause", rejoined.Round(10*time.Millisecond))
			if rejoined > oneRing {
				t.Errorf("one ring only after %s", rejoined)
			}
			report(t, "end of the pause", resumed, seen)
			f.admit(victim)
			recovered(t, ld, seen, before, func(a *account) float64 {
				return a.unreplicated() + shares(seen, a, 3, 3) + pesterers*float64(a.hits)
			})
		})
	}
}

// pester asks one member alone, also while it does not answer.
func pester(t testing.TB, ld *load, d *door, accounts []*account, workers int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	for i := range workers {
		done.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for n := i; ctx.Err() == nil; n++ {
				<-tick.C
				if a := accounts[n%len(accounts)]; !a.ending(time.Now()) {
					ld.ask(d, a)
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		done.Wait()
	})
	t.Cleanup(stop)
	return stop
}
