package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// TestUpgradeQuota replaces the members of a cluster one by one by those of another version, and back again, while three Envoys
// spend a limit without calls, each from its own member, and callers spend it, too, all together twice of what it allows. No
// window exceeds the limit and no request fails. Once all members have one version, they use as much of the limit as TestQuota requires.
func TestUpgradeQuota(t *testing.T) {
	before := otherVersion(t)
	l := newLab(t, lab.Options{Insecure: true, Rules: map[string]string{"app.yaml": quotaRules}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	now := l.Bin
	l.Bin = before
	f := newFleet(t, l, names(3)...)
	members := slices.Clone(f.live)
	u := startUpgradeLoad(t, f, members)
	for i, step := range []struct {
		name, bin string
		atLeast   float64 // of the limit, in percent, in the last two of four windows
	}{{"upgrade", now, 98}, {"downgrade", before, 70}, {"again", now, 98}} {
		l.Bin = step.bin
		for j, s := range members {
			begin := u.window()
			f.restart(s)
			f.agree()
			u.pass(1) // and the rest of the current one
			u.log(fmt.Sprintf("%s, %d of 3 replaced", step.name, j+1), begin, u.window()-1)
		}
		first := u.window() + 3 // streams, demands
		u.pass(5)
		if used := u.log(fmt.Sprintf("step %d, %s, is complete", i+1, step.name), first, first+1); used < step.atLeast {
			t.Errorf("%s: %.1f %% of the limit used when all members have one version, want at least %v %%", step.name, used, step.atLeast)
		}
	}
	u.finish()
	expectLogs(t, l)
}

// upgradeLoad spends the limit of quotaRules by three Envoys and by calls.
type upgradeLoad struct {
	t        *testing.T
	from     int64 // the first window
	cancel   context.CancelFunc
	running  sync.WaitGroup
	admitted windowCount
	called   windowCount
	loads    [3]quotaLoad
	calls    quotaLoad
}

// startUpgradeLoad starts Envoys of the members, and load, which ends with finish.
func startUpgradeLoad(t *testing.T, f *fleet, members []*lab.Sidecar) *upgradeLoad {
	t.Helper()
	u := &upgradeLoad{t: t}
	up := startUpstream(t)
	ctx, cancel := context.WithCancel(t.Context())
	u.cancel = cancel
	var envoys []*lab.Envoy
	for i, s := range members {
		envoys = append(envoys, rlqsEnvoy(t, f.l, fmt.Sprint("envoy-", i), s, up.addr, envoyBinary(t)))
	}
	u.from = u.window()
	for i, e := range envoys {
		u.loads[i].windows = []*windowCount{&u.admitted}
		u.running.Go(func() { u.loads[i].run(ctx, e.Listener, "hot", []int{200, 20, 20}[i]) })
	}
	u.calls.windows = []*windowCount{&u.admitted, &u.called}
	for range 3 {
		u.running.Go(func() { u.call(ctx, f) })
	}
	u.pass(3)
	return u
}

// call calls members that are ready, 20 times a second. A call that a member cannot answer is a failure.
func (u *upgradeLoad) call(ctx context.Context, f *fleet) {
	tick := time.NewTicker(time.Second / 20)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		d := f.pick()
		if d == nil {
			u.calls.failed.Add(1)
			continue
		}
		at := time.Now()
		r, err := d.client.ShouldRateLimit(context.WithoutCancel(ctx), request("app", 1, "api_key", "hot"))
		u.calls.sent.Add(1)
		switch {
		case err != nil:
			u.calls.failed.Add(1)
			u.t.Errorf("a call to %s at %s: %v", d.name, at.Format(time.TimeOnly), err)
		case r.OverallCode == rlsv3.RateLimitResponse_OK:
			u.calls.admitCall(at, time.Now())
		}
	}
}

// window returns the current window.
func (u *upgradeLoad) window() int64 { return time.Now().UnixNano() / int64(quotaWindow) }

// pass waits until the current window, and n more, have ended.
func (u *upgradeLoad) pass(n int64) {
	end := (u.window() + 1 + n) * int64(quotaWindow)
	time.Sleep(time.Until(time.Unix(0, end)))
}

// log logs what was used of the limit in the windows from first to last, which have ended, and returns it in percent.
func (u *upgradeLoad) log(what string, first, last int64) float64 {
	var each []string
	for w := first; w <= last; w++ {
		each = append(each, fmt.Sprintf("%d (%d calls)", u.admitted.certain(w, w), u.called.certain(w, w)))
	}
	used := 100 * float64(u.admitted.certain(first, last)) / float64((last-first+1)*quotaLimit)
	u.t.Logf("%s: windows %d to %d: %.1f %% used: %s of %d", what, first-u.from, last-u.from, used, strings.Join(each, ", "), quotaLimit)
	return used
}

// finish ends the load and checks the sums of all windows, and that no request has failed.
func (u *upgradeLoad) finish() {
	u.t.Helper()
	u.cancel()
	u.running.Wait()
	for first := u.from; first <= u.window(); first++ {
		for last := first; last <= u.window(); last++ {
			if n, most := u.admitted.certain(first, last), (last-first+1)*quotaLimit; n > most {
				u.t.Errorf("%d admitted in the windows %d to %d, which allow %d", n, first-u.from, last-u.from, most)
			}
		}
	}
	for i, x := range []*quotaLoad{&u.loads[0], &u.loads[1], &u.loads[2], &u.calls} {
		u.t.Logf("load %d: %d sent, %d admitted, %d failed", i, x.sent.Load(), x.admitted.Load(), x.failed.Load())
		if x.failed.Load() > 0 {
			u.t.Errorf("load %d: %d requests failed", i, x.failed.Load())
		}
	}
}

// expectedLogs are the warnings of a cluster without TLS on one machine, those about members that leave, and those of a machine with
// so much other load that heartbeats are late.
var expectedLogs = regexp.MustCompile(`msg="(--insecure is set|insecure:|no admin socket;|peer unreachable")|` +
	`msg=gossip |msg="ownership revoked; peers may take over"`)

// expectLogs checks that members have logged no errors, and no other warnings than those that are expected, and Envoys no errors.
func expectLogs(t *testing.T, l *lab.Lab) {
	t.Helper()
	faults := func(p *lab.Process, fault func(line string) bool) {
		log, err := os.ReadFile(p.Log)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(log)) {
			if fault(line) {
				t.Errorf("%s: %s", p.Name, line)
			}
		}
	}
	for _, s := range l.Sidecars {
		faults(s.Process, func(line string) bool {
			return strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") && !expectedLogs.MatchString(line)
		})
	}
	for _, e := range l.Envoys {
		faults(e.Process, func(line string) bool {
			return strings.Contains(line, "][error]") || strings.Contains(line, "][critical]")
		})
	}
}
