package e2e

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// handoffRules have limits from 10 to 100,000 and windows from a second to an hour.
const handoffRules = `domain: app
descriptors:
  - {key: s10, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: s1000, rate_limit: {unit: second, requests_per_unit: 1000}}
  - {key: m10, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: m1000, rate_limit: {unit: minute, requests_per_unit: 1000}}
  - {key: m100000, rate_limit: {unit: minute, requests_per_unit: 100000}}
  - {key: h10, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: h100, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: h10000, rate_limit: {unit: hour, requests_per_unit: 10000}}
  - {key: h100000, rate_limit: {unit: hour, requests_per_unit: 100000}}
  - {key: y10, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: y100, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: y1000, rate_limit: {unit: year, requests_per_unit: 1000}}
`

// account is one key: what its clients asked for and were given, window by window. Every request of it has the same
// hits, of which its limit is a multiple: so a window in which one was refused has admitted exactly the limit.
type account struct {
	rule, value string
	limit       uint64
	hits        uint32
	window      time.Duration

	mu    sync.Mutex
	pages map[int64]*page // by the window's number; guarded by mu
}

// page is one window of an account. A response does not name its window: an answer that came in another window than its
// request left in may belong to either, and is kept apart in both.
type page struct {
	admitted, charged           uint64
	maybeAdmitted, maybeCharged uint64
	refused                     bool // for certain in this window
}

func newAccount(rule, value string, limit uint64, hits uint32, window time.Duration) *account {
	return &account{rule: rule, value: value, limit: limit, hits: hits, window: window, pages: map[int64]*page{}}
}

func (a *account) String() string { return a.rule + "=" + a.value }

func (a *account) request() *rlsv3.RateLimitRequest { return request("app", a.hits, a.rule, a.value) }

func (a *account) number(at time.Time) int64 { return at.UnixNano() / int64(a.window) }

// ending reports whether the window is about to end: a request asked now could be answered in the next.
func (a *account) ending(now time.Time) bool {
	return a.number(now) != a.number(now.Add(50*time.Millisecond))
}

func (a *account) page(n int64) *page {
	p := a.pages[n]
	if p == nil {
		p = &page{}
		a.pages[n] = p
	}
	return p
}

// record enters one answer; unknown is a request that may or may not have been counted.
func (a *account) record(sent, got time.Time, code rlsv3.RateLimitResponse_Code, unknown bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	hits, admitted := uint64(a.hits), uint64(0)
	if code == rlsv3.RateLimitResponse_OK && !unknown {
		admitted = hits
	}
	first, last := a.number(sent), a.number(got)
	if first == last && !unknown {
		p := a.page(first)
		p.charged += hits
		p.admitted += admitted
		p.refused = p.refused || admitted == 0
		return
	}
	for n := first; n <= last; n++ {
		p := a.page(n)
		p.maybeCharged += hits
		p.maybeAdmitted += admitted
	}
}

// now is a copy of the present window's page.
func (a *account) now() page {
	a.mu.Lock()
	defer a.mu.Unlock()
	return *a.page(a.number(time.Now()))
}

// bound is how many hits above its limit an account may have been admitted in a window.
type bound func(*account) float64

func nothing(*account) float64 { return 0 }

// unreplicated is U: what an owner may lose that crashes, of the charges that are not replicated yet.
func (a *account) unreplicated() float64 { return math.Max(1, float64(a.limit)/100) }

// audit compares every window with the limit: never more than it and the bound; where exact is asked for, as much as the
// limit wherever a client was refused. It returns how many windows were refused in, the most that was added and what is
// wrong.
func (a *account) audit(bound bound, exact bool) (spent int, excess float64, wrong []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for n, p := range a.pages {
		excess = max(excess, float64(p.admitted)-float64(a.limit))
		if b := bound(a); float64(p.admitted) > float64(a.limit)+b {
			wrong = append(wrong, fmt.Sprintf("%s, window %d: %d admitted, limit %d, bound %v", a, n, p.admitted, a.limit, b))
		}
		if !p.refused {
			continue
		}
		spent++
		if exact && p.admitted+p.maybeAdmitted < a.limit {
			wrong = append(wrong, fmt.Sprintf("%s, window %d: refused although only %d (and perhaps %d) of %d were admitted", a, n, p.admitted, p.maybeAdmitted, a.limit))
		}
	}
	return spent, excess, wrong
}

// load asks random members about random keys at a steady pace.
type load struct {
	t testing.TB
	f *fleet

	mu       sync.Mutex
	standing []*account   // guarded by mu; short windows, asked for all the time
	batches  [][]*account // guarded by mu; long windows: the newest two are asked for most

	asked     atomic.Int64
	errors    atomic.Int64
	latencies [][]time.Duration // one a worker
	cancel    context.CancelFunc
	done      sync.WaitGroup
}

// askTimeout is a client's; a member is given 60 % of it.
const askTimeout = 2 * time.Second

// startLoad asks rate requests a second in all.
func startLoad(t testing.TB, f *fleet, rate int, standing ...*account) *load {
	t.Helper()
	const workers = 8
	ctx, cancel := context.WithCancel(t.Context())
	ld := &load{t: t, f: f, standing: standing, latencies: make([][]time.Duration, workers), cancel: cancel}
	for i := range workers {
		ld.done.Go(func() {
			tick := time.NewTicker(time.Second * workers / time.Duration(rate))
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				ld.once(i)
			}
		})
	}
	t.Cleanup(ld.stop)
	return ld
}

func (ld *load) stop() {
	ld.cancel()
	ld.done.Wait()
}

// begin sends requests for a batch of keys that were not used before.
func (ld *load) begin(batch []*account) {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	ld.batches = append(ld.batches, batch)
}

