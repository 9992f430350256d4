package rls

import (
	"math/rand/v2"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/internal/config"
)

const unlimitedRules = `
domain: app
descriptors:
- key: free
  rate_limit: {unlimited: true}
- key: replacing
  rate_limit: {unlimited: true, replaces: [{name: b}]}
- key: named
  rate_limit: {unit: hour, requests_per_unit: 3, name: b}
- key: limited
  rate_limit: {unit: hour, requests_per_unit: 3}
- key: quota
  rate_limit: {unit: hour, requests_per_unit: 3}
  quota_mode: true
- key: shadow
  rate_limit: {unit: hour, requests_per_unit: 3}
  shadow_mode: true
- key: nested
  descriptors:
  - key: limited
    rate_limit: {unit: hour, requests_per_unit: 3}
`

// TestUnlimitedChangesNothing compares calls with those that lack their unlimited descriptors: the codes, the other statuses
// and all statistics are the same, whatever the call is about.
func TestUnlimitedChangesNothing(t *testing.T) {
	pool := [][]string{
		{"free", "v"}, {"replacing", "v"}, {"named", "v"}, {"limited", "v"}, {"quota", "v"}, {"shadow", "v"}, {"unknown", "v"}, {"nested", "v"},
		{"nested", "v", "limited", "v"}, {"limited", "v", "keyward.hold", "commit"}, {"free", "v", "keyward.hold", "commit"},
		{"limited", "v", "keyward.id", "x"}, {"unknown", "v", "keyward.id", "x"}, {"free", "v", "more", "v"},
	}
	for name, change := range map[string]func(*Options, *Switches){
		"plain": func(*Options, *Switches) {}, "shadow": func(_ *Options, sw *Switches) { sw.Shadow = true },
		"quota": func(_ *Options, sw *Switches) { sw.Quota = true }, "stop": func(o *Options, _ *Switches) { o.Stop = true },
	} {
		rng, left := rand.New(rand.NewPCG(5, 6)), 0
		for range 300 {
			all, rest := newRig(t, unlimitedRules, change), newRig(t, unlimitedRules, change)
			for range 8 {
				domain := []string{"app", "app", "app", "nowhere"}[rng.IntN(4)]
				a, b, removed := &pb.RateLimitRequest{Domain: domain}, &pb.RateLimitRequest{Domain: domain}, []int{}
				for i := range 1 + rng.IntN(4) {
					kv := pool[rng.IntN(len(pool))]
					d := new(common.RateLimitDescriptor)
					var entries []config.Entry
					for j := 0; j < len(kv); j += 2 {
						d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: kv[j], Value: kv[j+1]})
						entries = append(entries, config.Entry{Key: kv[j], Value: kv[j+1]})
					}
					a.Descriptors = append(a.Descriptors, d)
					m := all.Matcher()
					match := m.Match(domain, entries)
					if free := m.Unlimited(domain, entries, &match); !free {
						b.Descriptors = append(b.Descriptors, d)
					} else if removed = append(removed, i); m.Leasable(&match) {
						t.Fatalf("%q is leasable and unlimited", kv)
					}
				}
				left += len(removed)
				got := all.ask(t, a)
				want := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}
				if len(b.Descriptors) > 0 {
					want = rest.ask(t, b)
				}
				compareWithout(t, name, a, got, want, removed)
			}
			for _, key := range []string{"free", "replacing", "named", "limited", "quota", "shadow", "unknown", "nested", "nested.limited", "limited.keyward.hold"} {
				if a, b := all.counts("app."+key), rest.counts("app."+key); a != b {
					t.Fatalf("%s: statistics of %s: %v, without unlimited descriptors %v", name, key, a, b)
				}
			}
			if a, b := all.stats.DomainNotFound("nowhere").Value(), rest.stats.DomainNotFound("nowhere").Value(); a != b {
				t.Fatalf("%s: domain_not_found %d, without unlimited descriptors %d", name, a, b)
			}
			if a, b := all.counter("global_shadow_mode"), rest.counter("global_shadow_mode"); a != b {
				t.Fatalf("%s: global_shadow_mode %d, without unlimited descriptors %d", name, a, b)
			}
		}
		if want := name == "plain" || name == "stop"; (left > 100) != want {
			t.Errorf("%s: %d descriptors are unlimited", name, left)
		}
	}
}

// compareWithout checks that the responses differ only by the statuses of the descriptors that the second call lacks.
func compareWithout(t *testing.T, name string, call *pb.RateLimitRequest, got, want *pb.RateLimitResponse, removed []int) {
	t.Helper()
	var rest []*pb.RateLimitResponse_DescriptorStatus
	for i, s := range got.Statuses {
		if len(removed) > 0 && removed[0] == i {
			removed = removed[1:]
			if s.Code != pb.RateLimitResponse_OK || s.CurrentLimit != nil {
				t.Fatalf("%s: %v: status %d of an unlimited descriptor is %v", name, call, i, s)
			}
			continue
		}
		rest = append(rest, s)
	}
	got.Statuses = rest
	if !proto.Equal(got, want) {
		t.Fatalf("%s: %v: %v, without unlimited descriptors %v", name, call, got, want)
	}
}
