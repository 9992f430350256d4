//go:build linux

package modules

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/keyward/keyward/envoy/module"
	"github.com/keyward/keyward/envoy/module/moduletest"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// pod is a cluster of one member, whose modules connect over a real socket.
type pod struct {
	t       *testing.T
	node    *owner.Node
	service *rls.Service
	store   *stats.StatStore
	lessor  *Lessor
	server  *module.SegmentServer
	reg     *prometheus.Registry
	path    string

	mu     sync.Mutex
	change func(*owner.Request, *owner.Result) // guarded by mu: changes a result; nil: none
}

func (p *pod) Decide(_ policy.Deadline, stop bool, qs []owner.Request, as []owner.Result) {
	now := time.Now().UnixNano()
	p.node.Tick(now)
	p.node.DecideAll(now, stop, qs, as)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.change != nil {
		p.change(&qs[0], &as[0])
	}
}

const plain = `
domain: app
descriptors:
- key: k
  rate_limit: {unit: day, requests_per_unit: %d}
`

func newPod(t *testing.T, rules string) *pod {
	t.Helper()
	p := &pod{t: t, node: owner.New(owner.Options{Self: "a"}), path: filepath.Join(t.TempDir(), "m.sock"), reg: prometheus.NewRegistry()}
	now := time.Now().UnixNano()
	p.node.Tick(now)
	p.node.SetMembership(now, &membership.View{Self: "a", Ring: ring.New([]ring.Member{{ID: "a"}}), NRef: 1, Joined: true})
	p.store = stats.New(stats.Options{})
	p.service = rls.New(rls.Options{Decider: p, Stats: p.store})
	p.setRules(rules)
	p.lessor = New(Options{Charger: p, Rules: p.service.Matcher, Members: func() int { return 1 }})
	var err error
	if p.server, err = module.Listen(module.Options{Path: p.path, Book: p.lessor, Slots: 256}); err != nil {
		t.Fatal(err)
	}
	p.reg.MustRegister(p.lessor.Collectors(p.server)...)
	t.Cleanup(p.close)
	return p
}

func (p *pod) setRules(yaml string) {
	p.t.Helper()
	r, err := config.Load([]config.File{{Name: "rules.yaml", Content: []byte(yaml)}}, config.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.service.SetRules(r, rls.Switches{})
}

func (p *pod) close() {
	_ = p.server.Close()
	p.lessor.Close()
}

func (p *pod) dial() *moduletest.ModuleClient {
	p.t.Helper()
	c, err := moduletest.Dial(p.path)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(c.Close)
	return c
}

// request returns the request of a descriptor.
func (p *pod) request(kv ...string) owner.Request {
	var es []config.Entry
	for i := 0; i < len(kv); i += 2 {
		es = append(es, config.Entry{Key: kv[i], Value: kv[i+1]})
	}
	return p.service.Matcher().Match("app", es).Request
}

// used returns the count of a key.
func (p *pod) used(kv ...string) uint64 {
	r := p.request(kv...)
	r.Op = owner.DryRun
	return p.node.Decide(time.Now().UnixNano(), &r).After
}

// call charges a hit if it fits.
func (p *pod) call(kv ...string) bool {
	r := p.request(kv...)
	r.Op, r.Hits, r.Hold = owner.Reserve, 1, &owner.Hold{ID: claim.Ident{rand.Uint64(), rand.Uint64()}, TTL: time.Minute}
	return !p.node.Decide(time.Now().UnixNano(), &r).Over
}

// eventually waits until ok returns true.
func (p *pod) eventually(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("%s: not in 10 s", what)
		}
	}
}

// lease reports hits without a lease until there is one. It returns false if there is none after a second.
func (p *pod) lease(c *moduletest.ModuleClient, kv ...string) bool {
	for range 20 {
		if out, _ := c.Spend(1, "app", kv...); out == moduletest.Taken {
			return true
		}
		_ = c.Interest(50, "app", kv...)
		time.Sleep(50 * time.Millisecond)
	}
	return false
}

func (p *pod) metric(name string) float64 {
	p.t.Helper()
	all, err := p.reg.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += value(m)
			}
		}
	}
	return sum
}

func value(m *dto.Metric) float64 { return m.GetCounter().GetValue() + m.GetGauge().GetValue() }

