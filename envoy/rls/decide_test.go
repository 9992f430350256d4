package rls

import (
	"fmt"
	"math"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestReplaces(t *testing.T) {
	r := newRig(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {name: one, unit: hour, requests_per_unit: 1}}
  - {key: b, rate_limit: {name: two, unit: hour, requests_per_unit: 1, replaces: [{name: one}]}}
  - {key: c, rate_limit: {name: three, unlimited: true, replaces: [{name: two}, {name: three's}]}}
  - {key: e, rate_limit: {unit: hour, requests_per_unit: 1}}`)
	a, b, c, e := descriptor("a", "v"), descriptor("b", "v"), descriptor("c", "v"), descriptor("e", "v")
	for _, tt := range []struct {
		req  *pb.RateLimitRequest
		want string
	}{
		{request("d", a, b), "OK OK OK:0"},
		{request("d", a, b, c, e), "OK OK OK OK OK:0"}, // b is replaced and still replaces a
		{request("d", a), "OK OK:0"},
		{request("d", a), "OVER OVER:0"},
		{request("d", a, b), "OVER OK OVER:0"},
	} {
		if got := brief(r.ask(t, tt.req)); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.req, got, tt.want)
		}
	}
	if got := r.counts("d.a")[0]; got != 2 {
		t.Errorf("a replaced descriptor was counted: %d hits", got)
	}
}

func TestQuota(t *testing.T) {
	const yaml = `
domain: d
descriptors:
  - {key: no, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: yes, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: quota, value: no, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: quota, value: yes, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}`
	all := func(_ *Options, sw *Switches) { sw.Quota = true }
	shadow := func(_ *Options, sw *Switches) { sw.Shadow = true }
	for _, tt := range []struct {
		keys   string
		change func(*Options, *Switches)
		want   string
	}{
		{"no quota=yes", nil, "OVER OVER:0 OK:8"},
		{"yes quota=no", nil, "OVER OK:8 OVER:0"},
		{"shadow quota=no", nil, "OVER OK:0 OVER:0"},
		{"quota=no quota=yes", nil, "OK OVER:0 OK:8"},
		{"quota=no quota=no", nil, "OVER OVER:0 OVER:0"},
		{"quota=no free", nil, "OVER OVER:0 OK"},
		{"quota=no quota=no", shadow, "OK OVER:0 OVER:0"},
		{"no no", all, "OVER OVER:0 OVER:0"},
		{"no yes", all, "OK OVER:0 OK:8"},
		{"no nothing", all, "OK OVER:0 OK"},
		{"no free", all, "OVER OVER:0 OK"},
		{"nothing", all, "OK OK"},
	} {
		r := newRig(t, yaml, func(o *Options, sw *Switches) {
			if tt.change != nil {
				tt.change(o, sw)
			}
		})
		req := request("d")
		for _, k := range strings.Fields(tt.keys) {
			key, value, _ := strings.Cut(k, "=")
			req.Descriptors = append(req.Descriptors, descriptor(key, value))
		}
		if got := brief(r.ask(t, req)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.keys, got, tt.want)
		}
	}
}

func TestHeaders(t *testing.T) {
	const yaml = `
domain: d
descriptors:
  - {key: ten, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: six, rate_limit: {unit: hour, requests_per_unit: 6}}
  - {key: six2, rate_limit: {unit: day, requests_per_unit: 6}}
  - {key: none, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: none2, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}`
	on := func(_ *Options, sw *Switches) { sw.Headers = true }
	for _, tt := range []struct{ keys, want string }{
		{"ten", "10 9 58"},
		{"ten six", "6 5 1378"},
		{"six ten", "6 5 1378"},
		{"six six2", "6 5 1378"}, // of equals the first
		{"six none", "0 0 58"},
		{"none six", "0 0 58"},
		{"none none2", "0 0 1378"}, // of those over the last
		{"none2 none ten", "0 0 58"},
		{"ten quota", "0 0 1378"},
		{"none quota", "0 0 58"},
		{"free", ""},
		{"unknown", ""},
		{"free unknown ten", "10 9 58"},
	} {
		req := request("d")
		for _, k := range strings.Fields(tt.keys) {
			req.Descriptors = append(req.Descriptors, descriptor(k, ""))
		}
		var values, names []string
		for _, h := range newRig(t, yaml, on).ask(t, req).ResponseHeadersToAdd {
			values, names = append(values, h.Value), append(names, h.Key)
		}
		if got := strings.Join(values, " "); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.keys, got, tt.want)
		}
		if got := strings.Join(names, " "); tt.want != "" && got != "RateLimit-Limit RateLimit-Remaining RateLimit-Reset" {
			t.Errorf("%s: names %s", tt.keys, got)
		}
	}
}

func TestSwitches(t *testing.T) {
	r := newRig(t, basic)
	ten := request("basic", descriptor("key1", "v"))
	if h := r.ask(t, ten).ResponseHeadersToAdd; h != nil {
		t.Errorf("headers %v", h)
	}
	r.SetRules(r.Rules(), Switches{Headers: true, LimitHeader: "X-Limit", ResetHeader: "X-Reset"})
	for range 2 { // headers can be switched on, and never off
		h := r.ask(t, ten).ResponseHeadersToAdd
		if len(h) != 3 || h[0].Key != "X-Limit" || h[1].Key != "RateLimit-Remaining" || h[2].Key != "X-Reset" {
			t.Errorf("headers %v", h)
		}
		r.SetRules(r.Rules(), Switches{})
	}
}

func TestOverride(t *testing.T) {
	r := newRig(t, basic)
	minute := func(key string, n uint32) *common.RateLimitDescriptor {
		return override(descriptor(key, "o"), n, typev3.RateLimitUnit_MINUTE)
	}
	for _, tt := range []struct {
		name string
		req  *pb.RateLimitRequest
		want string
	}{
		{"of a rule", request("basic", minute("key1", 3)), "OK OK:2"},
		{"another amount meets the same count", request("basic", minute("key1", 7)), "OK OK:5"},
		{"without a rule", request("basic", minute("nothing", 1)), "OK OK:0"},
		{"again", request("basic", minute("nothing", 1)), "OVER OVER:0"},
		{"no shadow", request("basic", minute("shadow", 0)), "OVER OVER:0"},
		{"of an unlimited rule", request("basic", minute("free", 5)), "OK OK:4"},
		{"a week", request("basic", override(descriptor("w", ""), 5, 7)), "OK OK:4"},
		{"unknown domain", request("foo", minute("key1", 0)), "OK OK"},
		{"unknown domain and unit", request("foo", override(descriptor("k", "v"), 5, 0)), "OK OK"},
	} {
		if got := brief(r.ask(t, tt.req)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if got := r.counts("basic.key1_o"); got[0] != 2 {
		t.Errorf("statistics of an override: %v", got)
	}
}

func TestOverrideUnit(t *testing.T) {
	r := newRig(t, basic)
	for _, unit := range []typev3.RateLimitUnit{0, 8, -1, math.MaxInt32, math.MinInt32} {
		bad := override(descriptor("key1", "bad"), 3, unit)
		if _, err := r.try(t, request("basic", bad)); err == nil {
			t.Errorf("unit %d: no error", unit)
		}
		one := descriptor("one", fmt.Sprint(unit))
		if _, err := r.try(t, request("basic", bad, one)); err == nil {
			t.Errorf("unit %d next to another: no error", unit)
		}
		if got := brief(r.ask(t, request("basic", one, bad))); got != "OVER OVER:0 UNKNOWN" {
			t.Errorf("unit %d next to one that is over: %s", unit, got)
		}
	}
}

func TestDynamicMetadata(t *testing.T) {
	const yaml = `
domain: d
descriptors:
  - key: a
    metadata: {name: first, nested: {x: 1}, list: [1], keyward: {degraded: fail_open}}
    rate_limit: {unit: hour, requests_per_unit: 9}
  - key: b
    detailed_metric: true
    metadata: {name: second, nested: {x: 2, w: {z: 3}}, list: [2], own: true}
    rate_limit: {unit: hour, requests_per_unit: 9}
  - key: over
    metadata: {name: refused, over: true}
    rate_limit: {unit: hour, requests_per_unit: 0}`
	r := newRig(t, yaml, func(_ *Options, sw *Switches) { sw.DynamicMetadata = true })
	req := request("d", descriptor("over", "1"), addend(descriptor("a", "1", "", "\x01"), 4),
		override(descriptor("c", "2"), 2, typev3.RateLimitUnit_DAY), descriptor("a", ""), descriptor("b", ""))
	req.HitsAddend = 3
	want, err := structpb.NewStruct(map[string]any{
		"domain": "d", "hitsAddend": 3,
		"descriptors": []any{
			map[string]any{"entries": []any{"over=1"}},
			map[string]any{"entries": []any{"a=1", "=\x01"}, "hitsAddend": 4},
			map[string]any{"entries": []any{"c=2"}, "limit": "requests_per_unit:2  unit:DAY"},
			map[string]any{"entries": []any{"a="}},
			map[string]any{"entries": []any{"b="}},
		},
		"metadata": map[string]any{
			"name": "first", "nested": map[string]any{"x": 1, "w": map[string]any{"z": 3}}, "list": []any{1}, "own": true,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time nothing of the first has stayed in the rules
		if got := r.ask(t, req).DynamicMetadata; !proto.Equal(got, want) {
			t.Errorf("metadata %v, want %v", got, want)
		}
		alone, err := structpb.NewStruct(map[string]any{"name": "first", "nested": map[string]any{"x": 1}, "list": []any{1}})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.ask(t, request("d", descriptor("a", ""))).DynamicMetadata.Fields["metadata"].GetStructValue(); !proto.Equal(got, alone) {
			t.Errorf("metadata of one rule %v, want %v", got, alone)
		}
	}
	opaque := strings.Replace(string(encodeRequest(t, request("d", descriptor("a", "1234")))), "1234", "\xff12\xfe", 1)
	resp, err := r.tryWire(t, []byte(opaque))
	if err != nil {
		t.Fatal(err)
	}
	entry := resp.DynamicMetadata.Fields["descriptors"].GetListValue().Values[0].GetStructValue().Fields["entries"].GetListValue().Values[0]
	if got := entry.GetStringValue(); got != "a=\uFFFD12\uFFFD" {
		t.Errorf("opaque value returned as %q", got)
	}
}
