package page

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keyward/keyward/internal/lab"
)

// patience is how long the page may take to show something on a busy machine.
const patience = 20 * time.Second

var rules = map[string]string{
	"shop.yaml": `
domain: shop
descriptors:
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        rate_limit: {name: logins, unit: minute, requests_per_unit: 10}
        metadata: {keyward: {algorithm: token_bucket, burst: 5, durability: strict, degraded: fail_closed}}
  - key: path
    value: /search*
    descriptors:
      - key: remote_address
        rate_limit: {unit: second, requests_per_unit: 50}
        metadata: {keyward: {algorithm: sliding_window}}
  - key: plan
    value: free
    rate_limit: {unit: hour, requests_per_unit: 1000}
  - key: plan
    value: gold
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 100000}
  - key: health
    rate_limit: {unlimited: true}
`,
	"api.yaml": `
domain: api
descriptors:
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 2000000}
    metadata: {keyward: {hot_factor: 1}} # few keys are active here, so a key is not far above their mean
  - key: feed
    rate_limit: {unit: minute, requests_per_unit: 60000}
    metadata: {keyward: {mechanism: lease}}
  - key: tokens
    rate_limit: {unit: hour, requests_per_unit: 1000}
    metadata: {keyward: {reserve: 300}}
  - key: streams
    rate_limit: {unit: hour, requests_per_unit: 16}
    metadata: {keyward: {algorithm: in_flight, window: 1h}}
  - key: spent
    rate_limit: {unit: minute, requests_per_unit: 6000}
    metadata: {keyward: {mechanism: quota}}
`,
}

// startLab runs three members that answer requests, and agree.
func startLab(t *testing.T) *lab.Lab {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	chromium(t) // before anything is started
	dir := t.TempDir()
	l, err := lab.New(lab.Options{Dir: dir, Bin: bin, Rules: rules, Expect: 3, Args: []string{"--data", filepath.Join(dir, "data")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
		for _, s := range l.Sidecars {
			if t.Failed() {
				t.Logf("%s:\n%s", s.Name, s.Tail(4000))
			}
		}
	})
	names := []string{"shop-0", "shop-1", "shop-2"}
	for _, n := range names {
		if _, err := l.AddSidecar(n, "--hot-rate", "40", "--decision-timeout", "1s", "--module-socket", moduleSocket(l, n)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.AwaitRing(ctx, names...); err != nil {
		t.Fatal(err)
	}
	return l
}

// moduleSocket returns the path of a member's socket for modules.
func moduleSocket(l *lab.Lab, member string) string { return filepath.Join(l.Dir, member+".sock") }

// asker asks members as Envoys do.
type asker struct {
	clients []pb.RateLimitServiceClient
}

func newAsker(t *testing.T, l *lab.Lab) *asker {
	t.Helper()
	a := &asker{}
	for _, s := range l.Sidecars {
		conn, err := grpc.NewClient("passthrough:///"+s.RLS, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		a.clients = append(a.clients, pb.NewRateLimitServiceClient(conn))
	}
	return a
}

// ask charges n hits to a descriptor, given as key, value, key, value, at one member.
func (a *asker) ask(ctx context.Context, at int, n uint32, domain string, pairs ...string) error {
	d := &ratelimitv3.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	_, err := a.clients[at].ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{d}, HitsAddend: n})
	return err
}

// keepAsking charges a descriptor one hit at members 0 to n-1 in turn, again and again, until the test ends.
func (a *asker) keepAsking(t *testing.T, n int, every time.Duration, domain string, pairs ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = a.ask(ctx, i%n, 1, domain, pairs...) // members die on purpose
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
}

// traffic sends the requests of a small shop until the test ends, only to members 0 and 1: the test kills member 2.
func (a *asker) traffic(t *testing.T) {
	t.Helper()
	for _, x := range []struct {
		every time.Duration
		pairs []string // domain, key, value, ...
	}{
		{10 * time.Millisecond, []string{"api", "tenant", "acme"}},
		{16 * time.Millisecond, []string{"api", "feed", "prices"}},
		{60 * time.Millisecond, []string{"api", "tenant", "globex"}},
		{70 * time.Millisecond, []string{"shop", "plan", "gold"}},
		{100 * time.Millisecond, []string{"shop", "path", "/login", "remote_address", "203.0.113.9"}},
		{30 * time.Millisecond, []string{"shop", "path", "/search/shoes", "remote_address", "203.0.113.9"}},
	} {
		a.keepAsking(t, 2, x.every, x.pairs[0], x.pairs[1:]...)
	}
}

// browser is a test's hold on the one tab.
type browser struct {
	*testing.T
	*tab
}

// tab is a page in a headless Chromium.
type tab struct {
	ctx    context.Context
	origin string // of the member that is looked at

	mu       sync.Mutex
	faults   []string // what the console and the policy complain of, and requests to elsewhere
	requests int
}

// chromium is where the browser is.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("KEYWARD_BROWSER") == "required" {
		t.Fatal("no chromium on PATH")
	}
	t.Skip("no chromium on PATH: apt-get install chromium")
	return ""
}

