package rls

import (
	"fmt"
	"math"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/owner"
)

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

func TestNearLimitRatio(t *testing.T) {
	for _, tt := range []struct {
		ratio float32
		near  uint64
	}{{0, 10}, {0.333, 7}, {1, 0}, {1.5, 0}} {
		r := newRig(t, "{domain: d, descriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 10}}]}",
			func(o *Options, _ *Switches) { o.NearLimitRatio = tt.ratio })
		for range 10 {
			r.ask(t, request("d", descriptor("k", "v")))
		}
		if got := r.counts("d.k"); got != [7]uint64{10, 0, tt.near, 10} {
			t.Errorf("ratio %v: %v", tt.ratio, got)
		}
		r.ask(t, request("d", addend(descriptor("k", "w"), 11))) // crosses both thresholds
		if got := r.counts("d.k"); got != [7]uint64{21, 1, 2 * tt.near, 10} {
			t.Errorf("ratio %v, at once: %v", tt.ratio, got)
		}
	}
}

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

// A descriptor of 0 hits whose key is over its limit keeps the others from being charged, like any other.
func TestStopByCheck(t *testing.T) {
	r := newRig(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: b, rate_limit: {unit: hour, requests_per_unit: 9}}`, func(o *Options, _ *Switches) { o.Stop = true })
	r.ask(t, request("d", addend(descriptor("a", "v"), 3)))
	for range 2 {
		if got := brief(r.ask(t, request("d", addend(descriptor("a", "v"), 0), descriptor("b", "v")))); got != "OVER OVER:0 OK:9" {
			t.Error(got)
		}
	}
	if a, b := r.counts("d.a"), r.counts("d.b"); a != [7]uint64{3, 1, 1} || b != [7]uint64{2, 0, 0, 2} {
		t.Errorf("statistics %v and %v", a, b)
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
		{back(1), "OK OK:0"}, // still above the limit, but refunds are never denied
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

func TestPaths(t *testing.T) {
	r := newRig(t, basic)
	var p owner.Path
	r.lone.after = func(_ []owner.Request, as []owner.Result) {
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

// TestSubKeys checks that a call which the route of a hot key sent to one of its members does not count as misrouted.
func TestSubKeys(t *testing.T) {
	for _, row := range []struct {
		path                        owner.Path
		key, value                  string
		counted                     string
		direct, wrongRing, wrongKey float64
	}{
		{owner.Leased, "alice#3", "alice", "lease", 0, 0, 0},
		{owner.Local, "alice#3", "alice", "lease", 0, 0, 0},
		{owner.Forwarded, "alice#12", "alice", "forwarded", 0, 0, 0},
		{owner.Forwarded, "alice#", "alice", "forwarded", 0, 0, 1},
		{owner.Forwarded, "alice#3x", "alice", "forwarded", 0, 0, 1},
		{owner.Forwarded, "#3", "alice", "forwarded", 0, 0, 1},
		{owner.Forwarded, "bob#3", "alice", "forwarded", 0, 0, 1},
		{owner.Forwarded, "order#3", "order#3", "forwarded", 0, 1, 0}, // a value that only looks like one
		{owner.Local, "order#3", "order#3", "direct", 1, 0, 0},
		{owner.Forwarded, "order#3#1", "order#3", "forwarded", 0, 0, 0},
	} {
		r := newRig(t, basic)
		r.lone.after = func(_ []owner.Request, as []owner.Result) { as[0].Path = row.path }
		r.ask(t, request("basic", descriptor("key1", row.value)), Caller{Key: row.key})
		if got := r.metric(t, "keyward_decisions_total", "ok", row.counted); got != 1 {
			t.Errorf("%+v: path %s counted %v", row, row.counted, got)
		}
		ring, key := r.metric(t, "keyward_misrouted_total", "ring"), r.metric(t, "keyward_misrouted_total", "key")
		if direct := r.metric(t, "keyward_direct_total"); direct != row.direct || ring != row.wrongRing || key != row.wrongKey {
			t.Errorf("%+v: direct %v, misrouted %v and %v", row, direct, ring, key)
		}
	}
}

func TestCached(t *testing.T) {
	r := newRig(t, basic)
	r.lone.after = func(_ []owner.Request, as []owner.Result) {
		as[0] = owner.Result{Authority: owner.Cached}
		as[0].Over, as[0].Reset = true, time.Second
	}
	if got := brief(r.ask(t, request("basic", addend(descriptor("key1", "v"), 3)))); got != "OVER OVER:0" {
		t.Error(got)
	}
	if got := r.counts("basic.key1"); got != [7]uint64{3, 3, 0, 0, 0, 3} {
		t.Errorf("statistics %v", got)
	}
}
