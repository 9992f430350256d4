package rls

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

const basic = `
domain: basic
descriptors:
  - {key: key1, rate_limit: {unit: second, requests_per_unit: 50}}
  - {key: one, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: zero, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: huge, rate_limit: {unit: year, requests_per_unit: 4294967295}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: listed, value: white}
`

// brief is a response as text: the overall code, then each status as code:remaining.
func brief(r *pb.RateLimitResponse) string {
	code := map[pb.RateLimitResponse_Code]string{0: "UNKNOWN", 1: "OK", 2: "OVER"}
	s := code[r.OverallCode]
	for _, st := range r.Statuses {
		s += " " + code[st.Code]
		if st.CurrentLimit != nil {
			s += fmt.Sprintf(":%d", st.LimitRemaining)
		}
	}
	return s
}

func TestAnswers(t *testing.T) {
	r := newRig(t, basic)
	for _, tt := range []struct {
		name string
		req  *pb.RateLimitRequest
		want string
	}{
		{"unknown domain", request("foo", descriptor("hello", "world")), "OK OK"},
		{"no rule", request("basic", descriptor("hello", "world")), "OK OK"},
		{"no entries", request("basic", descriptor()), "OK OK"},
		{"a descriptor without rate_limit", request("basic", descriptor("listed", "white")), "OK OK"},
		{"first hit", request("basic", descriptor("key1", "foo")), "OK OK:49"},
		{"the same descriptor twice", request("basic", descriptor("key1", "twice"), descriptor("key1", "twice")), "OK OK:49 OK:48"},
		{"limit 0", request("basic", descriptor("zero", "v")), "OVER OVER:0"},
		{"limit 0, only a look", request("basic", addend(descriptor("zero", "v2"), 0)), "OK OK:0"},
		{"unlimited", request("basic", descriptor("free", "v")), "OK OK"},
		{"several", request("basic", descriptor("one", "s"), descriptor("free", "s"), descriptor("key1", "s")), "OK OK:0 OK OK:49"},
		{"one of several over", request("basic", descriptor("one", "s"), descriptor("key1", "s")), "OVER OVER:0 OK:48"},
		{"more hits than allowed", request("basic", addend(descriptor("key1", "h"), 51)), "OVER OVER:0"},
		{"all of them stay", request("basic", addend(descriptor("key1", "h"), 0)), "OVER OVER:0"},
		{"the largest limit", request("basic", addend(descriptor("huge", "h"), 1)), "OK OK:4294967294"},
	} {
		if got := brief(r.ask(t, tt.req)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	free := r.ask(t, request("basic", descriptor("free", "v"))).Statuses[0]
	if free.LimitRemaining != math.MaxUint32 || free.DurationUntilReset != nil {
		t.Errorf("unlimited: %v", free)
	}
	if got := r.counter("rate_limit.foo.domain_not_found"); got != 1 {
		t.Errorf("domain_not_found %d", got)
	}
	if got := r.counts("basic.free"); got != [7]uint64{} {
		t.Errorf("statistics of an unlimited rule: %v", got)
	}
}

func TestCurrentLimit(t *testing.T) {
	r := newRig(t, `
domain: d
descriptors:
  - {key: k, rate_limit: {name: called, unit: hour, requests_per_unit: 7}}`)
	for _, over := range []bool{false, true} {
		st := r.ask(t, request("d", addend(descriptor("k", "v"), 7))).Statuses[0]
		if st.CurrentLimit.Name != "called" || st.CurrentLimit.RequestsPerUnit != 7 || st.CurrentLimit.Unit != pb.RateLimitResponse_RateLimit_HOUR {
			t.Errorf("current limit %v", st.CurrentLimit)
		}
		if got := st.DurationUntilReset.GetSeconds(); got != 3600-2222 {
			t.Errorf("over %v: reset in %d s", over, got)
		}
	}
}

func TestErrors(t *testing.T) {
	bare, ruled := newRig(t, ""), newRig(t, basic)
	for _, tt := range []struct {
		rig  *rig
		req  *pb.RateLimitRequest
		want string
	}{
		{ruled, request("", descriptor("k", "v")), "rate limit domain must not be empty"},
		{ruled, request("basic"), "rate limit descriptor list must not be empty"},
		{bare, request("", descriptor("k", "v")), "rate limit domain must not be empty"},
		{bare, request("basic"), "rate limit descriptor list must not be empty"},
		{bare, request("basic", descriptor("k", "v")), "no rate limit configuration loaded"},
	} {
		if _, err := tt.rig.try(t, tt.req); err == nil || err.Error() != tt.want {
			t.Errorf("%v: error %v, want %s", tt.req, err, tt.want)
		}
	}
	if b, r := bare.counter("call.should_rate_limit.service_error"), ruled.counter("call.should_rate_limit.service_error"); b != 3 || r != 2 {
		t.Errorf("service_error %d and %d, want 3 and 2", b, r)
	}
}

// The sequence of envoyproxy/ratelimit's own integration test.
func TestSequence(t *testing.T) {
	const another = `
domain: another
descriptors:
  - {key: key2, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: key3, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: key4, rate_limit: {unit: day, requests_per_unit: 20}}
`
	for _, stop := range []bool{false, true} {
		t.Run(fmt.Sprint("stop ", stop), func(t *testing.T) {
			r := newRig(t, another, func(o *Options, _ *Switches) { o.Stop = stop })
			for i := range 25 {
				want := fmt.Sprintf("OK OK:%d", 19-i)
				if i >= 20 {
					want = "OVER OVER:0"
				}
				if got := brief(r.ask(t, request("another", descriptor("key2", "rand")))); got != want {
					t.Fatalf("hit %d: %s, want %s", i, got, want)
				}
				over, near := max(0, uint64(max(0, i-19))), uint64(min(4, max(0, i-15)))
				if got, want := r.counts("another.key2"), [7]uint64{uint64(i + 1), over, near, uint64(min(i+1, 20))}; got != want {
					t.Fatalf("hit %d: statistics %v, want %v", i, got, want)
				}
			}
			for i := range 15 {
				first, want := 19-i, ""
				if stop {
					first = max(first, 10)
				}
				want = fmt.Sprintf("OK OK:%d OK:%d", first, 9-i)
				if i >= 10 {
					want = fmt.Sprintf("OVER OK:%d OVER:0", first)
				}
				got := brief(r.ask(t, request("another", descriptor("key2", "rand2"), descriptor("key3", "rand2"))))
				if stop && i >= 10 {
					want = "OVER OK:10 OVER:0" // the eleventh hit on key2 is held back
				}
				if got != want {
					t.Fatalf("pair %d: %s, want %s", i, got, want)
				}
			}
			first := r.ask(t, request("another", descriptor("key4", "v"))).Statuses[0].DurationUntilReset.Seconds
			r.lone.advance(2 * time.Second)
			if second := r.ask(t, request("another", descriptor("key4", "v"))).Statuses[0].DurationUntilReset.Seconds; second != first-2 {
				t.Errorf("reset in %d s, then in %d s", first, second)
			}
		})
	}
}

// Addends that cross thresholds, each from a count that was brought about by an earlier addend.
func TestStatistics(t *testing.T) {
	for _, tt := range []struct {
		limit          uint32
		unit           string
		before, addend uint64
		want           string
		counts         [4]uint64 // total, over, near, within
	}{
		{15, "hour", 10, 1, "OK OK:4", [4]uint64{1, 0, 0, 1}},
		{15, "hour", 12, 1, "OK OK:2", [4]uint64{1, 0, 1, 1}},
		{15, "hour", 15, 1, "OVER OVER:0", [4]uint64{1, 1, 0, 0}},
		{20, "second", 2, 3, "OK OK:15", [4]uint64{3, 0, 0, 3}},
		{8, "second", 5, 2, "OK OK:1", [4]uint64{2, 0, 1, 2}},
		{20, "second", 16, 3, "OK OK:1", [4]uint64{3, 0, 3, 3}},
		{20, "second", 19, 3, "OVER OVER:0", [4]uint64{3, 2, 1, 0}},
		{20, "second", 15, 7, "OVER OVER:0", [4]uint64{7, 2, 4, 0}},
		{10, "second", 27, 3, "OVER OVER:0", [4]uint64{3, 3, 0, 0}},
		{10, "second", 9, 0, "OK OK:1", [4]uint64{0, 0, 0, 0}},
		{10, "second", 12, 0, "OVER OVER:0", [4]uint64{0, 0, 0, 0}},
		{0, "second", 0, 5, "OVER OVER:0", [4]uint64{5, 5, 0, 0}},
		{10, "hour", 3, math.MaxUint64, "OVER OVER:0", [4]uint64{math.MaxUint64, math.MaxUint64 - 10, 2, 0}},
		{10, "hour", math.MaxUint64, 4, "OVER OVER:0", [4]uint64{4, 4, 0, 0}},
	} {
		r := newRig(t, fmt.Sprintf("{domain: d, descriptors: [{key: k, rate_limit: {unit: %s, requests_per_unit: %d}}]}", tt.unit, tt.limit))
		r.ask(t, request("d", addend(descriptor("k", "v"), tt.before)))
		old := r.counts("d.k")
		got := brief(r.ask(t, request("d", addend(descriptor("k", "v"), tt.addend))))
		now := r.counts("d.k")
		if got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
		for i, want := range tt.counts {
			if n := now[i] - old[i]; n != want {
				t.Errorf("%+v: statistic %d rose by %d", tt, i, n)
			}
		}
	}
}

// Two limits in stop mode: the one that would fit is not charged once the other goes over, yet its statistics are.
func TestStatisticsStop(t *testing.T) {
	r := newRig(t, `
domain: d
descriptors:
  - {key: k5, rate_limit: {unit: hour, requests_per_unit: 15}}
  - {key: k6, rate_limit: {unit: hour, requests_per_unit: 14}}`, func(o *Options, _ *Switches) { o.Stop = true })
	pair := func(n uint64) string {
		return brief(r.ask(t, request("d", addend(descriptor("k5", "v"), n), addend(descriptor("k6", "v"), n))))
	}
	pair(10)
	first, second := r.counts("d.k5"), r.counts("d.k6")
	for i, want := range []string{"OK OK:4 OK:3", "OK OK:2 OK:1", "OVER OK:2 OVER:0"} {
		if got := pair(uint64(min(i+1, 2))); got != want {
			t.Errorf("step %d: %s, want %s", i, got, want)
		}
	}
	for i, want := range [][2]uint64{{5, 5}, {0, 1}, {2, 3}, {5, 3}} { // total, over, near, within
		if a, b := r.counts("d.k5")[i]-first[i], r.counts("d.k6")[i]-second[i]; a != want[0] || b != want[1] {
			t.Errorf("statistic %d rose by %d and %d, want %v", i, a, b, want)
		}
	}
}

func TestRefund(t *testing.T) {
	r := newRig(t, "{domain: d, descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 10}}]}")
	back := func(n uint64) *common.RateLimitDescriptor {
		return with(addend(descriptor("k", "v"), n), func(d *common.RateLimitDescriptor) { d.IsNegativeHits = true })
	}
	for _, tt := range []struct {
		d    *common.RateLimitDescriptor
		want string
	}{
		{addend(descriptor("k", "v"), 12), "OVER OVER:0"},
		{back(1), "OK OK:0"}, // still above the limit, but nobody is refused for giving back
		{back(4), "OK OK:3"},
		{back(1 << 63), "OK OK:10"},
		{descriptor("k", "v"), "OK OK:9"},
	} {
		if got := brief(r.ask(t, request("d", tt.d))); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.d, got, tt.want)
		}
	}
	if got := r.counts("d.k"); got != [7]uint64{13, 2, 2, 1, 0, 0, 5 + 1<<63} {
		t.Errorf("statistics %v", got)
	}
}

