package module

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keyward/keyward/internal/lab"
)

const (
	clusterLimit  = 3000
	clusterWindow = 10 * time.Second
	clusterRules  = `domain: app
descriptors:
- key: api_key
  rate_limit: {unit: second, requests_per_unit: 3000}
  metadata: {keyward: {window: 10s, degraded: fail_closed}}
`
)

// pod is a sidecar with its Envoy.
type pod struct {
	*site
	sidecar *lab.Sidecar
	socket  string
	args    []string
	release release
	url     atomic.Pointer[string] // of the Envoy; nil: nothing is sent to the pod

	files    string // folder with the module's files; empty: those under test
	limits   string // of setup
	print    func(service, app string) string
	cost     int64        // hits of a request, in the header x-cost; 0: 1
	admitted atomic.Int64 // requests to the Envoy
}

// start starts the pod's Envoy.
func (p *pod) start(t *testing.T, workers int) {
	t.Helper()
	p.site = start(t, p.release, setup{socket: p.socket, service: p.sidecar.RLS, workers: workers, files: p.files, limits: p.limits, print: p.print})
	url := "http://" + p.envoy.Listener + "/"
	p.url.Store(&url)
}

// pause stops the load of the pod, and waits for the end of requests in flight.
func (p *pod) pause() {
	p.url.Store(nil)
	time.Sleep(300 * time.Millisecond)
}

// fleet is a cluster of pods.
type fleet struct {
	*testing.T
	lab  *lab.Lab
	pods []*pod
}

func startFleet(t *testing.T, r release, n int) *fleet {
	t.Helper()
	return startFleetWith(t, r, n, clusterRules)
}

// metrics returns the lines of the first sidecar's metrics that start with prefix.
func (f *fleet) metrics(prefix string) string {
	f.Helper()
	b, err := lab.Get(f.Context(), "http://"+f.pods[0].sidecar.Metrics+"/metrics")
	if err != nil {
		f.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, prefix) {
			out.WriteString(line)
		}
	}
	return out.String()
}

func startFleetWith(t *testing.T, r release, n int, rules string) *fleet {
	t.Helper()
	f := startSidecars(t, programs(t), r, n, rules)
	for _, p := range f.pods {
		p.start(t, min(n, 2))
	}
	return f
}

// programs returns the folder with the programs under test.
func programs(t *testing.T) string {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "sidecar")); err != nil {
		t.Skip("no bin/sidecar: make build")
	}
	return bin
}

