package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// The requests of the load: what each may spend, and what it spends.
const (
	loadReserve = 300 // with the bytes of the prompt
	loadSpend   = 130
)

// loadRules are the rules of a budget for n streams at a time, with holds and without.
func loadRules(n int) string {
	budget := n * loadEstimate()
	return fmt.Sprintf(`
domain: llm
descriptors:
- key: tenant
  rate_limit: {unit: hour, requests_per_unit: %d}
  metadata: {keyward: {reserve: 4096, durability: strict}}
- key: charged_at_the_end
  rate_limit: {unit: hour, requests_per_unit: %d}
- key: streams
  rate_limit: {unit: hour, requests_per_unit: 100000}
  metadata: {keyward: {algorithm: in_flight, window: 10m, durability: strict}}
`, budget, budget)
}

func loadEstimate() int { return loadPrompt(0).estimate() }

func loadPrompt(gate int) *prompt {
	return &prompt{tenant: "all", maxTokens: loadReserve, headers: map[string]string{
		usageHeader: strconv.Itoa(loadSpend), holdHeader: strconv.Itoa(gate),
	}}
}

// afterwards makes a configuration with holds one that charges what a request spent when it is done, and before that
// only asks whether anything is left.
var afterwards = strings.NewReplacer(
	"descriptor_key: tenant", "descriptor_key: charged_at_the_end",
	`{format: "%DYNAMIC_METADATA(keyward.tokens:estimate)%"}`, "{number: 0}",
	"                - {generic_key: {descriptor_key: keyward.hold, descriptor_value: commit}}\n", "",
	"metadata: {descriptor_key: keyward.hold,", "metadata: {descriptor_key: no_rule,",
)

// manyStreams has Envoy send many requests on each connection to the model server, for as long as they take.
var manyStreams = strings.NewReplacer(
	"route: {cluster: upstream}", "route: {cluster: upstream, timeout: 0s}",
	"  - name: upstream\n", `  - name: upstream
    circuit_breakers: {thresholds: [{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}]}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`)

// chained applies replacements one after the other.
func chained(text string, all ...*strings.Replacer) string {
	for _, r := range all {
		text = r.Replace(text)
	}
	return text
}

// streams are open requests through an Envoy.
type streams struct {
	done             sync.WaitGroup
	admitted, denied atomic.Int64
	failed, broken   atomic.Int64 // other answers, and streams that ended early
}

func loadClient(t testing.TB) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// open starts n streams, whose answers end when the gates of their groups open, and waits until each has been admitted or
// denied.
func (s *streams) open(t testing.TB, client *http.Client, envoy string, n, groups int) {
	t.Helper()
	var answered sync.WaitGroup
	limit := make(chan struct{}, 200) // at once: the machine has few cores
	for i := range n {
		answered.Add(1)
		limit <- struct{}{}
		s.done.Go(func() {
			res, err := loadPrompt(i%groups).start(t.Context(), client, envoy)
			<-limit
			answered.Done()
			if err != nil {
				s.failed.Add(1)
				return
			}
			defer res.Body.Close()
			switch res.StatusCode {
			case http.StatusOK:
				s.admitted.Add(1)
			case http.StatusTooManyRequests:
				s.denied.Add(1)
			default:
				s.failed.Add(1)
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				s.broken.Add(1)
			}
		})
	}
	answered.Wait()
}

// loadSize is the number of streams of a budget.
func loadSize() int {
	if long() {
		return 10_000
	}
	return 2000
}

