//go:build linux

package modules

import (
	"fmt"
	"testing"

	"github.com/keyward/keyward/envoy/module/moduletest"
)

// TestFree checks that descriptors which no rule limits are admitted without calls and charges, and no longer than that.
func TestFree(t *testing.T) {
	unlimited := fmt.Sprintf(plain, 1000) + "- key: free\n  rate_limit: {unlimited: true}\n"
	for name, rules := range map[string]string{
		"limited": fmt.Sprintf(plain, 1000) + "- key: free\n  rate_limit: {unit: day, requests_per_unit: 100}\n- key: unknown\n  rate_limit: {unit: day, requests_per_unit: 100}\n",
		"shadow":  fmt.Sprintf(plain, 1000) + "- key: free\n  rate_limit: {unit: day, requests_per_unit: 100}\n  shadow_mode: true\n- key: unknown\n  rate_limit: {unit: day, requests_per_unit: 0}\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t, unlimited)
			c, taken := p.dial(), uint64(0)
			for _, key := range []string{"free", "unknown"} {
				if !p.lease(c, key, "v") {
					t.Fatalf("%s: no lease", key)
				}
				taken++
				p.eventually("tokens come as they are spent", func() bool {
					for {
						if out, _ := c.Spend(10, "app", key, "v"); out != moduletest.Taken {
							break
						}
						taken += 10
					}
					_ = c.Interest(1000, "app", key, "v")
					return taken > 5000
				})
			}
			p.eventually("the hits are counted", func() bool { return p.metric("keyward_module_free_hits_total") == float64(taken) })
			if n := p.metric("keyward_module_granted_hits_total") + p.metric("keyward_module_taken_hits_total"); n != 0 {
				t.Errorf("%v hits are charged or counted as charged", n)
			}
			if states, _ := p.lessor.States(1, 10); len(states) != 1 || states[0].Total != 2 || states[0].Keys[0].Match.Limit.Limit != 0 {
				t.Errorf("%+v", states)
			}
			p.setRules(rules)
			for _, key := range []string{"free", "unknown"} {
				p.eventually("the lease ends", func() bool {
					out, _ := c.Spend(1, "app", key, "v")
					return out == moduletest.NoLease
				})
			}
			if leased := p.lease(c, "free", "v"); leased != (name == "limited") {
				t.Errorf("free is leased: %v", leased)
			} else if leased && p.used("free", "v") == 0 {
				t.Error("the lease is not charged")
			}
			p.setRules(unlimited)
			p.eventually("it is free again", func() bool {
				before := p.metric("keyward_module_free_hits_total")
				p.lease(c, "free", "v")
				return p.metric("keyward_module_free_hits_total") > before
			})
		})
	}
}
