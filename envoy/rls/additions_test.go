package rls

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/owner"
)

// allAdditions are all of them, with numbers for the names of authorities and paths.
func allAdditions() Additions {
	return Additions{
		RetryAfter: true, RateLimitFields: true, DecisionHeaders: true, DecisionMetadata: true, DelayHeader: "x-delay",
		Authority: func(a owner.Authority) string { return fmt.Sprint("a", uint8(a)) },
		Path:      func(p owner.Path) string { return fmt.Sprint("p", uint8(p)) },
	}
}

// added returns the headers of a response as name=value, separated by "; ".
func added(headers []*core.HeaderValue) string {
	var all []string
	for _, h := range headers {
		all = append(all, h.Key+"="+h.Value)
	}
	return strings.Join(all, "; ")
}

const additionRules = `
domain: d
descriptors:
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: named, rate_limit: {unit: hour, requests_per_unit: 9, name: 'a "b" ü'}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: short, rate_limit: {unit: second, requests_per_unit: 5}, metadata: {keyward: {window: 500ms}}}
  - {key: free, rate_limit: {unlimited: true}}
  - key: plan
    value: gold
    descriptors:
      - {key: user, rate_limit: {unit: second, requests_per_unit: 10}, metadata: {keyward: {algorithm: leaky_bucket, burst: 20}}}`

// TestNoAdditions checks that a response without additions is that of envoyproxy/ratelimit.
func TestNoAdditions(t *testing.T) {
	r := newRig(t, additionRules)
	for range 3 {
		resp := r.ask(t, request("d", descriptor("minute", "x"), descriptor("plan", "gold", "user", "u")))
		if resp.ResponseHeadersToAdd != nil || resp.RequestHeadersToAdd != nil || resp.DynamicMetadata != nil {
			t.Errorf("response: %v", resp)
		}
	}
}

// TestRetryAfter checks that denials, and only these, have the header, with the longest time of those that deny.
func TestRetryAfter(t *testing.T) {
	r := newRig(t, additionRules, func(o *Options, _ *Switches) { o.Additions.RetryAfter = true })
	ask := func(want string, ds ...string) {
		t.Helper()
		req := &pb.RateLimitRequest{Domain: "d"}
		for _, d := range ds {
			req.Descriptors = append(req.Descriptors, descriptor(d, "x"))
		}
		if got := added(r.ask(t, req).ResponseHeadersToAdd); got != want {
			t.Errorf("%v: %q, want %q", ds, got, want)
		}
	}
	ask("", "minute")
	ask("", "minute", "named")
	ask("Retry-After=58", "minute", "named", "shadow") // the others reset later, and do not deny
	ask("", "shadow", "named", "free", "none")
	r.ask(t, request("d", addend(descriptor("named", "x"), 9)))
	ask("Retry-After=1378", "minute", "named")

	res := httptest.NewRecorder()
	(&jsonHandler{Service: r.Service}).ServeHTTP(res, httptest.NewRequest(http.MethodPost, "/json",
		strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"minute","value":"x"}]}]}`)))
	if h := res.Header().Values("Retry-After"); res.Code != http.StatusTooManyRequests || !slices.Equal(h, []string{"58"}) {
		t.Errorf("/json: %d with Retry-After %q", res.Code, h)
	}

	r.SetRules(load(t, additionRules), Switches{Shadow: true})
	ask("", "minute", "named")

	large := newRig(t, additionRules, func(o *Options, _ *Switches) {
		o.Additions.RetryAfter, o.Limits.Value = true, 3
	})
	if got := added(large.ask(t, request("d", descriptor("minute", "x"))).ResponseHeadersToAdd); got != "Retry-After=1" {
		t.Errorf("a request that is too large: %q", got)
	}
}

// TestRateLimitFields checks the fields of the IETF's draft.
func TestRateLimitFields(t *testing.T) {
	r := newRig(t, additionRules, func(o *Options, _ *Switches) { o.Additions.RateLimitFields = true })
	for _, tt := range []struct {
		req  *pb.RateLimitRequest
		want string
	}{
		{request("d", descriptor("minute", "x")), `RateLimit-Policy="minute";q=2;w=60; RateLimit="minute";r=1;t=58`},
		{
			request("d", descriptor("shadow", "x"), descriptor("named", "x"), descriptor("free", ""), descriptor("short", "x")),
			`RateLimit-Policy="a \"b\" _";q=9;w=3600, "short";q=5; RateLimit="a \"b\" _";r=8;t=1378, "short";r=4;t=1`,
		},
		{
			request("d", descriptor("plan", "gold", "user", "u")),
			`RateLimit-Policy="plan_gold.user";q=10;w=1;keyward-burst=20; RateLimit="plan_gold.user";r=19;t=1`,
		},
		{ // the same rule twice: the descriptor with less left
			request("d", descriptor("minute", "new"), descriptor("minute", "x"), descriptor("minute", "new")),
			`RateLimit-Policy="minute";q=2;w=60; RateLimit="minute";r=0;t=58`,
		},
		{request("d", override(descriptor("none", "x"), 3, typev3.RateLimitUnit_DAY)), `RateLimit-Policy="override";q=3;w=86400; RateLimit="override";r=2;t=84178`},
		{request("d", descriptor("free", ""), descriptor("none", ""), descriptor("shadow", "x")), ""},
	} {
		if got := added(r.ask(t, tt.req).ResponseHeadersToAdd); got != tt.want {
			t.Errorf("%v:\n%s, want\n%s", tt.req, got, tt.want)
		}
	}
}

// TestRateLimitFieldsOfHolds requires that a limit of requests in flight has a unit instead of a window, and that calls that
// settle holds, whose response is sent already, add no fields.
func TestRateLimitFieldsOfHolds(t *testing.T) {
	r := newRig(t, `domain: d