// TestExact has two Envoys and callers spend a limit from leases and by calls. Exactly the limit is admitted.
func TestExact(t *testing.T) {
	const limit = 20_000
	p := newPod(t, fmt.Sprintf(plain, limit))
	var mu sync.Mutex
	leased, called := 0, 0
	var wg sync.WaitGroup
	for i := range 4 {
		c := p.dial()
		wg.Go(func() {
			refused := 0
			for n := 0; refused < 100; n++ {
				if out, _ := c.Spend(1, "app", "k", "v"); out == moduletest.Taken {
					mu.Lock()
					leased++
					mu.Unlock()
					continue
				}
				_ = c.Interest(1, "app", "k", "v")
				if p.call("k", "v") {
					mu.Lock()
					called++
					mu.Unlock()
				} else {
					refused++
				}
				time.Sleep(time.Duration(100*i) * time.Microsecond)
			}
		})
	}
	wg.Wait()
	// Hits that were leased when an Envoy gave up are free again.
	p.eventually("the leases are given back", func() bool { return p.used("k", "v") == uint64(leased+called) })
	t.Logf("%d from leases, %d by calls", leased, called)
	if leased+called > limit || leased == 0 {
		t.Errorf("%d from leases and %d by calls; the limit is %d", leased, called, limit)
	}
	for p.call("k", "v") {
		called++
	}
	if leased+called != limit {
		t.Errorf("%d admitted; the limit is %d", leased+called, limit)
	}
	p.eventually("the hits are counted", func() bool { return p.metric("keyward_module_taken_hits_total") == float64(leased) })
	if got := p.store.Rule("app.k").WithinLimit.Value(); got != uint64(leased) {
		t.Errorf("%d hits within the limit in the statistics of the rule; %d from leases", got, leased)
	}
}

// TestClosed checks that the end of a connection gives back exactly what is unspent, and that Close waits for it.
func TestClosed(t *testing.T) {
	p := newPod(t, fmt.Sprintf(plain, 1000))
	c := p.dial()
	if !p.lease(c, "k", "v") {
		t.Fatal("no lease")
	}
	spent := uint64(1)
	if out, _ := c.Spend(2, "app", "k", "v"); out == moduletest.Taken {
		spent += 2
	}
	c.Close()
	p.eventually("the Envoy's hits are given back", func() bool { return p.used("k", "v") == spent })
	c = p.dial()
	if !p.lease(c, "k", "v") {
		t.Fatal("no lease")
	}
	p.close()
	<-c.Done()
	if out, _ := c.Spend(1, "app", "k", "v"); out != moduletest.NoLease {
		t.Errorf("%v after the end of the sidecar", out)
	}
	if used := p.used("k", "v"); used != spent+1 {
		t.Errorf("%d hits are charged after Close, of %d spent", used, spent+1)
	}
}

// TestUnreturned checks that hits which cannot be given back are counted, because no owner answers or their hold has lapsed, and
// that only those count as returned which the owner has confirmed.
func TestUnreturned(t *testing.T) {
	for name, breaks := range map[string]func(*pod){
		"no owner": func(p *pod) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.change = func(q *owner.Request, r *owner.Result) {
				if q.Op != owner.Reserve {
					r.Authority = owner.Share
				}
			}
		},
		"lapsed": func(p *pod) {
			p.lessor.mu.Lock()
			defer p.lessor.mu.Unlock()
			for _, k := range p.lessor.keys {
				for i := range k.lots {
					k.lots[i].until = 0
				}
			}
		},
	} {
		p := newPod(t, fmt.Sprintf(plain, 1000))
		c := p.dial()
		if !p.lease(c, "k", "v") {
			t.Fatal("no lease")
		}
		breaks(p)
		c.Close()
		hits := func(name string) float64 { return p.metric("keyward_module_" + name + "_hits_total") }
		p.eventually(name+": all hits are accounted for", func() bool {
			return hits("unreturned") > 0 && hits("granted") == hits("taken")+hits("returned")+hits("unreturned")
		})
		if n := hits("returned"); name == "no owner" && n > 0 {
			t.Errorf("%v hits count as returned without a confirmation", n)
		}
		p.close()
	}
}