// TestHoldsLoad opens twice as many streams as one budget has room for, restarts every member while they are open, and
// kills the owner while they end. They never spend more than the budget, and when all have ended, at most a hundredth
// of it is charged in excess of what they spent.
func TestHoldsLoad(t *testing.T) {
	const groups = 7
	n := loadSize()
	budget := n * loadEstimate()
	l := newLab(t, lab.Options{Rules: map[string]string{"llm.yaml": loadRules(n)}, Expect: 5})
	f := newFleet(t, l, names(5)...)
	xds := startXDS(t, l, names(5))
	m := startLLM(t)
	e := holdEnvoyOf(t, l, xds, m.addr, "envoy", 5)
	client := loadClient(t)
	began := time.Now()
	step := func(what string) {
		c, _ := lab.CounterOf(t.Context(), f.live[0].Metrics, "llm", "streams", "all")
		b, _ := lab.CounterOf(t.Context(), f.live[0].Metrics, "llm", "tenant", "all")
		t.Logf("%5.1fs %s; %d open, %d slots, %d charged, %d spent", time.Since(began).Seconds(), what, m.serving.Load(), c.Count, b.Count, m.spent.Load())
	}
	var s streams
	s.open(t, client, e.Listener, 2*n, groups)
	step(fmt.Sprintf("%d streams admitted, %d denied, %d failed", s.admitted.Load(), s.denied.Load(), s.failed.Load()))
	if s.admitted.Load() != int64(n) || s.denied.Load() != int64(n) {
		t.Errorf("want %d of each", n)
	}
	gate := 0
	end := func() {
		close(m.gates[gate])
		gate++
	}
	filling := fill(t, client, e.Listener)
	for _, x := range slices.Clone(f.live) {
		end()
		f.restart(x)
		step("restarted " + x.Name)
	}
	f.agree()
	c, err := lab.CounterOf(t.Context(), l.Sidecars[0].Metrics, "llm", "tenant", "all")
	if err != nil {
		t.Fatal(err)
	}
	end()
	victim := f.live[slices.IndexFunc(f.live, func(x *lab.Sidecar) bool { return x.Name == c.Owner })]
	awaitReplicas(t, victim)
	f.kill(victim)
	step("killed " + c.Owner)
	end()
	s.done.Wait()
	f.agree()
	step("all streams have ended")
	f.awaitSettlements(t)
	filling.stop()
	step(fmt.Sprintf("%d more requests have spent what came back; %d failed", filling.admitted.Load(), filling.failed.Load()))
	step(fmt.Sprintf("%v settlements wait, %v repeated, %v lost", f.sum("keyward_holds_settlements_waiting"), f.sum("keyward_holds_settlements_repeated_total"), f.sum("keyward_holds_settlements_lost_total")))
	spent := m.spent.Load()
	charged := f.charged(t, "tenant")
	step(fmt.Sprintf("spent %d, charged %d of %d; %d failed, %d broken", spent, charged, budget, s.failed.Load(), s.broken.Load()))
	if spent > int64(budget) || charged < uint64(spent) {
		t.Errorf("spent %d, charged %d, budget %d", spent, charged, budget)
	}
	if spent < int64(budget)*97/100 {
		t.Errorf("spent %d of %d: what came back was not used", spent, budget)
	}
	if over := int64(charged) - spent; over > int64(budget)/100 {
		t.Errorf("%d hits of %d stay charged, which nothing has spent", over, budget)
	}
	if c, err := lab.CounterOf(t.Context(), f.live[0].Metrics, "llm", "streams", "all"); err != nil || c.Count*100 > uint64(n) {
		t.Errorf("%+v streams in flight: %v", c, err)
	} else {
		step(fmt.Sprintf("%d streams in flight", c.Count))
	}
}

// filler sends requests that take what comes back to the budget.
type filler struct {
	streams
	ended atomic.Bool // the next denial is the last
}

