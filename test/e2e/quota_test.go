package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

const (
	quotaLimit  = 1500
	quotaWindow = 10 * time.Second
	// aheadMargin is the time before the end of a window in which calls count in the next one, if that has charges.
	aheadMargin = 250 * time.Millisecond
)

const quotaRules = `domain: app
descriptors:
- key: api_key
  rate_limit: {unit: second, requests_per_unit: 1500}
  metadata: {keyward: {mechanism: quota, window: 10s, degraded: fail_closed}}
`

// rlqsEnvoy starts an Envoy that spends limits which the sidecar assigns.
func rlqsEnvoy(t *testing.T, l *lab.Lab, name string, s *lab.Sidecar, upstream, path string) *lab.Envoy {
	t.Helper()
	config := printed(t, l, "--shape", "rlqs", "--sidecar", s.RLS, "--upstream", upstream)
	e, err := l.AddEnvoy(lab.EnvoyOptions{Name: name, Path: path, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	awaitReady(t, e)
	return e
}

// quotaCluster starts three members, and for each one an Envoy that spends what it assigns of quotaRules.
func quotaCluster(t *testing.T) (l *lab.Lab, envoys []*lab.Envoy) {
	t.Helper()
	l = newLab(t, lab.Options{Insecure: true, Rules: map[string]string{"app.yaml": quotaRules}})
	start(t, l, names(3)...)
	up := startUpstream(t)
	for i, s := range l.Sidecars {
		envoys = append(envoys, rlqsEnvoy(t, l, fmt.Sprint("envoy-", i), s, up.addr, envoyBinary(t)))
	}
	return l, envoys
}

// windowCount counts what was admitted by window. A request was admitted between when it was sent and when it was answered,
// so it is not certain in which window one was that was sent in one and answered in the next.
type windowCount struct {
	mu     sync.Mutex
	within map[int64]int64 // sent and answered in the window
	across map[int64]int64 // sent in the window, answered in the next one
}

func (c *windowCount) admit(sent, answered time.Time) {
	w, after := sent.UnixNano()/int64(quotaWindow), answered.UnixNano()/int64(quotaWindow)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.within == nil {
		c.within, c.across = map[int64]int64{}, map[int64]int64{}
	}
	switch after {
	case w:
		c.within[w]++
	case w + 1:
		c.across[w]++
	}
}

// certain returns how many requests were certainly admitted in the windows from first to last.
func (c *windowCount) certain(first, last int64) (n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := first; w <= last; w++ {
		if n += c.within[w]; w < last {
			n += c.across[w]
		}
	}
	return n
}

// withinLimit requires that no more was admitted in each number of windows from first to end than their limits.
func (c *windowCount) withinLimit(t *testing.T, first, end int64) {
	t.Helper()
	for w := first; w < end; w++ {
		for last := w; last < end; last++ {
			if n, most := c.certain(w, last), (last-w+1)*quotaLimit; n > most {
				t.Errorf("%d admitted in the windows %d to %d, which allow %d", n, w-first, last-first, most)
			}
		}
	}
}

// beforeWindow returns a time that far before the begin of a window, at least 3 s from now.
func beforeWindow(d time.Duration) time.Time {
	begin := time.Now().Truncate(quotaWindow).Add(quotaWindow - d)
	if time.Until(begin) < 3*time.Second {
		begin = begin.Add(quotaWindow)
	}
	return begin
}

// quotaLoad sends requests for one key at a steady rate until the context ends. It returns how many were sent and admitted, and
// fails the test if one has another answer than 200 or 429.
type quotaLoad struct {
	sent, admitted, failed atomic.Int64
	windows                []*windowCount
}

// admit counts an admitted request.
func (x *quotaLoad) admit(sent, answered time.Time) {
	x.admitted.Add(1)
	for _, w := range x.windows {
		w.admit(sent, answered)
	}
}

// admitCall counts an admitted call. In the last aheadMargin of a window it counts in the next one.
func (x *quotaLoad) admitCall(sent, answered time.Time) { x.admit(sent, answered.Add(aheadMargin)) }

func (x *quotaLoad) run(ctx context.Context, envoy, key string, perSecond int) {
	sendSteadily(ctx, envoy, key, perSecond, 4, func(sent, answered time.Time, status int) {
		x.sent.Add(1)
		switch status {
		case 200:
			x.admit(sent, answered)
		case 429:
		default:
			x.failed.Add(1)
		}
	})
}

// sendSteadily sends requests for a key to an Envoy, perSecond of them with that many workers, until ctx ends. It calls
// answered with each answer, concurrently. After a pause of this process or of the Envoy it does not send more: a burst
// would be another load.
func sendSteadily(ctx context.Context, envoy, key string, perSecond, workers int, answered func(sent, at time.Time, status int)) {
	client := &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 2 * workers}}
	defer client.CloseIdleConnections()
	period := time.Second * time.Duration(workers) / time.Duration(perSecond)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			next := time.Now().Add(period * time.Duration(i) / time.Duration(workers))
			for ctx.Err() == nil {
				time.Sleep(time.Until(next))
				if next = next.Add(period); time.Since(next) > 10*period {
					next = time.Now()
				}
				sent := time.Now()
				status := send(client, envoy, key).status
				answered(sent, time.Now(), status)
			}
		})
	}
	wg.Wait()
}