func TestAddends(t *testing.T) {
	r := newRig(t, "{domain: d, descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 100}}]}")
	whole := func(n uint32, ds ...*common.RateLimitDescriptor) *pb.RateLimitRequest {
		req := request("d", ds...)
		req.HitsAddend = n
		return req
	}
	for _, tt := range []struct {
		req  *pb.RateLimitRequest
		want string
	}{
		{whole(0, descriptor("k", "v")), "OK OK:99"},
		{whole(5, descriptor("k", "v")), "OK OK:94"},
		{whole(5, addend(descriptor("k", "v"), 2), descriptor("k", "v")), "OK OK:92 OK:87"},
		{whole(5, addend(descriptor("k", "v"), 0)), "OK OK:87"},
	} {
		if got := brief(r.ask(t, tt.req)); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.req, got, tt.want)
		}
	}
}

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

func TestShadow(t *testing.T) {
	r := newRig(t, basic)
	d := descriptor("shadow", "v")
	for _, want := range []string{"OK OK:0", "OK OK:0"} {
		if got := brief(r.ask(t, request("basic", d))); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	r.ask(t, request("basic", addend(d, 3)))
	if got := r.counts("basic.shadow"); got != [7]uint64{5, 4, 1, 1, 4} {
		t.Errorf("statistics %v", got)
	}

	r = newRig(t, basic, func(_ *Options, sw *Switches) { sw.Shadow = true })
	if got := brief(r.ask(t, request("basic", descriptor("zero", "v")))); got != "OK OVER:0" {
		t.Errorf("SHADOW_MODE: %s", got)
	}
	r.ask(t, request("basic", descriptor("key1", "v")))
	if got := r.counter("global_shadow_mode"); got != 1 {
		t.Errorf("global_shadow_mode %d", got)
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

// A limit without a unit cannot be counted. That is an error, but not one that lets the other limits of the request go.
func TestOverrideUnit(t *testing.T) {
	r := newRig(t, basic)
	for _, unit := range []typev3.RateLimitUnit{0, 8, -1, math.MaxInt32, math.MinInt32} {
		bad := override(descriptor("key1", "bad"), 3, unit)
		if _, err := r.try(t, request("basic", bad)); err == nil {
			t.Errorf("unit %d: no error", unit)
		}
		one := descriptor("one", fmt.Sprint(unit))
		if _, err := r.try(t, request("basic", bad, one)); err == nil {
			t.Errorf("unit %d beside another: no error", unit)
		}
		if got := brief(r.ask(t, request("basic", one, bad))); got != "OVER OVER:0 UNKNOWN" {
			t.Errorf("unit %d beside one that is over: %s", unit, got)
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
	opaque := strings.Replace(string(wire(t, request("d", descriptor("a", "1234")))), "1234", "\xff12\xfe", 1)
	resp, err := r.tryWire(t, []byte(opaque))
	if err != nil {
		t.Fatal(err)
	}
	entry := resp.DynamicMetadata.Fields["descriptors"].GetListValue().Values[0].GetStructValue().Fields["entries"].GetListValue().Values[0]
	if got := entry.GetStringValue(); got != "a=\uFFFD12\uFFFD" {
		t.Errorf("opaque value told as %q", got)
	}
}

func TestOversize(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		r := newRig(t, basic, func(_ *Options, sw *Switches) { sw.Shadow = shadow })
		req := request("basic")
		for range 10_000 {
			req.Descriptors = append(req.Descriptors, descriptor("key1", "v"))
		}
		resp := r.ask(t, req)
		want := pb.RateLimitResponse_OVER_LIMIT
		if shadow {
			want = pb.RateLimitResponse_OK
		}
		if resp.OverallCode != want || len(resp.Statuses) != 256 {
			t.Errorf("overall %v with %d statuses", resp.OverallCode, len(resp.Statuses))
		}
		if got := r.metric(t, "keyward_oversize_total", "descriptors"); got != 1 {
			t.Errorf("keyward_oversize_total %v", got)
		}
		if got := r.counts("basic.key1"); got != [7]uint64{} {
			t.Errorf("statistics %v", got)
		}
	}
}

func TestPaths(t *testing.T) {
	r := newRig(t, basic)
	var p owner.Path
	r.lone.after = func(_ []owner.Question, as []owner.Answer) {
		for i := range as {
			as[i].Path = p
		}
	}
	req := request("basic", descriptor("key1", "alice"))
	for _, step := range []struct {
		path owner.Path
		key  string
	}{
		{owner.Local, ""}, {owner.Local, "alice"}, {owner.Local, "bob"}, {owner.Forwarded, ""}, {owner.Forwarded, "alice"},
		{owner.Forwarded, "bob"}, {owner.Forwarded, "bob"}, {owner.Leased, "alice"}, {owner.Fallback, "alice"},
	} {
		p = step.path
		r.ask(t, req, Caller{Key: step.key})
	}
	for name, want := range map[string]float64{"direct": 2, "local": 1, "forwarded": 4, "lease": 1, "degraded": 1} {
		if got := r.metric(t, "keyward_decisions_total", "ok", name); got != want {
			t.Errorf("%v decisions by path %s, want %v", got, name, want)
		}
	}
	if got := r.metric(t, "keyward_direct_total"); got != 2 {
		t.Errorf("keyward_direct_total %v", got)
	}
	if ring, key := r.metric(t, "keyward_misrouted_total", "ring"), r.metric(t, "keyward_misrouted_total", "key"); ring != 1 || key != 2 {
		t.Errorf("misrouted: ring %v, key %v", ring, key)
	}
	if got := r.metric(t, "keyward_degraded_total", "local_share"); got != 1 {
		t.Errorf("keyward_degraded_total %v", got)
	}
	if got := r.counter("call.should_rate_limit.redis_error"); got != 1 {
		t.Errorf("redis_error %d", got)
	}
	if got := r.metric(t, "keyward_decision_duration_seconds"); got != 9 {
		t.Errorf("%v durations", got)
	}
}

// The owner hash of a question is Envoy's hash of the header that carries the same value.
func TestOwnerHash(t *testing.T) {
	r := newRig(t, basic)
	r.lone.after = func(qs []owner.Question, _ []owner.Answer) {
		if qs[0].Owner != ring.Hash("alice") {
			t.Errorf("owner hash %x, want %x", qs[0].Owner, ring.Hash("alice"))
		}
	}
	r.ask(t, request("basic", descriptor("key1", "alice")))
}

func TestCached(t *testing.T) {
	r := newRig(t, basic)
	r.lone.after = func(_ []owner.Question, as []owner.Answer) {
		as[0] = owner.Answer{Authority: owner.Cached}
		as[0].Over, as[0].Reset = true, time.Second
	}
	if got := brief(r.ask(t, request("basic", addend(descriptor("key1", "v"), 3)))); got != "OVER OVER:0" {
		t.Error(got)
	}
	if got := r.counts("basic.key1"); got != [7]uint64{3, 3, 0, 0, 0, 3} {
		t.Errorf("statistics %v", got)
	}
}

func TestDeadline(t *testing.T) {
	r := newRig(t, basic, func(o *Options, _ *Switches) { o.DecisionTimeout = time.Hour })
	for _, tt := range []struct{ timeout, want time.Duration }{{0, time.Hour}, {100 * time.Minute, time.Hour}, {10 * time.Minute, 6 * time.Minute}} {
		begin := time.Now().Round(0)
		r.ask(t, request("basic", descriptor("key1", "v")), Caller{Timeout: tt.timeout})
		deadline := time.Unix(0, r.lone.deadline.Load())
		if deadline.Before(begin.Add(tt.want)) || deadline.After(time.Now().Add(tt.want)) {
			t.Errorf("timeout %v: deadline in %v, want %v", tt.timeout, deadline.Sub(begin), tt.want)
		}
	}
}

// A decided request costs no allocation, up to the encoding of the response.
func TestServiceAllocs(t *testing.T) {
	r := newRig(t, basic+"  - {key: detail, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 9}}\n")
	for name, req := range map[string]*pb.RateLimitRequest{
		"one":      request("basic", descriptor("key1", "foo")),
		"several":  request("basic", descriptor("key1", "foo"), descriptor("one", "foo"), descriptor("nothing", "x")),
		"detailed": request("basic", descriptor("detail", "foo")),
		"override": request("basic", override(descriptor("key1", "foo"), 5, typev3.RateLimitUnit_MINUTE)),
		"unknown":  request("other", descriptor("key1", "foo")),
	} {
		message, out := wire(t, req), make([]byte, 0, 1000)
		if n := testing.AllocsPerRun(100, func() {
			c := r.NewCall()
			_ = r.Decode(c, message)
			r.Decide(c, Caller{Key: "foo"})
			out = c.Response.Append(out[:0])
			r.Release(c)
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkService(b *testing.B) {
	r := newRig(b, basic)
	message, out := wire(b, request("basic", descriptor("huge", "foo"))), make([]byte, 0, 1000)
	b.ReportAllocs()
	for b.Loop() {
		c := r.NewCall()
		_ = r.Decode(c, message)
		r.Decide(c, Caller{Key: "foo"})
		out = c.Response.Append(out[:0])
		r.Release(c)
	}
}
