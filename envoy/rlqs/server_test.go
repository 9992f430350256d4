package rlqs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/stats"
)

// One Envoy reports, is assigned to, and leaves.
func TestStream(t *testing.T) {
	r := startRig(t, quotaRules)
	ctx, cancel := context.WithCancel(t.Context())
	c := openClient(ctx, t, r.dial(t), "pod-7")
	c.report("shop", usage(1, 0, 0, "0.api_key", "k"), usage(3, 4, 5*time.Second, "0.api_key", "k", "1.path", "/pay"))
	r.book.expect(t, "opened 1 pod-7 shop", "1 api_key=k limited 1/0 in 0s", "1 api_key=k,path=/pay limited 3/4 in 5s")
	one, two := r.book.bucket("api_key=k"), r.book.bucket("api_key=k,path=/pay")
	if err := r.Send(1, 40, []Assignment{
		{Key: one.Key, Kind: AssignPair, Tokens: 7, TTL: 9999 * time.Millisecond}, {Key: two.Key, Kind: AssignDeny, TTL: time.Millisecond},
	}); err != nil {
		t.Fatal(err)
	}
	c.hears("[0.api_key=k] 9s DENY_ALL", "[0.api_key=k] 9s 7, 1 in 2777h46m40s", "[0.api_key=k 1.path=/pay] 1s DENY_ALL")
	r.book.expect(t, "acked 1 40")
	if err := r.Send(1, 41, []Assignment{
		{Key: one.Key, Kind: AssignSame, Tokens: 7, TTL: time.Minute}, {Key: two.Key, Kind: AssignAllow, TTL: time.Hour},
	}); err != nil {
		t.Fatal(err)
	}
	c.hears("[0.api_key=k] 1m0s 7, 1 in 2777h46m40s", "[0.api_key=k 1.path=/pay] 1h0m0s ALLOW_ALL")
	r.book.expect(t, "acked 1 41")
	if err := r.Send(1, 42, []Assignment{{Key: one.Key, Kind: AssignPair, TTL: time.Minute}, {Key: two.Key, Kind: AssignAbandon}}); err != nil {
		t.Fatal(err)
	}
	c.hears("[0.api_key=k] 1m0s DENY_ALL", "[0.api_key=k 1.path=/pay] abandon")
	r.book.expect(t, "acked 1 42")
	if err := r.Send(1, 43, []Assignment{
		{Key: two.Key, Kind: AssignDeny}, {Key: one.Key, Kind: AssignDeny, TTL: time.Second},
	}); !errors.Is(err, ErrBucket) {
		t.Errorf("a bucket that was abandoned: %v", err)
	}
	c.hears("[0.api_key=k] 1s DENY_ALL")
	r.book.expect(t, "acked 1 43")
	c.report("", usage(0, 1, 0, "0.api_key", "k", "1.path", "/pay")) // the domain need not be repeated
	r.book.expect(t, "1 api_key=k,path=/pay limited 0/1 in 0s")
	if n := r.metric(t, "keyward_quota_streams", ""); n != 1 {
		t.Errorf("%v streams", n)
	}
	cancel()
	r.book.expect(t, "closed 1")
	if err := r.Send(1, 44, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a stream that is over: %v", err)
	}
}

// A bucket has the counter that the rate limit service has for its descriptor, and equal ids have equal keys.
func TestBucketIsThatOfTheDescriptor(t *testing.T) {
	r := startRig(t, quotaRules)
	conn := r.dial(t)
	want := r.service.Matcher().Match("shop", []config.Entry{{Key: "api_key", Value: "k"}, {Key: "path", Value: "/pay"}})
	keys := map[string]int{}
	for i, id := range [][]string{{"0.api_key", "k", "1.path", "/pay"}, {"path", "/pay", "api_key", "k"}, {"api_key", "k", "path", "/pay"}} {
		c := openClient(t.Context(), t, conn, "e")
		c.report("shop", usage(1, 0, 0, id...))
		r.book.expect(t, fmt.Sprintf("opened %d e shop", i+1), fmt.Sprintf("%d api_key=k,path=/pay limited 1/0 in 0s", i+1))
		b := r.book.bucket("api_key=k,path=/pay")
		if b.Request.Key != want.Request.Key || b.Request.RingPos != want.Request.RingPos || b.Request.Rule != want.Match.Limit || b.Match.Rule != want.Match.Rule {
			t.Errorf("%q: %+v, want %+v", id, b.Request, want.Request)
		}
		keys[b.Key]++
		_ = c.CloseSend()
		c.hears("end")
		r.book.expect(t, fmt.Sprintf("closed %d", i+1))
	}
	if len(keys) != 2 || keys[r.book.bucket("api_key=k,path=/pay").Key] != 2 {
		t.Errorf("keys %v", keys)
	}
}