func (ld *load) accounts() []*account {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	return slices.Concat(append([][]*account{ld.standing}, ld.batches...)...)
}

// choose is the next key to ask for; nil when there is none.
func (ld *load) choose() *account {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	from := ld.standing
	if n := len(ld.batches); n > 0 && (len(from) == 0 || rand.IntN(2) == 0) {
		if recent := max(0, n-2); rand.IntN(10) == 0 {
			from = ld.batches[rand.IntN(n)]
		} else {
			from = ld.batches[recent+rand.IntN(n-recent)]
		}
	}
	if len(from) == 0 {
		return nil
	}
	return from[rand.IntN(len(from))]
}

func (ld *load) once(worker int) {
	a, d := ld.choose(), ld.f.pick()
	if a == nil || d == nil || a.ending(time.Now()) {
		return
	}
	took, ok := ld.ask(d, a)
	if ok {
		ld.latencies[worker] = append(ld.latencies[worker], took)
	}
}

// ask asks one member about one key and enters what became of it.
func (ld *load) ask(d *door, a *account) (took time.Duration, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	sent := time.Now()
	res, err := d.client.ShouldRateLimit(ctx, a.request())
	got := time.Now()
	a.record(sent, got, res.GetOverallCode(), err != nil)
	ld.asked.Add(1)
	if err != nil {
		if !d.shaky.Load() && ld.errors.Add(1) <= 5 {
			ld.t.Errorf("%s asked about %s: %v", d.name, a, err)
		}
		return 0, false
	}
	return got.Sub(sent), true
}

// spent waits until that part of all these limits together has been admitted.
func (ld *load) spent(accounts []*account, part float64) {
	ld.t.Helper()
	ctx, cancel := context.WithTimeout(ld.t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "limits to be spent", func(context.Context) error {
		admitted, limit := uint64(0), uint64(0)
		for _, a := range accounts {
			admitted, limit = admitted+a.now().admitted, limit+a.limit
		}
		if float64(admitted) < part*float64(limit) {
			return fmt.Errorf("%d of %d admitted", admitted, limit)
		}
		return nil
	}); err != nil {
		ld.t.Fatal(err)
	}
}

// finish stops the load and asks for every long window until it is spent.
func (ld *load) finish() {
	ld.t.Helper()
	ld.stop()
	sideBySide(ld.accounts(), func(a *account) {
		for n := uint64(0); a.window >= time.Hour && !a.now().refused; n++ {
			if n > 2*a.limit/uint64(a.hits)+10 {
				ld.t.Errorf("%s: %+v after all and never refused", a, a.now())
				break
			}
			ld.ask(ld.f.pick(), a)
		}
	})
}

// audit audits accounts and logs what was seen.
func (ld *load) audit(accounts []*account, bound bound, exact bool) {
	ld.t.Helper()
	largest := 0.0
	spent, most, wrong := map[string]int{}, 0.0, []string(nil)
	for _, a := range accounts {
		largest = max(largest, bound(a))
		n, excess, faults := a.audit(bound, exact)
		spent[a.rule] += n
		most = max(most, excess)
		wrong = append(wrong, faults...)
	}
	for _, w := range wrong[:min(len(wrong), 8)] {
		ld.t.Error(w)
	}
	if len(wrong) > 8 {
		ld.t.Errorf("%d windows are wrong in all", len(wrong))
	}
	all := slices.Concat(ld.latencies...)
	slices.Sort(all)
	ld.t.Logf("%d requests, %d errors; windows spent by rule: %v; most above a limit %v, bound %v", ld.asked.Load(), ld.errors.Load(), spent, most, largest)
	if n := len(all); n > 0 {
		ld.t.Logf("latency: median %v, 99 %% %v, longest %v", all[n/2], all[n*99/100], all[n-1])
	}
}

// conserved asks for the count of every long window: it equals the hits charged.
func (ld *load) conserved() {
	ld.t.Helper()
	wrong := 0
	for _, a := range ld.accounts() {
		before := a.number(time.Now())
		if a.window < time.Hour {
			continue
		}
		c, err := lab.CounterOf(ld.t.Context(), ld.f.pick().page, "app", a.rule, a.value)
		if err != nil {
			ld.t.Errorf("%s: %v", a, err)
			return
		}
		p := a.now()
		if a.number(time.Now()) != before || p.maybeCharged > 0 {
			continue
		}
		if c.Count != p.charged {
			if wrong++; wrong <= 5 {
				ld.t.Errorf("%s: counted %d, charged %d (owner %s, authority %s)", a, c.Count, p.charged, c.Owner, c.Authority)
			}
		}
	}
	if wrong > 5 {
		ld.t.Errorf("%d counters are wrong in all", wrong)
	}
}

// batch is keys of long windows that are spent within a few seconds of load.
func batch(name string) []*account {
	var all []*account
	for i := range 4 {
		v := fmt.Sprintf("%s-%d", name, i)
		all = append(all, newAccount("h10", v, 10, 1, time.Hour), newAccount("h100", v, 100, 1, time.Hour))
		if i < 2 {
			all = append(all, newAccount("h10000", v, 10_000, 50, time.Hour), newAccount("h100000", v, 100_000, 250, time.Hour))
		}
	}
	return all
}

// shortWindows are keys that are spent and begin again all the time.
func shortWindows() []*account {
	return []*account{
		newAccount("s10", "a", 10, 1, time.Second), newAccount("s10", "b", 10, 1, time.Second), newAccount("s1000", "a", 1000, 50, time.Second),
		newAccount("m10", "a", 10, 1, time.Minute), newAccount("m1000", "a", 1000, 2, time.Minute), newAccount("m100000", "a", 100_000, 200, time.Minute),
	}
}
