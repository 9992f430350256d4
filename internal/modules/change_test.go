//go:build linux

package modules

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/module/moduletest"
	"github.com/keyward/keyward/owner"
)

// TestRulesChangeOften changes the rule of a key many times a second while owners answer late. Each hit counts in the
// statistics of the rule whose counter was charged for it, and all others are given back.
func TestRulesChangeOften(t *testing.T) {
	const head = "domain: app\ndescriptors:\n- key: x\n- key: k\n"
	const day, hour = "  rate_limit: {unit: day, requests_per_unit: 1000000}\n", "    rate_limit: {unit: hour, requests_per_unit: 1000000}\n"
	byDay, byHour := head+day, head+"- key: k\n  value: v\n"+hour[2:]
	shared := head + "- key: k\n  value: v*\n  share_threshold: true\n" + day // another counter with the same windows
	rules := []string{
		byDay, byHour, shared, byDay, byHour, shared,
		head + "  rate_limit: {unit: day, requests_per_unit: 2000000}\n",
		head + day + "  shadow_mode: true\n",
		head + day + "  quota_mode: true\n",
		head + "  rate_limit: {unlimited: true}\n",
		head, "domain: other\ndescriptors:\n- key: k\n",
	}
	p := newPod(t, byHour)
	hourly := p.request("k", "v")
	p.setRules(shared)
	together := p.request("k", "v")
	p.setRules(byDay)
	daily := p.request("k", "v")
	if daily.Key == hourly.Key || daily.Key == together.Key {
		t.Fatal("one counter")
	}
	p.mu.Lock()
	p.change = func(*owner.Request, *owner.Result) { time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) }
	p.mu.Unlock()
	c, spent := p.dial(), uint64(0)
	for range 300 {
		p.setRules(rules[rand.IntN(len(rules))])
		for range rand.IntN(40) {
			if out, _ := c.Spend(1, "app", "k", "v"); out == moduletest.Taken {
				spent++
			} else {
				_ = c.Interest(50, "app", "k", "v")
			}
			time.Sleep(200 * time.Microsecond)
		}
	}
	c.Close()
	hits := func(name string) uint64 { return uint64(p.metric("keyward_module_" + name + "_hits_total")) }
	p.eventually("all hits are accounted for", func() bool {
		return spent == hits("taken")+hits("free") && hits("granted") == hits("taken")+hits("returned")+hits("unreturned")
	})
	p.close()
	used := func(r owner.Request) uint64 {
		r.Op = owner.DryRun
		return p.node.Decide(time.Now().UnixNano(), &r).After
	}
	for name, r := range map[string]owner.Request{"app.k": daily, "app.k_v": hourly, "app.k_v*": together} {
		counted := p.store.Rule(name).TotalHits.Value()
		if charged := used(r); charged != counted {
			t.Errorf("%s: %d hits are charged, and %d are in the statistics", name, charged, counted)
		}
	}
	t.Logf("%d spent, %d of them without a limit", spent, hits("free"))
}