// open starts a browser that looks at a member's page.
func open(t *testing.T, metrics string) *browser {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium(t)), chromedp.NoSandbox, chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("no-proxy-server", true),
		chromedp.WindowSize(1400, 1000), chromedp.WSURLReadTimeout(time.Minute))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, end := chromedp.NewContext(alloc)
	t.Cleanup(func() {
		end()
		stop()
	})
	b := &browser{T: t, tab: &tab{ctx: ctx, origin: "http://" + metrics}}
	chromedp.ListenTarget(ctx, b.listen)
	if err := chromedp.Run(ctx, log.Enable(), network.Enable(), runtime.Enable(), chromedp.Navigate(b.origin+"/")); err != nil {
		t.Fatal(err)
	}
	b.await("the page is live", `document.getElementById("live-text").textContent === "live"`)
	return b
}

func (b *tab) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests++
		if !strings.HasPrefix(e.Request.URL, b.origin+"/") {
			b.faults = append(b.faults, "request to "+e.Request.URL)
		}
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, "exception: "+e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		b.faults = append(b.faults, fmt.Sprintf("console.%s", e.Type))
	case *log.EventEntryAdded:
		b.faults = append(b.faults, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	}
}

// takeFaults returns what there was to complain of since the last call.
func (b *tab) takeFaults() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.faults
	b.faults = nil
	return f
}

func (b *tab) requestsSoFar() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests
}

func (b *browser) run(actions ...chromedp.Action) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// eval evaluates JavaScript into v.
func (b *browser) eval(js string, v any) {
	b.Helper()
	b.run(chromedp.Evaluate(js, v))
}

// text is the visible text of the first element.
func (b *browser) text(selector string) (s string) {
	b.Helper()
	b.eval(fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector), &s)
	return s
}

// await waits until JavaScript says true.
func (b *browser) await(what, js string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	var last bool
	err := lab.Await(ctx, what, func(ctx context.Context) error {
		if err := chromedp.Run(ctx, chromedp.Evaluate(js, &last)); err != nil {
			return err
		}
		if !last {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		var body string
		_ = chromedp.Run(b.ctx, chromedp.Evaluate("document.body.innerText", &body))
		b.Fatalf("%v; the page says:\n%s\n%q", err, body, b.takeFaults())
	}
}

// view sets the window and the system's theme.
func (b *browser) view(width, height int64, theme string) {
	b.Helper()
	b.run(chromedp.EmulateViewport(width, height),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}))
}

// shot keeps a picture of the page down to the rules where KEYWARD_SHOTS says, for people. What is below has the paths of
// the machine on it.
func (b *browser) shot(name string) {
	b.Helper()
	dir := os.Getenv("KEYWARD_SHOTS")
	if dir == "" {
		return
	}
	var end struct{ Width, Height float64 }
	b.eval(`({width: innerWidth, height: document.querySelector("#versions").closest(".scroll").previousElementSibling.getBoundingClientRect().top + scrollY})`, &end)
	var png []byte
	b.run(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		clip := &page.Viewport{Width: end.Width, Height: end.Height, Scale: 1}
		png, err = page.CaptureScreenshot().WithClip(clip).WithCaptureBeyondViewport(true).Do(ctx)
		return err
	}))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.Error(err)
	}
}
