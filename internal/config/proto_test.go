package config

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// wire encodes and decodes resources.
func wire(t *testing.T, resources []*rlsconf.RateLimitConfig) []*rlsconf.RateLimitConfig {
	t.Helper()
	var received []*rlsconf.RateLimitConfig
	for _, r := range resources {
		b, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		c := &rlsconf.RateLimitConfig{}
		if err := proto.Unmarshal(b, c); err != nil {
			t.Fatal(err)
		}
		received = append(received, c)
	}
	return received
}

func TestProtoRoundTrip(t *testing.T) {
	const text = "domain: shop\ndescriptors:\n- key: a\n  quota_mode: true\n  shadow_mode: true\n  detailed_metric: true\n" +
		"  rate_limit: {unit: week, requests_per_unit: 5, name: n, replaces: [{name: x}, {name: y}]}\n" +
		"  metadata: {team: [1, {a: ~}], keyward: {degraded: fail_open, local_cap: 3, shard_by: a, algorithm: leaky_bucket, window: 90s, burst: 9, durability: strict,\n" +
		"      mechanism: lease, lease_min: 5, lease_max: 50, ttl: 3s, weight: 2, reclaim: ttl, hot_factor: 7, sub_keys: 3, dedicated: true, audit: true}}\n" +
		"- {key: b, value: 'x*', rate_limit: {unlimited: true}, descriptors: [{key: c}]}\n"
	rules := load(t, Options{}, text, "domain: other\n")
	resources, lost := rules.ToProto()
	if len(lost) > 0 || len(resources) != 2 || resources[0].Name != "shop" {
		t.Fatal(resources, lost)
	}
	back, err := FromProto(wire(t, resources), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if back.Hash() != rules.Hash() || back.String() != rules.String() {
		t.Errorf("\n got %s\nwant %s", back, rules)
	}
	r := back.Rules()[0]
	x := Extension{
		ShardBy: []string{"a"}, Window: 90 * time.Second, Burst: 9, LocalCap: 3, Algorithm: limit.LeakyBucket, Degraded: policy.FailOpen,
		Mechanism: policy.ByLease, Strict: true, HotFactor: 7,
		Lease: &lease.Terms{Min: 5, Max: 50, TTL: 3 * time.Second, Weight: 2, SubKeys: 3, Dedicated: true, Reclaim: true, Audit: true, Uncapped: true},
	}
	if want := (limit.Rule{Window: 90 * time.Second, Limit: 5, Burst: 9, Algorithm: limit.LeakyBucket}); r.Limit != want || !reflect.DeepEqual(r.Extension, x) {
		t.Errorf("%+v", r)
	}
	if !r.Quota || r.Extension.LocalCap != 3 || !slices.Equal(r.Extension.ShardBy, []string{"a"}) || len(r.Metadata.AsMap()) != 1 {
		t.Errorf("%+v", r)
	}
}

func TestProtoErrors(t *testing.T) {
	descriptor := &rlsconf.RateLimitDescriptor{Key: "k", RateLimit: &rlsconf.RateLimitPolicy{RequestsPerUnit: 1}}
	bad := &rlsconf.RateLimitConfig{Name: "res", Domain: "d", Descriptors: []*rlsconf.RateLimitDescriptor{descriptor}}
	for _, row := range []struct {
		change func()
		want   string
	}{
		{func() {}, "res: invalid rate limit unit 'UNKNOWN'"},
		{func() { descriptor.RateLimit.Unit = 42 }, "res: invalid rate limit unit '42'"},
		{func() { descriptor.RateLimit.Unit, descriptor.RateLimit.Unlimited = 1, true }, "res: should not specify rate limit unit when unlimited"},
		{func() { descriptor.RateLimit = nil; descriptor.Key = "" }, "res: descriptor has empty key"},
		{func() { bad.Domain = "" }, "res: config file cannot have empty domain"},
	} {
		row.change()
		if _, err := FromProto([]*rlsconf.RateLimitConfig{bad}, Options{}); err == nil || err.Error() != row.want {
			t.Errorf("got %v, want %s", err, row.want)
		}
	}
	if _, err := FromProto([]*rlsconf.RateLimitConfig{nil, {Descriptors: []*rlsconf.RateLimitDescriptor{nil}}}, Options{}); err == nil {
		t.Error("nothing at all was loaded")
	}
	odd := &rlsconf.RateLimitDescriptor{Key: "k"}
	odd.ProtoReflect().SetUnknown([]byte{metadataField<<3 | 2, 1, 0xff})
	_, err := FromProto([]*rlsconf.RateLimitConfig{{Name: "res", Domain: "d", Descriptors: []*rlsconf.RateLimitDescriptor{odd}}}, Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "res: error parsing metadata: ") {
		t.Error(err)
	}
}

func TestProtoSaysWhatIsLost(t *testing.T) {
	rules := load(t, Options{}, "domain: d\ndescriptors:\n- {key: k, value: 'v*', share_threshold: true, value_to_metric: true}\n- {key: !!binary //8=}\n")
	resources, lost := rules.ToProto()
	want := []string{"share_threshold of 'd.k_v*'", "value_to_metric of 'd.k_v*'", "all of 'd.?'"}
	if !slices.Equal(lost, want) {
		t.Errorf("%q, want %q", lost, want)
	}
	wire(t, resources)
}

// TestProtoType fails once the generated type has the fields that are read and written by hand.
func TestProtoType(t *testing.T) {
	fields := (&rlsconf.RateLimitDescriptor{}).ProtoReflect().Descriptor().Fields()
	if fields.ByNumber(quotaModeField) != nil || fields.ByNumber(metadataField) != nil {
		t.Error("use the generated fields instead of the unknown ones")
	}
}

// FuzzFromProto checks that no resource makes the loader panic.
func FuzzFromProto(f *testing.F) {
	for seed := range uint64(10) {
		g := generator{rand: rand.New(rand.NewPCG(seed, 6)), metadata: true, middle: true, sound: true}
		rules, err := Load(g.files(), Options{MergeDomains: true})
		if err != nil {
			continue
		}
		resources, _ := rules.ToProto()
		b, err := proto.Marshal(resources[0])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &rlsconf.RateLimitConfig{}
		if proto.Unmarshal(b, c) != nil {
			return
		}
		rules, err := FromProto([]*rlsconf.RateLimitConfig{c}, Options{})
		if err != nil {
			return
		}
		resources, _ := rules.ToProto()
		again, err := FromProto(wire(t, resources), Options{})
		if err != nil || again.Hash() != rules.Hash() {
			t.Errorf("%v: rules change on their way", err)
		}
	})
}
