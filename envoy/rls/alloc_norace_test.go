//go:build !race

package rls

import (
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/owner"
)

// Deciding a call does not allocate, up to encoding the response.
func TestServiceAllocs(t *testing.T) {
	r := newRig(t, basic+"  - {key: detail, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 9}}\n")
	for name, req := range map[string]*pb.RateLimitRequest{
		"one":      request("basic", descriptor("key1", "foo")),
		"several":  request("basic", descriptor("key1", "foo"), descriptor("one", "foo"), descriptor("nothing", "x")),
		"detailed": request("basic", descriptor("detail", "foo")),
		"override": request("basic", override(descriptor("key1", "foo"), 5, typev3.RateLimitUnit_MINUTE)),
		"unknown":  request("other", descriptor("key1", "foo")),
	} {
		message, out := encodeRequest(t, req), make([]byte, 0, 1000)
		if n := testing.AllocsPerRun(100, func() {
			out = r.serve(message, "foo", out)
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Nor does describing the decision in headers and metadata.
func TestDecisionAllocs(t *testing.T) {
	r := newRig(t, basic, func(o *Options, _ *Switches) {
		o.Additions = allAdditions()
		o.Additions.RateLimitFields = false
		o.Additions.Authority = func(owner.Authority) string { return "full" }
		o.Additions.Path = func(owner.Path) string { return "local" }
	})
	message, out := encodeRequest(t, request("basic", descriptor("key1", "foo"))), make([]byte, 0, 1000)
	if n := testing.AllocsPerRun(100, func() {
		out = r.serve(message, "foo", out)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// discard ignores names.
type discard struct{}

func (discard) Name(owner.Key, owner.KeyName, *lease.Terms) {}

// The same for a request for a hot key whose name was reported recently.
func TestHotAllocs(t *testing.T) {
	r := newRig(t, basic, func(o *Options, _ *Switches) { o.Name = discard{}.Name })
	r.lone.after = heat
	message, out := encodeRequest(t, request("basic", descriptor("key1", "foo"))), make([]byte, 0, 1000)
	if n := testing.AllocsPerRun(100, func() {
		out = r.serve(message, "foo#3", out)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// The same for a call that is decided later.
func TestBeginAllocs(t *testing.T) {
	r := newRig(t, basic, func(o *Options, _ *Switches) { o.Decider = newLate(t, o.Decider.(*lone)) })
	message, out, done := encodeRequest(t, request("basic", descriptor("key1", "foo"))), make([]byte, 0, 1000), make(catch, 1)
	if n := testing.AllocsPerRun(100, func() {
		c := r.NewCall()
		_ = r.Decode(c, message)
		if r.begin(c, Caller{Key: "foo"}, done) {
			t.Error("answered at once")
			return
		}
		<-done
		out = c.Response.Append(out[:0])
		r.Release(c)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