func fill(t testing.TB, client *http.Client, envoy string) *filler {
	f := &filler{}
	p := &prompt{tenant: "all", unlimited: true, maxTokens: 1500, headers: map[string]string{usageHeader: "1300"}}
	for range 4 {
		f.done.Go(func() {
			pace := time.NewTicker(5 * time.Millisecond) // of denied requests
			defer pace.Stop()
			for t.Context().Err() == nil {
				last := f.ended.Load()
				res, err := p.start(t.Context(), client, envoy)
				if err != nil {
					f.failed.Add(1)
					continue
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				switch {
				case res.StatusCode == http.StatusOK:
					f.admitted.Add(1)
				case res.StatusCode != http.StatusTooManyRequests:
					f.failed.Add(1)
				case last:
					return
				default:
					<-pace.C
				}
			}
		})
	}
	return f
}

// stop waits until the budget has no room left.
func (f *filler) stop() {
	f.ended.Store(true)
	f.done.Wait()
}

// awaitSettlements waits until owners have confirmed all settlements.
func (f *fleet) awaitSettlements(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the settlements", func(context.Context) error {
		if n := f.sum("keyward_holds_settlements_waiting"); n > 0 {
			return fmt.Errorf("%v wait", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// charged waits until the count of the budget does not change any more, and returns it.
func (f *fleet) charged(t testing.TB, key string) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	last, same := uint64(0), 0
	if err := lab.Await(ctx, "a steady count", func(ctx context.Context) error {
		c, err := lab.CounterOf(ctx, f.live[0].Metrics, "llm", key, "all")
		if err != nil || c.Authority != "full" {
			return fmt.Errorf("%+v: %w", c, err)
		}
		if same++; c.Count != last {
			last, same = c.Count, 0
		}
		if same < 40 {
			return fmt.Errorf("%d", last)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	return last
}

// TestChargedAfterwardsOverspends is the load of TestHoldsLoad with rules that charge at the end: all streams are
// admitted, since nothing is charged when they begin.
func TestChargedAfterwardsOverspends(t *testing.T) {
	n := 500
	budget := int64(n * loadEstimate() / 2)
	l := newLab(t, lab.Options{Rules: map[string]string{"llm.yaml": loadRules(n / 2)}, Expect: 3})
	f := newFleet(t, l, names(3)...)
	xds := startXDS(t, l, names(3))
	client := loadClient(t)
	for name, change := range map[string]*strings.Replacer{"holds": strings.NewReplacer(), "afterwards": afterwards} {
		m := startLLM(t)
		e := holdEnvoyOf(t, l, xds, m.addr, name, 3, change)
		var s streams
		s.open(t, client, e.Listener, 4*n, 1)
		close(m.gates[0])
		s.done.Wait()
		spent := m.spent.Load()
		t.Logf("%s: of %d streams, %d admitted; spent %d of %d", name, 4*n, s.admitted.Load(), spent, budget)
		if over := spent > budget; over != (name == "afterwards") {
			t.Errorf("%s: spent %d of %d", name, spent, budget)
		}
	}
	if got := f.charged(t, "charged_at_the_end"); got <= uint64(budget) {
		t.Errorf("charged at the end: %d of %d", got, budget)
	}
}

// holdEnvoyOf starts an Envoy that asks the owner, with many requests at a time.
func holdEnvoyOf(t testing.TB, l *lab.Lab, xds *lab.XDSServer, upstream, name string, members int, change ...*strings.Replacer) *lab.Envoy {
	t.Helper()
	first := addEnvoy(t, l, lab.EnvoyOptions{Name: name + "-printed", Shape: "owner-direct", XDS: xds.Addr, Upstream: upstream, Args: append(slices.Clip(reserveArgs), "--timeout", "15s")}, "keyward", members)
	text := readText(t, first.Config)
	if err := first.Stop(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	addresses := strings.NewReplacer(addressOf(first.Listener), "@HOST@, port_value: @PORT@", addressOf(first.Admin), "@ADMINHOST@, port_value: @ADMINPORT@")
	text = chained(text, append([]*strings.Replacer{addresses, manyStreams}, change...)...)
	return addEnvoy(t, l, lab.EnvoyOptions{Name: name, Config: text}, "keyward", members)
}

func addressOf(a string) string {
	host, port, _ := strings.Cut(a, ":")
	return fmt.Sprintf("%q, port_value: %s", host, port)
}