// startSidecars starts a cluster of pods without their Envoys, with the programs in bin.
func startSidecars(t *testing.T, bin string, r release, n int, rules string) *fleet {
	t.Helper()
	f, err := &fleet{T: t}, error(nil)
	if f.lab, err = lab.New(lab.Options{Dir: t.TempDir(), Bin: bin, Insecure: true, Expect: n, Rules: map[string]string{"app.yaml": rules}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.lab.Stop(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	var names []string
	for i := range n {
		p := &pod{socket: filepath.Join(t.TempDir(), "s"), release: r}
		p.args = []string{"--module-socket", p.socket}
		if p.sidecar, err = f.lab.AddSidecar(fmt.Sprint("sidecar-", i), p.args...); err != nil {
			t.Fatal(err)
		}
		f.pods, names = append(f.pods, p), append(names, p.sidecar.Name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := f.lab.AwaitRing(ctx, names...); err != nil {
		t.Fatal(err)
	}
	for _, p := range f.pods {
		f.ready(p.sidecar)
	}
	return f
}

func (f *fleet) ready(s *lab.Sidecar) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), time.Minute)
	defer cancel()
	if err := lab.Await(ctx, s.Name+" to be ready", func(ctx context.Context) error {
		_, err := lab.Get(ctx, "http://"+s.Metrics+"/readyz")
		return err
	}); err != nil {
		f.Fatal(err)
	}
}

// window counts the requests of one window.
type window struct{ sent, admitted, byCalls, failed atomic.Int64 }

// gap is the time around a window's end in which nothing is sent, so that each answer belongs to one window.
const gap = 400 * time.Millisecond

// load sends requests until the context ends, with pauses around the ends of windows. send returns a status.
func load(ctx context.Context, perSecond int, windows []window, begin time.Time, send func(*window) int) {
	const workers = 4
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			period := time.Second * workers / time.Duration(perSecond)
			next := time.Now().Add(period * time.Duration(i) / workers)
			for ; ctx.Err() == nil; next = next.Add(period) {
				time.Sleep(time.Until(next))
				since := time.Since(begin)
				at := int(since / clusterWindow)
				if since < 0 || at >= len(windows) || since%clusterWindow < gap || since%clusterWindow > clusterWindow-gap {
					continue
				}
				w := &windows[at]
				w.sent.Add(1)
				switch send(w) {
				case http.StatusOK:
					w.admitted.Add(1)
				case http.StatusTooManyRequests:
				default:
					w.failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
}

// run loads all pods and two callers of the rate limit service for some windows. during is called in each window.
func (f *fleet) run(n int, during func(i int)) []window {
	f.Helper()
	windows := make([]window, n)
	begin := time.Now().Truncate(clusterWindow).Add(clusterWindow)
	ctx, cancel := context.WithDeadline(f.Context(), begin.Add(time.Duration(n)*clusterWindow))
	defer cancel()
	var wg sync.WaitGroup
	for i, p := range f.pods {
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
		defer client.CloseIdleConnections()
		wg.Go(func() {
			load(ctx, []int{300, 120, 60}[i%3], windows, begin, func(w *window) int {
				url := p.url.Load()
				if url == nil {
					w.sent.Add(-1)
					return http.StatusTooManyRequests
				}
				status := send(client, *url, "x-key", "hot", "x-cost", fmt.Sprint(max(1, p.cost)))
				if status == http.StatusOK {
					p.admitted.Add(1)
					w.admitted.Add(max(1, p.cost) - 1)
				}
				return status
			})
		})
	}
	for _, p := range f.pods[1:] {
		conn, err := grpc.NewClient(p.sidecar.RLS, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			f.Fatal(err)
		}
		defer conn.Close()
		c := ratelimit.NewRateLimitServiceClient(conn)
		request := &ratelimit.RateLimitRequest{Domain: "app", Descriptors: []*rlsv3.RateLimitDescriptor{{Entries: []*rlsv3.RateLimitDescriptor_Entry{{Key: "api_key", Value: "hot"}}}}}
		wg.Go(func() {
			load(ctx, 20, windows, begin, func(w *window) int {
				if p.url.Load() == nil {
					w.sent.Add(-1)
					return http.StatusTooManyRequests
				}
				r, err := c.ShouldRateLimit(ctx, request)
				switch {
				case err != nil:
					return 0
				case r.OverallCode == ratelimit.RateLimitResponse_OK:
					w.byCalls.Add(1)
					return http.StatusOK
				}
				return http.StatusTooManyRequests
			})
		})
	}
	for i := range windows {
		time.Sleep(time.Until(begin.Add(time.Duration(i)*clusterWindow + 2*time.Second)))
		during(i)
	}
	wg.Wait()
	return windows
}

func (f *fleet) calls() (n float64) {
	for _, p := range f.pods {
		v, err := p.envoy.Stat(f.Context(), "cluster.app.ratelimit.ok")
		if err != nil {
			f.Fatal(err)
		}
		n += v
	}
	return n
}

// TestClusterAdmitsTheLimit has three Envoys with unequal load spend one limit, most of it without calls, next to callers
// of the rate limit service. In each window, all of them together are admitted the limit and no more. A few hits below it
// are lost where a process gets no processor time around the end of a window.
func TestClusterAdmitsTheLimit(t *testing.T) {
	f := startFleet(t, newest, 3)
	windows := f.run(4, func(int) {})
	var admitted, byCalls int64
	for i := range windows {
		w := &windows[i]
		t.Logf("window %d: %d sent, %d admitted of %d, %d by callers, %d failed", i, w.sent.Load(), w.admitted.Load(), clusterLimit, w.byCalls.Load(), w.failed.Load())
		f.pods[0].want("failed", int(w.failed.Load()), 0)
		if got := w.admitted.Load(); got > clusterLimit || got < clusterLimit*98/100 {
			t.Errorf("window %d: %d admitted, want %d", i, got, clusterLimit)
		}
		admitted += w.admitted.Load()
		byCalls += w.byCalls.Load()
	}
	t.Logf("%d of %d admissions by Envoys took a call", int(f.calls()), admitted-byCalls)
}

// TestRestarts restarts sidecars and Envoys one after the other under load, by SIGTERM and by SIGKILL. A pod without load has
// nothing failing, and no window admits more than the limit.
func TestRestarts(t *testing.T) {
	if !long() {
		t.Skip("a minute: with KEYWARD_LONG=1")
	}
	f := startFleet(t, newest, 3)
	p := f.pods[0] // the one with most of the load, and without a caller
	stop := func(q *lab.Process) {
		if err := q.Stop(20 * time.Second); err != nil {
			t.Error(err)
		}
	}
	restart := func() {
		if err := f.lab.Restart(p.sidecar, p.args...); err != nil {
			t.Fatal(err)
		}
		f.ready(p.sidecar)
	}
	steps := []struct {
		what string
		run  func()
	}{
		{"the Envoy stops", func() { stop(p.envoy.Process) }},
		{"the Envoy is killed", func() { p.envoy.Kill() }},
		{"the sidecar stops", func() { stop(p.sidecar.Process); restart() }},
		{"the sidecar is killed", func() { p.sidecar.Kill(); restart() }},
		{"both stop", func() { stop(p.envoy.Process); stop(p.sidecar.Process); restart() }},
	}
	windows := f.run(len(steps)+1, func(i int) {
		if i == len(steps) {
			return
		}
		p.pause()
		steps[i].run()
		if !p.envoy.Running() {
			p.start(t, 2)
		} else {
			url := "http://" + p.envoy.Listener + "/"
			p.url.Store(&url)
		}
	})
	for i := range windows {
		w, what := &windows[i], "nothing"
		if i < len(steps) {
			what = steps[i].what
		}
		t.Logf("window %d, %s: %d sent, %d admitted of %d, %d by callers, %d failed", i, what, w.sent.Load(), w.admitted.Load(), clusterLimit, w.byCalls.Load(), w.failed.Load())
		f.pods[0].want("failed", int(w.failed.Load()), 0)
		if w.admitted.Load() > clusterLimit {
			t.Errorf("window %d: %d admitted, the limit is %d", i, w.admitted.Load(), clusterLimit)
		}
	}
}