// TestIneligible checks that limits which calls must decide are not leased.
func TestIneligible(t *testing.T) {
	const day = "{unit: day, requests_per_unit: 1000}"
	rules, yaml := map[string]string{
		"shadow":         day + "\n  shadow_mode: true",
		"unlimited":      "{unlimited: true}",
		"frees":          "{unlimited: true, replaces: [{name: a}]}",
		"small":          "{unit: day, requests_per_unit: 30}",
		"quota_mode":     day + "\n  quota_mode: true",
		"sliding_window": day + "\n  metadata: {keyward: {algorithm: sliding_window}}",
		"bucket":         day + "\n  metadata: {keyward: {algorithm: token_bucket}}",
		"short":          "{unit: second, requests_per_unit: 1000}\n  metadata: {keyward: {window: 500ms}}",
		"holds":          day + "\n  metadata: {keyward: {reserve: 5}}",
		"once":           day + "\n  metadata: {keyward: {once: true}}",
		"all_or_nothing": day + "\n  metadata: {keyward: {all_or_nothing: true}}",
		"fair":           day + "\n  metadata: {keyward: {fair: {entry: fair}}}",
		"approximate":    day + "\n  metadata: {keyward: {mechanism: approximate, epsilon: 0.1}}",
		"static":         day + "\n  metadata: {keyward: {mechanism: static}}",
		"lease":          day + "\n  metadata: {keyward: {mechanism: lease}}",
		"audit":          day + "\n  metadata: {keyward: {audit: true}}",
		"replaced":       "{unit: day, requests_per_unit: 1000, name: a}",
		"replaces":       "{unit: day, requests_per_unit: 1000, replaces: [{name: a}]}",
		"eligible":       day,
		"quota":          day + "\n  metadata: {keyward: {mechanism: quota}}",
	}, "domain: app\ndescriptors:\n"
	for key, rule := range rules {
		yaml += "- key: " + key + "\n  rate_limit: " + rule + "\n"
	}
	rules["unknown"] = ""
	p := newPod(t, yaml)
	c, leased := p.dial(), map[string]bool{}
	for range 20 {
		for key := range rules {
			_ = c.Interest(50, "app", key, "v")
			if out, _ := c.Spend(1, "app", key, "v"); out == moduletest.Taken {
				leased[key] = true
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	for key := range rules {
		if want := key == "eligible" || key == "quota" || key == "unlimited" || key == "unknown"; leased[key] != want {
			t.Errorf("%s: leased: %v", key, leased[key])
		}
	}
}

// TestRulesChange checks that leases end with their rule, and that a limit which can be leased again is.
func TestRulesChange(t *testing.T) {
	p := newPod(t, strings.Replace(fmt.Sprintf(plain, 1000), "- key: k\n", "- key: a\n- key: b\n  rate_limit: {unit: day, requests_per_unit: 5}\n- key: k\n", 1))
	c := p.dial()
	if !p.lease(c, "k", "v") {
		t.Fatal("no lease")
	}
	if out, _ := c.Spend(1, "app", "k", "v"); out != moduletest.Taken { // not counted before the rules change, which now are fewer
		t.Error(out)
	}
	p.setRules(fmt.Sprintf(plain, 1000) + "  shadow_mode: true\n")
	p.eventually("the lease ends", func() bool {
		out, _ := c.Spend(1, "app", "k", "v")
		return out == moduletest.NoLease
	})
	if p.lease(c, "k", "v") {
		t.Error("a rule in shadow mode is leased")
	}
	p.setRules(fmt.Sprintf(plain, 2000))
	p.eventually("the key has a lease again", func() bool { return p.lease(c, "k", "v") })
}

// TestOnlyOwnersGrant checks that hits which no owner has charged to the window are not leased, and that they are given back.
func TestOnlyOwnersGrant(t *testing.T) {
	for name, change := range map[string]func(*owner.Result){
		"local share":    func(r *owner.Result) { r.Authority = owner.Share },
		"another window": func(r *owner.Result) { r.Reset += 24 * time.Hour },
	} {
		p := newPod(t, fmt.Sprintf(plain, 1000))
		p.change = func(q *owner.Request, r *owner.Result) {
			if q.Op == owner.Reserve {
				change(r)
			}
		}
		if p.lease(p.dial(), "k", "v") {
			t.Errorf("%s: leased", name)
		}
		p.close()
		if used := p.used("k", "v"); used != 0 {
			t.Errorf("%s: %d hits stay charged", name, used)
		}
	}
}

// TestHostile has an Envoy write anything anywhere into its memory while others spend their leases. It loses its connection,
// and all others together are admitted what their owners have charged.
func TestHostile(t *testing.T) {
	const limit = 50_000
	p := newPod(t, fmt.Sprintf(plain, limit))
	honest, spent := p.dial(), uint64(0)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 5 {
		c := p.dial()
		if !p.lease(c, "k", "v") {
			t.Fatal("no lease")
		}
		for open := true; open; {
			for range 50 {
				slot := 4096 + 32*rng.IntN(256)
				c.Write(slot+16, binary.LittleEndian.AppendUint64(nil, rng.Uint64()))
				c.Write(rng.IntN(4096+32*256-8), binary.LittleEndian.AppendUint64(nil, rng.Uint64()))
			}
			if out, _ := honest.Spend(1, "app", "k", "v"); out == moduletest.Taken {
				spent++
			} else {
				_ = honest.Interest(20, "app", "k", "v")
			}
			select {
			case <-c.Done():
				open = false
			case <-time.After(time.Millisecond):
			}
		}
	}
	if p.server.Refused(module.RefusedCorrupt) != 5 || p.metric("keyward_module_lost_hits_total") == 0 {
		t.Errorf("%d connections were closed as corrupt, and %v hits are lost", p.server.Refused(module.RefusedCorrupt), p.metric("keyward_module_lost_hits_total"))
	}
	p.close()
	if used := p.used("k", "v"); used < spent+uint64(p.metric("keyward_module_lost_hits_total")) || used > limit {
		t.Errorf("%d hits are charged; %d were spent, and %v lost", used, spent, p.metric("keyward_module_lost_hits_total"))
	}
}