// TestQuota has three Envoys with unequal load spend one limit without calls, and callers of the rate limit service spend
// it, too. All of them together are admitted at most the limit in each window and in each number of windows, and 98 % of it
// once the members know the demands.
func TestQuota(t *testing.T) {
	l, envoys := quotaCluster(t)
	const windows, learning = 4, 2 // until demands are known, each member has the same part
	const callsPerSecond = 60      // a fifth of all requests
	begin := beforeWindow(2 * time.Second)
	time.Sleep(time.Until(begin))
	ctx, cancel := context.WithDeadline(t.Context(), begin.Add(2*time.Second+windows*quotaWindow))
	defer cancel()
	var admitted, inCalls windowCount
	loads, calls := make([]quotaLoad, 3), quotaLoad{windows: []*windowCount{&admitted, &inCalls}}
	for i := range loads {
		loads[i].windows = []*windowCount{&admitted}
	}
	var wg sync.WaitGroup
	for i, e := range envoys {
		wg.Go(func() { loads[i].run(ctx, e.Listener, "hot", []int{200, 20, 20}[i]) })
	}
	wg.Go(func() { // a caller of the rate limit service
		c := dial(t, l.Sidecars[1].RLS, nil)
		for ctx.Err() == nil {
			time.Sleep(time.Second / callsPerSecond)
			calls.sent.Add(1)
			at := time.Now()
			if r, err := c.ShouldRateLimit(ctx, request("app", 1, "api_key", "hot")); err == nil && r.OverallCode == rlsv3.RateLimitResponse_OK {
				calls.admitCall(at, time.Now())
			}
		}
	})
	wg.Wait()
	total, sent := calls.admitted.Load(), calls.sent.Load()
	for i := range loads {
		x := &loads[i]
		t.Logf("envoy %d: %d sent, %d admitted, %d failed", i, x.sent.Load(), x.admitted.Load(), x.failed.Load())
		total, sent = total+x.admitted.Load(), sent+x.sent.Load()
		if x.failed.Load() > 0 {
			t.Errorf("envoy %d: %d requests failed", i, x.failed.Load())
		}
	}
	t.Logf("%d admitted by calls; %d of %d in all; the limit is %d", calls.admitted.Load(), total, sent, (windows+1)*quotaLimit)
	first := begin.Add(2*time.Second).UnixNano() / int64(quotaWindow) // the first complete window
	admitted.withinLimit(t, first, first+windows)
	for w := first; w < first+windows; w++ {
		n := admitted.certain(w, w)
		most, called := n+admitted.across[w-1]+admitted.across[w], inCalls.certain(w, w)+inCalls.across[w]
		t.Logf("window %d: %d to %d admitted, %d of them calls, %.1f %%", w-first, n, most, called, float64(n)/quotaLimit*100)
		if w >= first+learning && called < quotaLimit/8 {
			t.Errorf("window %d: %d calls admitted, of %d requests: callers do not get their part", w-first, called, quotaLimit)
		}
	}
	used := admitted.certain(first+learning, first+windows-1)
	if n := sum(t, l, "keyward_quota_streams"); n != 3 {
		t.Errorf("%v streams of 3 Envoys", n)
	}
	if granted := sum(t, l, "keyward_quota_granted_hits_total"); granted < float64(total-calls.admitted.Load()) {
		t.Errorf("Envoys have admitted %d hits, and owners have charged %v", total-calls.admitted.Load(), granted)
	}
	if total > (windows+1)*quotaLimit {
		t.Errorf("%d admitted in %d windows of %d", total, windows+1, quotaLimit)
	}
	if used < (windows-learning)*quotaLimit*98/100 {
		t.Errorf("only %d admitted in the last %d windows of %d", used, windows-learning, quotaLimit)
	}
	for i := range loads {
		if x := &loads[i]; x.admitted.Load() < x.sent.Load()/10 {
			t.Errorf("envoy %d: %d of %d requests were admitted: it does not get its part", i, x.admitted.Load(), x.sent.Load())
		}
	}
	if calls.admitted.Load() == 0 {
		t.Error("no call was admitted")
	}
}

// TestQuotaRestart starts the sidecar again whose Envoy has most of the load. It gives back what it had of the next window, which is
// nearly all of it, so that window is used; and no window has more than its limit.
func TestQuotaRestart(t *testing.T) {
	l, envoys := quotaCluster(t)
	const restartAt, windows = 2, 4
	rates := []int{300, 30, 30}
	begin := beforeWindow(2 * time.Second)
	var admitted windowCount
	load := quotaLoad{windows: []*windowCount{&admitted}}
	time.Sleep(time.Until(begin))
	ctx, cancel := context.WithDeadline(t.Context(), begin.Add(2*time.Second+windows*quotaWindow))
	defer cancel()
	var wg sync.WaitGroup
	for i, e := range envoys {
		wg.Go(func() { load.run(ctx, e.Listener, "hot", rates[i]) })
	}
	time.Sleep(time.Until(begin.Add(4*time.Second + restartAt*quotaWindow)))
	if err := l.Sidecars[0].Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := l.Restart(l.Sidecars[0]); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if n := load.failed.Load(); n > 0 {
		t.Errorf("%d requests failed", n)
	}
	first := begin.Add(2*time.Second).UnixNano() / int64(quotaWindow)
	admitted.withinLimit(t, first, first+windows)
	for w := range int64(windows) {
		t.Logf("window %d: %d of %d admitted", w, admitted.certain(first+w, first+w), quotaLimit)
	}
	if n := admitted.certain(first+restartAt+1, first+restartAt+1); n < quotaLimit*8/10 {
		t.Errorf("only %d of %d admitted in the window after that of the restart", n, quotaLimit)
	}
}
