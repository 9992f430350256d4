package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// handoffRounds is how often the members are rolled over: KEYWARD_ROUNDS, which `make deep` sets, or twice.
func handoffRounds(t testing.TB) int {
	t.Helper()
	text := os.Getenv("KEYWARD_ROUNDS")
	if text == "" {
		return 2
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("KEYWARD_ROUNDS=%q is no number of rounds", text)
	}
	return n
}

// TestHandoffRolling restarts every member, one after the other, and scales from three to five and back, under load from
// clients that ask any member: each window admits exactly its limit, no client sees an error, no count ever falls and no
// charge is lost.
func TestHandoffRolling(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": handoffRules}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	f := newFleet(t, l, names(3)...)
	ld := startLoad(t, f, 700, shortWindows()...)
	ld.begin(batch("first"))
	stopWatching := watchCounts(t, ld)
	for round := range handoffRounds(t) {
		began := time.Now()
		change := func(what string, do func()) {
			begin := time.Now()
			ld.begin(batch(fmt.Sprintf("%d-%s", round, what)))
			do()
			t.Logf("round %d: %s in %s", round+1, what, time.Since(begin).Round(100*time.Millisecond))
		}
		for _, s := range slices.Clone(f.live) {
			change("restart-"+s.Name, func() { f.restart(s) })
		}
		for _, n := range []string{"pod-x", "pod-y"} {
			change("add-"+n+strconv.Itoa(round), func() { f.add(n + strconv.Itoa(round)) })
		}
		f.agree()
		for _, s := range slices.Clone(f.live[:2]) { // the oldest: those that hold most
			change("remove-"+s.Name, func() { f.retire(s) })
		}
		f.agree()
		t.Logf("round %d took %s; authorities: full %v, part %v, share %v", round+1, time.Since(began).Round(time.Second),
			f.sum("keyward_authority_total", "authority", "full"), f.sum("keyward_authority_total", "authority", "part"), f.sum("keyward_authority_total", "authority", "share"))
		if t.Failed() {
			break
		}
	}
	stopWatching()
	ld.finish()
	ld.audit(ld.accounts(), nothing, true)
	ld.conserved()
}

// watchCounts asks for counts all the time, any member, and wants none to fall within a window.
func watchCounts(t testing.TB, ld *load) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	reads, falls := 0, 0
	done.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		type seen struct {
			window int64
			count  uint64
			owner  string
		}
		last := map[*account]seen{}
		for ctx.Err() == nil {
			<-tick.C
			a, d := ld.choose(), ld.f.pick()
			if a == nil || d == nil || a.window < time.Minute {
				continue
			}
			w := a.number(time.Now())
			c, err := lab.CounterOf(ctx, d.page, "app", a.rule, a.value)
			if err != nil {
				if ctx.Err() == nil && stillAsked(ld.f, d) {
					t.Errorf("count of %s at %s: %v", a, d.name, err)
					return
				}
				continue
			}
			if a.number(time.Now()) != w {
				continue
			}
			reads++
			if l := last[a]; l.window == w && c.Count < l.count {
				if falls++; falls <= 5 {
					t.Errorf("%s: count of %s fell from %d (owner %s) to %d (asked %s, owner %s, authority %s)", time.Now().UTC().Format(time.StampMilli), a, l.count, l.owner, c.Count, d.name, c.Owner, c.Authority)
					for _, d := range *ld.f.doors.Load() {
						c, err := lab.CounterOf(ctx, d.page, "app", a.rule, a.value)
						t.Logf("%s: %s now says %d (owner %s, authority %s) %v", time.Now().UTC().Format(time.StampMilli), d.name, c.Count, c.Owner, c.Authority, err)
					}
				}
			}
			last[a] = seen{w, c.Count, c.Owner}
		}
	})
	stopped := sync.OnceFunc(func() {
		cancel()
		done.Wait()
		t.Logf("%d counts read, %d fell", reads, falls)
	})
	t.Cleanup(stopped)
	return stopped
}

func stillAsked(f *fleet, d *door) bool { return slices.Contains(*f.doors.Load(), d) }

// TestFourThenTen spends four of ten, replaces every member one by one, and has six left and no more.
func TestFourThenTen(t *testing.T) {
	styles := map[string]func(f *fleet, s *lab.Sidecar){
		"StatefulSet": func(f *fleet, s *lab.Sidecar) { f.restart(s) },
		"Deployment":  func(f *fleet, s *lab.Sidecar) { f.replace(s, "new-"+s.Name) },
		"one surge less": func(f *fleet, s *lab.Sidecar) { // maxUnavailable: the old one goes before the new one is there
			f.retire(s)
			f.add("later-" + s.Name)
		},
	}
	for name, next := range styles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": handoffRules}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
			f := newFleet(t, l, names(3)...)
			accounts := make([]*account, 60)
			rule := "h10"
			if time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)) < 3*time.Minute {
				rule = "y10" // the hour would end meanwhile
			}
			for i := range accounts {
				accounts[i] = newAccount(rule, fmt.Sprintf("user-%d", i), 10, 1, time.Hour)
			}
			if n := spend(t, f, accounts, 4); n != [2]int{4, 4} {
				t.Fatalf("at first between %d and %d of 4 were admitted", n[0], n[1])
			}
			for _, s := range slices.Clone(f.live) {
				next(f, s)
			}
			f.agree()
			n := spend(t, f, accounts, 12)
			if n != [2]int{6, 6} {
				t.Errorf("after all members were replaced, between %d and %d of 12 were admitted: 4 of 10 were spent before", n[0], n[1])
			}
		})
	}
}

// spend asks n times about each key, any member, and returns the least and the most that one was admitted.
func spend(t testing.TB, f *fleet, accounts []*account, n int) (span [2]int) {
	t.Helper()
	span[0] = n
	for _, a := range accounts {
		ok := 0
		for range n {
			if ask(t, f.pick().client, a.request()).OverallCode == rlsv3.RateLimitResponse_OK {
				ok++
			}
		}
		span[0], span[1] = min(span[0], ok), max(span[1], ok)
	}
	return span
}
