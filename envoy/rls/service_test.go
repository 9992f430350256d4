package rls

import (
	"fmt"
	"math"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

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

// brief formats a response: the overall code, then each status as code:remaining.
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

// The sequence of an integration test of envoyproxy/ratelimit.
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

// Addends that cross thresholds, each from a count that an earlier addend produced. Two limits in stop mode: the one
// with room is not charged once the other is exceeded, but its statistics are. A limit without a unit cannot be
// counted: that is an error, but the other limits of the call still apply.
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

// The owner hash of a request is Envoy's hash of the header that carries the same value.
func TestOwnerHash(t *testing.T) {
	r := newRig(t, basic)
	r.lone.after = func(qs []owner.Request, _ []owner.Result) {
		if qs[0].RingPos != ring.Hash("alice") {
			t.Errorf("owner hash %x, want %x", qs[0].RingPos, ring.Hash("alice"))
		}
	}
	r.ask(t, request("basic", descriptor("key1", "alice")))
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

func BenchmarkService(b *testing.B) {
	r := newRig(b, basic)
	message, out := encodeRequest(b, request("basic", descriptor("huge", "foo"))), make([]byte, 0, 1000)
	b.ReportAllocs()
	for b.Loop() {
		out = r.serve(message, "foo", out)
	}
}
