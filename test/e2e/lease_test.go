package e2e

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// leaseRules are always leased.
const leaseRules = `domain: app
descriptors:
  - key: s5000
    rate_limit: {unit: second, requests_per_unit: 5000}
    metadata: {keyward: {mechanism: lease}}
  - key: h100000
    rate_limit: {unit: hour, requests_per_unit: 100000}
    metadata: {keyward: {mechanism: lease}}
  - key: sliding
    rate_limit: {unit: second, requests_per_unit: 5000}
    metadata: {keyward: {mechanism: lease, algorithm: sliding_window}}
  - key: d1000000
    rate_limit: {unit: day, requests_per_unit: 1000000}
    metadata: {keyward: {mechanism: lease, ttl: 500ms}}
`

// leased is how many requests members have decided by themselves.
func leased(f *fleet) float64 { return f.sum("keyward_decisions_total", "path", "lease") }

// TestLeasesThroughRestarts restarts all members, one after the other, while they hold leases of each other's keys. No
// window admits more than its limit; what leaves with a holder is missing until the window ends, and no more than that.
func TestLeasesThroughRestarts(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": leaseRules}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	f := newFleet(t, l, names(3)...)
	hours := equal("long", "h100000", 100_000, 50, 12)
	ld := startLoad(t, f, 1200, newAccount("s5000", "a", 5000, 20, time.Second), newAccount("s5000", "b", 5000, 20, time.Second))
	ld.begin(hours)
	steadily(2 * time.Second)
	for _, s := range slices.Clone(f.live) {
		before := leased(f)
		f.restart(s)
		if leased(f) == before {
			t.Error("nothing was decided from leases meanwhile")
		}
	}
	f.agree()
	if d := f.sum("keyward_degraded_total"); d > 0 {
		t.Logf("%v answers were degraded", d)
	}
	ld.finish()
	ld.audit(ld.accounts(), nothing, false)
	nearly(t, hours, 2*3) // in every restart two ends of each lease have gone
	if v := f.sum("keyward_lease_violations_total"); v > 0 {
		t.Errorf("%v breaches of the conditions were prevented: there should be none to prevent", v)
	}
}

// TestLeasesOfAKilledOwner kills the owner of leased keys. What it had lent is in its successor's memory before anybody has
// it, so no more is admitted than after any crash: the limit, what the successor did not know, and the shares given out.
func TestLeasesOfAKilledOwner(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": leaseRules}, Expect: 3})
	f := newFleet(t, l, names(3)...)
	ld := startLoad(t, f, 800)
	before := equal("before", "h100000", 100_000, 500, 20)
	ld.begin(before)
	steadily(3 * time.Second)
	if leased(f) == 0 {
		t.Error("nothing was decided from leases")
	}
	seen := observe(t, f.live)
	f.kill(f.live[1])
	killed := time.Now()
	steadily(fullAgain + 2*time.Second)
	report(t, "kill", killed, seen)
	f.agree()
	after := equal("after", "h100000", 100_000, 500, 20)
	ld.begin(after)
	ld.finish()
	seen.stop()
	t.Logf("phi, as the members tell it: %v", seen.phi())
	ld.audit(before, func(a *account) float64 { return a.unreplicated() + shares(seen, a, 2, 3) }, false)
	ld.audit(after, nothing, false)
	nearly(t, after, 1)
}

// nearly wants as much admitted as the limit but for what is lent, so many times.
func nearly(t testing.TB, accounts []*account, times uint64) {
	t.Helper()
	for _, a := range accounts {
		lent := a.limit / 20 * times
		if p := a.now(); p.admitted+p.maybeAdmitted+lent+uint64(a.hits) < a.limit {
			t.Errorf("%s: only %d of %d were admitted", a, p.admitted, a.limit)
		}
	}
}

// TestLeasesWithoutTheirOwner stops an owner for a while: holders first spend what they have, then answer by the rule's
// degraded policy; when it is back they lease again.
func TestLeasesWithoutTheirOwner(t *testing.T) {
	const limit = 1_000_000
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": leaseRules}, Expect: 5})
	f := newFleet(t, l, names(5)...)
	owner := f.live[0]
	a := newAccount("d1000000", ownedBy(t, l, names(5), "silent", owner.Name), limit, 1, 24*time.Hour)
	doors := (*f.doors.Load())[1:]
	var asked []stream
	for _, d := range doors {
		asked = append(asked, stream{a, 300, only(d)})
	}
	crowd := startCrowd(t, asked...)
	steadily(3 * time.Second)
	for _, s := range f.live[1:] {
		if ls := leases(t, s); len(ls.Keys) != 1 || ls.Keys[0].Left == 0 {
			t.Fatalf("%s holds %+v", s.Name, ls.Keys)
		}
	}
	before, degraded := leased(f), f.sum("keyward_degraded_total")
	if err := owner.Pause(); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	others := func(name string, labels ...string) (n float64) {
		for _, s := range f.live[1:] {
			n += value(metrics(t, s.Metrics), name, labels...)
		}
		return n
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	spent := 0.0
	err := lab.Await(ctx, "degraded answers", func(context.Context) error {
		if d := others("keyward_degraded_total"); d <= degraded {
			spent = others("keyward_decisions_total", "path", "lease")
			return fmt.Errorf("%v, as before", d)
		}
		return nil
	})
	t.Logf("%v requests were decided from leases after their owner fell silent, until the first had to be degraded %v later", spent-before, time.Since(stopped).Round(10*time.Millisecond))
	if err != nil {
		t.Error(err)
	}
	if spent <= before {
		t.Error("nothing was decided from leases after their owner fell silent")
	}
	if err := owner.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	f.agree()
	again := map[string]time.Duration{}
	if err := lab.Await(ctx, "leases", func(context.Context) error {
		for _, s := range f.live[1:] {
			ls := leases(t, s)
			if _, known := again[s.Name]; !known && len(ls.Keys) == 1 && ls.Keys[0].Left > 0 {
				again[s.Name] = time.Since(back).Round(10 * time.Millisecond)
			}
		}
		if len(again) < 4 {
			return fmt.Errorf("only %v hold one", again)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	t.Logf("after it was back they had leases again: %v", again)
	crowd.stop()
	if _, excess, _ := a.audit(nothing, false); excess > 0 {
		t.Errorf("%v admitted above the limit", excess)
	}
}