// Ids without an enforced limit are admitted, and the book does not hear of them.
func TestUnlimitedIDs(t *testing.T) {
	r := startRig(t, quotaRules)
	c := openClient(t.Context(), t, r.dial(t), "")
	allowed := func(ids ...string) (all []string) {
		for _, id := range ids {
			all = append(all, "["+id+"] 24h0m0s ALLOW_ALL")
		}
		return all
	}
	c.report("shop", usage(1, 0, 0, "0.user", "bob"), usage(1, 0, 0, "user", "bob"), usage(1, 0, 0, "dark", "x"), usage(1, 0, 0, "b", "1", "a", "2"),
		usage(1, 0, 0, "0.none", "1"), usage(1, 0, 0, "path", "/pay"), usage(1, 0, 0, "1.api_key", "k"), usage(1, 0, 0, "0.b", "1", "1.a", "2"))
	c.hears(allowed("0.user=bob", "user=bob", "dark=x", "a=2 b=1", "0.none=1", "path=/pay", "1.api_key=k")...)
	r.book.expect(t, "opened 1 127.0.0.1 shop", "1 b=1,a=2 limited 1/0 in 0s")
	if none, ambiguous := r.metric(t, "keyward_quota_unmatched_total", "none"), r.metric(t, "keyward_quota_unmatched_total", "ambiguous"); none != 3 || ambiguous != 1 {
		t.Errorf("%v, %v", none, ambiguous)
	}
	c.report("shop", usage(1, 0, 0, "0.user", "bob"), usage(1, 0, 0, "user", "new")) // no second answer for the first
	c.hears(allowed("user=new")...)
}

// Rules whose limits are not assigned to Envoys get no answer: the Envoy keeps to its no_assignment_behavior, and nothing is
// admitted without a limit.
func TestRulesOfOwners(t *testing.T) {
	r := startRig(t, quotaRules)
	c := openClient(t.Context(), t, r.dial(t), "e")
	c.report("shop", usage(1, 0, 0, "0.calls", "x"), usage(1, 0, 0, "0.user", "bob"))
	c.hears("[0.user=bob] 24h0m0s ALLOW_ALL")
	r.book.expect(t, "opened 1 e shop")
	if n := r.metric(t, "keyward_quota_unmatched_total", "owner"); n != 1 {
		t.Errorf("%v ids of such rules", n)
	}
}