descriptors:
- {key: tokens, rate_limit: {unit: hour, requests_per_unit: 1000}, metadata: {keyward: {reserve: 300}}}
- {key: addend, rate_limit: {unit: hour, requests_per_unit: 1000}, metadata: {keyward: {reserve: 300, settle: addend, lapse: release}}}
- {key: streams, rate_limit: {unit: hour, requests_per_unit: 16}, metadata: {keyward: {algorithm: in_flight, window: 10m}}}
`, func(o *Options, _ *Switches) { o.Additions.RateLimitFields = true })
	for _, tt := range []struct {
		req  *pb.RateLimitRequest
		want string
	}{
		{
			request("d", descriptor("tokens", "x", HoldIDEntry, "1"), descriptor("streams", "x", HoldIDEntry, "1")),
			`RateLimit-Policy="tokens";q=1000;w=3600, "streams";q=16;qu="concurrent-requests"; RateLimit="tokens";r=700;t=1378, "streams";r=15`,
		},
		{request("d", descriptor("tokens", "x", HoldIDEntry, "1", HoldEntry, "commit"), descriptor("streams", "x", HoldIDEntry, "1", HoldEntry, "release")), ""},
		{request("d", descriptor("tokens", "x", HoldEntry, "release")), ""}, // names no hold
		{request("d", addend(descriptor("addend", "x"), 0)), `RateLimit-Policy="addend";q=1000;w=3600; RateLimit="addend";r=700;t=1378`},
		{request("d", addend(descriptor("addend", "x"), 40)), ""},
	} {
		if got := added(r.ask(t, tt.req).ResponseHeadersToAdd); got != tt.want {
			t.Errorf("%v:\n%s, want\n%s", tt.req, got, tt.want)
		}
	}
}

// TestDecisionOfResponse checks that a response describes the least exact decision that its code results from.
func TestDecisionOfResponse(t *testing.T) {
	how := map[string]owner.Result{}
	r := newRig(t, additionRules, func(o *Options, _ *Switches) {
		o.Additions = allAdditions()
		o.Additions.RateLimitFields = false
	})
	var asked []string
	r.lone.after = func(_ []owner.Request, as []owner.Result) {
		for i := range as {
			as[i].Authority, as[i].Path = how[asked[i]].Authority, how[asked[i]].Path
		}
	}
	full := owner.Result{Authority: owner.Full, Path: owner.Local}
	forwarded := owner.Result{Authority: owner.Full, Path: owner.Forwarded}
	share := owner.Result{Authority: owner.Share, Path: owner.Fallback}
	cached := owner.Result{Authority: owner.Cached, Path: owner.Local}
	for _, tt := range []struct {
		keys []string
		how  []owner.Result
		hits uint64
		want string
	}{
		{[]string{"named"}, []owner.Result{full}, 1, "x-keyward-authority=a0; x-keyward-path=p0"},
		{[]string{"named", "short"}, []owner.Result{full, forwarded}, 1, "x-keyward-authority=a0; x-keyward-path=p1"},
		{[]string{"named", "short"}, []owner.Result{forwarded, share}, 1, "x-keyward-authority=a2; x-keyward-path=p3"},
		{[]string{"named", "short"}, []owner.Result{share, forwarded}, 1, "x-keyward-authority=a2; x-keyward-path=p3"},
		{[]string{"named", "short"}, []owner.Result{share, cached}, 6, "Retry-After=1; x-keyward-authority=a6; x-keyward-path=p0"}, // only short denies
	} {
		asked = tt.keys
		req := &pb.RateLimitRequest{Domain: "d"}
		for i, k := range tt.keys {
			how[k] = tt.how[i]
			hits := uint64(1)
			if i > 0 {
				hits = tt.hits
			}
			req.Descriptors = append(req.Descriptors, addend(descriptor(k, fmt.Sprint(tt.hits, i)), hits))
		}
		resp := r.ask(t, req)
		if got := added(resp.ResponseHeadersToAdd); got != tt.want {
			t.Errorf("%v: %s, want %s", tt, got, tt.want)
		}
		fields := resp.DynamicMetadata.GetFields()["keyward"].GetStructValue().GetFields()
		want := fmt.Sprintf("x-keyward-authority=%s; x-keyward-path=%s", fields["authority"].GetStringValue(), fields["path"].GetStringValue())
		if len(resp.DynamicMetadata.Fields) != 1 || len(fields) != 2 || !strings.HasSuffix(tt.want, want) {
			t.Errorf("%v: metadata %v", tt, resp.DynamicMetadata)
		}
	}
	if resp := r.ask(t, request("d", descriptor("none", ""))); resp.DynamicMetadata != nil || resp.ResponseHeadersToAdd != nil {
		t.Errorf("a request without a limit: %v", resp)
	}
}

// TestDecisionNextToMetadata checks that the decision is added to the metadata of RESPONSE_DYNAMIC_METADATA.
func TestDecisionNextToMetadata(t *testing.T) {
	req := request("d", descriptor("minute", "x"))
	without := newRig(t, additionRules, func(_ *Options, sw *Switches) { sw.DynamicMetadata = true }).ask(t, req).DynamicMetadata
	got := newRig(t, additionRules, func(o *Options, sw *Switches) {
		sw.DynamicMetadata, o.Additions = true, allAdditions()
	}).ask(t, req).DynamicMetadata
	if got.Fields["keyward"].GetStructValue().GetFields()["authority"].GetStringValue() != "a0" {
		t.Errorf("metadata %v", got)
	}
	delete(got.Fields, "keyward")
	if len(without.Fields) == 0 || !proto.Equal(got, without) {
		t.Errorf("other metadata %v, want %v", got, without)
	}
}

// TestLeakyBucketDelays sends requests at once. Clients that wait for their delay are spread evenly over time.
func TestLeakyBucketDelays(t *testing.T) {
	r := newRig(t, additionRules, func(o *Options, _ *Switches) { o.Additions = allAdditions() })
	var waits []string
	for range 22 { // ten per second, and 20 fit
		resp := r.ask(t, request("d", descriptor("plan", "gold", "user", "u")))
		delay := resp.DynamicMetadata.Fields["keyward"].GetStructValue().Fields["delay"].GetNumberValue()
		if h := added(resp.ResponseHeadersToAdd); !strings.Contains(h+";", fmt.Sprintf("x-keyward-delay=%v;", delay)) {
			t.Errorf("delay %v, headers %s", delay, h)
		}
		waits = append(waits, added(resp.RequestHeadersToAdd))
	}
	var want []string
	for i := range 22 {
		switch {
		case i == 0 || i >= 20: // nothing to wait for, or denied
			want = append(want, "")
		default:
			want = append(want, fmt.Sprintf("x-delay=%d", 100*i))
		}
	}
	if !slices.Equal(waits, want) {
		t.Errorf("delays %q, want %q", waits, want)
	}
	r.lone.advance(1950 * time.Millisecond)
	if got := added(r.ask(t, request("d", descriptor("plan", "gold", "user", "u"))).RequestHeadersToAdd); got != "x-delay=100" {
		t.Errorf("with half a hit left in the bucket: %q", got)
	}
}

// TestFairReason checks that a denial which leaves the rest of a limit to other tenants has a reason, unless another
// limit is used up.
func TestFairReason(t *testing.T) {
	fair := map[string]bool{}
	var asked []string
	r := newRig(t, additionRules, func(o *Options, _ *Switches) {
		o.Additions = allAdditions()
		o.Additions.RateLimitFields, o.Additions.RetryAfter = false, false
	})
	r.lone.after = func(_ []owner.Request, as []owner.Result) {
		for i := range as {
			if fair[asked[i]] {
				as[i].Over, as[i].FairShare = true, true
			}
		}
	}
	for _, tt := range []struct {
		keys   []string
		fair   map[string]bool
		hits   uint64
		reason string
	}{
		{[]string{"named", "short"}, nil, 1, ""},
		{[]string{"named", "short"}, map[string]bool{"short": true}, 1, "fair_share"},
		{[]string{"short", "named"}, map[string]bool{"short": true}, 100, ""}, // named is used up
		{[]string{"named", "short"}, map[string]bool{"short": true}, 100, ""},
	} {
		asked, fair = tt.keys, tt.fair
		req := &pb.RateLimitRequest{Domain: "d"}
		for _, k := range tt.keys {
			req.Descriptors = append(req.Descriptors, addend(descriptor(k, fmt.Sprint(tt.hits)), tt.hits))
		}
		resp := r.ask(t, req)
		header := strings.Contains(added(resp.ResponseHeadersToAdd), "x-keyward-reason=fair_share")
		reason := resp.DynamicMetadata.GetFields()["keyward"].GetStructValue().GetFields()["reason"].GetStringValue()
		if reason != tt.reason || header != (tt.reason != "") {
			t.Errorf("%v: reason %q, headers %v", tt, reason, resp.ResponseHeadersToAdd)
		}
	}
}