// With other rules, an id may get a limit or lose it.
func TestNewRules(t *testing.T) {
	r := startRig(t, quotaRules)
	c := openClient(t.Context(), t, r.dial(t), "e")
	ids := func() { c.report("shop", usage(1, 0, 0, "0.user", "bob"), usage(1, 0, 0, "0.api_key", "k")) }
	ids()
	c.hears("[0.user=bob] 24h0m0s ALLOW_ALL")
	r.book.expect(t, "opened 1 e shop", "1 api_key=k limited 1/0 in 0s")
	r.service.SetRules(loadRules(t, "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: 5}, metadata: {keyward: {mechanism: quota}}}\n"), rls.Switches{})
	ids()
	r.book.expect(t, "1 user=bob limited 1/0 in 0s", "1 api_key=k none 1/0 in 0s")
	if err := r.Send(1, 1, []Assignment{{Key: r.book.bucket("api_key=k").Key, Kind: AssignAllow, TTL: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	c.hears("[0.api_key=k] 1h0m0s ALLOW_ALL")
	r.book.expect(t, "acked 1 1")
	r.service.SetRules(loadRules(t, quotaRules), rls.Switches{Shadow: true})
	ids()
	r.book.expect(t, "1 user=bob unlimited 1/0 in 0s", "1 api_key=k shadow 1/0 in 0s")
}

func TestWithoutRules(t *testing.T) {
	r := startRig(t, "")
	c := openClient(t.Context(), t, r.dial(t), "e")
	c.report("shop", usage(1, 0, 0, "0.user", "bob"))
	c.hears("[0.user=bob] 24h0m0s ALLOW_ALL")
}

// Messages that no Envoy sends get a status.
func TestMalformed(t *testing.T) {
	r := startRig(t, quotaRules, func(o *Options, _ *rls.StartOptions) { o.Limits.Message = 10_000 })
	conn := r.dial(t)
	good := usage(1, 0, 0, "0.api_key", "k")
	many := make([]string, 0, 200)
	for i := range 65 {
		many = append(many, fmt.Sprintf("%d.k", i), "")
	}
	for want, reports := range map[string][]*pb.RateLimitQuotaUsageReports{
		"InvalidArgument: the first usage report has no domain":                       {{BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{good}}},
		"InvalidArgument: the domain of the stream changed":                           {{Domain: "shop"}, {Domain: "other"}},
		"InvalidArgument: usage without a bucket id":                                  {{Domain: "shop", BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{{NumRequestsAllowed: 1}}}},
		"InvalidArgument: a bucket id has too many entries":                           {{Domain: "shop", BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{usage(1, 0, 0, many...)}}},
		"ResourceExhausted: grpc: received message larger than max (10005 vs. 10000)": {{Domain: strings.Repeat("x", 10_002)}},
	} {
		c := openClient(t.Context(), t, conn, "")
		for _, m := range reports {
			if err := c.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		c.hears(want)
	}
	raw, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, QuotaMethod, grpc.ForceCodec(rawCodec{}))
	if err != nil {
		t.Fatal(err)
	}
	b := []byte("\x12\x05\x0a")
	if err := raw.SendMsg(&b); err != nil {
		t.Fatal(err)
	}
	if err := raw.RecvMsg(&b); err == nil || !strings.Contains(err.Error(), "malformed") {
		t.Error(err)
	}
	if n := r.metric(t, "keyward_quota_rejected_total", "malformed"); n != 5 {
		t.Errorf("%v counted", n)
	}
	if n := r.metric(t, "keyward_quota_streams", ""); n != 0 {
		t.Errorf("%v streams", n)
	}
}

// rawCodec passes messages through unchanged.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(b []byte, v any) error { *v.(*[]byte) = bytes.Clone(b); return nil }
func (rawCodec) Name() string                    { return "proto" }

// Streams, buckets and the bytes of their ids are limited.
func TestLimits(t *testing.T) {
	r := startRig(t, quotaRules, func(o *Options, _ *rls.StartOptions) {
		o.Limits = StreamLimits{Streams: 2, Buckets: 3}
	})
	conn := r.dial(t)
	c := openClient(t.Context(), t, conn, "e")
	c.report("shop", usage(1, 0, 0, "user", "1"), usage(1, 0, 0, "api_key", "2"), usage(1, 0, 0, "api_key", "3"), usage(1, 0, 0, "api_key", "4"), usage(1, 0, 0, "user", "5"))
	c.hears("[user=1] 24h0m0s ALLOW_ALL")
	r.book.expect(t, "opened 1 e shop", "1 api_key=2 limited 1/0 in 0s", "1 api_key=3 limited 1/0 in 0s")
	if n := r.metric(t, "keyward_quota_rejected_total", "buckets"); n != 2 {
		t.Errorf("%v buckets rejected", n)
	}
	c.report("shop", usage(0, 0, 5*time.Second, "user", "5"), usage(0, 1, 5*time.Second, "api_key", "4"))
	c.hears("[user=5] abandon") // it is not used
	if err := r.Send(1, 1, []Assignment{{Key: r.book.bucket("api_key=2").Key, Kind: AssignAbandon}}); err != nil {
		t.Fatal(err)
	}
	c.hears("[api_key=2] abandon")
	r.book.expect(t, "acked 1 1")
	c.report("shop", usage(1, 0, 0, "api_key", "4"))
	r.book.expect(t, "1 api_key=4 limited 1/0 in 0s")

	long := strings.Repeat("x", maxIDBytes)
	c.report("shop", usage(1, 0, 0, "api_key", long))
	c.hears("[api_key=" + long + "] 1h0m0s DENY_ALL")
	if n := r.metric(t, "keyward_quota_rejected_total", "oversize"); n != 1 {
		t.Errorf("%v long ids rejected", n)
	}

	second := openClient(t.Context(), t, conn, "e2")
	second.report("shop", usage(1, 0, 0, "api_key", "2"))
	r.book.expect(t, "opened 2 e2 shop", "2 api_key=2 limited 1/0 in 0s")
	openClient(t.Context(), t, conn, "e3").hears("ResourceExhausted: too many streams")
}

// The server ends streams when it stops and when their connections are drained.
func TestClose(t *testing.T) {
	r := startRig(t, quotaRules)
	conn := r.dial(t)
	c := openClient(t.Context(), t, conn, "e")
	c.report("shop", usage(1, 0, 0, "api_key", "2"))
	r.book.expect(t, "opened 1 e shop", "1 api_key=2 limited 1/0 in 0s")
	r.Close()
	c.hears("end")
	r.book.expect(t, "closed 1")
	openClient(t.Context(), t, conn, "e").hears("Unavailable: the member is stopping")
}

func TestDraining(t *testing.T) {
	r := startRig(t, quotaRules, func(_ *Options, o *rls.StartOptions) { o.ConnectionAge = 50 * time.Millisecond })
	conn := r.dial(t)
	for i := range 3 { // on other connections
		c := openClient(t.Context(), t, conn, "e")
		c.report("shop", usage(1, 0, 0, "api_key", "2"))
		r.book.expect(t, fmt.Sprintf("opened %d e shop", i+1), fmt.Sprintf("%d api_key=2 limited 1/0 in 0s", i+1))
		c.hears("end")
		r.book.expect(t, fmt.Sprintf("closed %d", i+1))
	}
}

// The book may assign while it is called, and while streams end.
func TestSendFromTheBook(t *testing.T) {
	r := startRig(t, quotaRules)
	r.book.react = func(stream uint64, usages []BucketUsage) {
		for i := range usages {
			_ = r.Send(stream, uint64(i), []Assignment{{Key: usages[i].Bucket.Key, Kind: AssignPair, Tokens: 1, TTL: time.Minute}})
		}
	}
	c := openClient(t.Context(), t, r.dial(t), "e")
	c.report("shop", usage(1, 0, 0, "api_key", "1"), usage(1, 0, 0, "api_key", "2"))
	c.hears("[api_key=1] 1m0s DENY_ALL", "[api_key=1] 1m0s 1, 1 in 2777h46m40s")
	c.hears("[api_key=2] 1m0s DENY_ALL", "[api_key=2] 1m0s 1, 1 in 2777h46m40s")
	r.book.expect(t, "opened 1 e shop", "1 api_key=1 limited 1/0 in 0s", "1 api_key=2 limited 1/0 in 0s", "acked 1 0", "acked 1 1")
}

// Requests that Envoys decide are in the statistics of their rules.
func TestUsageIsCounted(t *testing.T) {
	var store *stats.StatStore
	r := startRig(t, quotaRules, func(o *Options, so *rls.StartOptions) {
		store = stats.New(stats.Options{})
		service := rls.New(rls.Options{Decider: idle{}, Stats: store})
		service.SetRules(loadRules(t, quotaRules+"- key: each\n  detailed_metric: true\n  rate_limit: {unit: minute, requests_per_unit: 1}\n  metadata: {keyward: {mechanism: quota}}\n"), rls.Switches{})
		o.Service, so.Service = service, service
	})
	c := openClient(t.Context(), t, r.dial(t), "e")
	c.report("shop", usage(3, 0, 0, "0.api_key", "k"), usage(0, 2, 0, "0.each", "x"))
	r.book.expect(t, "opened 1 e shop", "1 api_key=k limited 3/0 in 0s", "1 each=x limited 0/2 in 0s")
	c.report("shop", usage(0, 5, 5*time.Second, "0.api_key", "k"), usage(9, 0, 0, "0.none", "1"))
	r.book.expect(t, "1 api_key=k limited 0/5 in 5s")
	for key, want := range map[string][3]uint64{"shop.api_key": {8, 3, 5}, "shop.each_x": {2, 0, 2}} {
		s := store.Rule(key)
		if got := [3]uint64{s.TotalHits.Value(), s.WithinLimit.Value(), s.OverLimit.Value()}; got != want {
			t.Errorf("%s: total, within and over the limit %v, want %v", key, got, want)
		}
	}
}
