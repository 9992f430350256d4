package rlqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
)

// stillStream is a stream without a connection, for what depends on time.
func stillStream(r *rig) *quotaStream {
	return &quotaStream{server: r.QuotaServer, number: 99, domain: "shop", buckets: map[string]*streamBucket{}}
}

// reports processes the usage of an id with hits at a time, and returns the actions for it and for others.
func (k *quotaStream) reports(t *testing.T, now time.Time, hits uint64, id ...string) (all []string) {
	t.Helper()
	u := reportedUsage{allowed: hits}
	for i := 0; i < len(id); i += 2 {
		u.id = append(u.id, config.Entry{Key: id[i], Value: id[i+1]})
	}
	response := k.sweep(now, k.usage(now, k.server.service.Matcher(), &u, nil))
	var m pb.RateLimitQuotaResponse
	if err := proto.Unmarshal(response, &m); err != nil {
		t.Fatal(err)
	}
	for _, a := range m.GetBucketAction() {
		all = append(all, describe(a))
	}
	slices.Sort(all)
	return all
}

// ALLOW_ALL is assigned again before it ends, and ids that are not used are abandoned: soon, if there are many.
func TestAllowedIDsOverTime(t *testing.T) {
	r := startRig(t, quotaRules, func(o *Options, _ *rls.StartOptions) { o.Limits.Buckets = 6 })
	k := stillStream(r)
	now := time.Unix(1_000_000, 0)
	want := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	want(k.reports(t, now, 1, "user", "1"), "[user=1] 24h0m0s ALLOW_ALL")
	want(k.reports(t, now, 1, "user", "2"), "[user=2] 24h0m0s ALLOW_ALL")
	want(k.reports(t, now, 1, "api_key", "k"))
	for range 12 {
		now = now.Add(59 * time.Minute)
		want(k.reports(t, now, 1, "user", "2"))
		want(k.reports(t, now, 1, "user", "1"))
	}
	now = now.Add(59 * time.Minute)
	want(k.reports(t, now, 1, "user", "1"), "[user=1] 24h0m0s ALLOW_ALL")
	want(k.reports(t, now, 1, "user", "2"), "[user=2] 24h0m0s ALLOW_ALL")
	now = now.Add(time.Minute)
	want(k.reports(t, now, 1, "user", "3"), "[user=1] abandon", "[user=2] abandon", "[user=3] 24h0m0s ALLOW_ALL") // four of six
	now = now.Add(time.Hour - time.Second)
	want(k.reports(t, now, 0, "user", "3"))
	now = now.Add(sweepEvery)
	want(k.reports(t, now, 0, "user", "3"), "[user=3] abandon")
	if len(k.buckets) != 1 { // that of the book stays
		t.Errorf("%d buckets", len(k.buckets))
	}
}

// An Envoy that does not read what it is sent loses its stream, and the book hears of it.
func TestUnread(t *testing.T) {
	r := startRig(t, quotaRules)
	c := openClient(t.Context(), t, r.dial(t), "e")
	long := strings.Repeat("x", 10_000)
	c.report("shop", usage(1, 0, 0, "api_key", long))
	r.book.expect(t, "opened 1 e shop", "1 api_key="+long+" limited 1/0 in 0s")
	key := r.book.bucket("api_key=" + long).Key
	var err error
	for i := range 1000 {
		if err = r.Send(1, uint64(i), []Assignment{{Key: key, Kind: AssignPair, Tokens: 1}}); err != nil {
			break
		}
	}
	if err == nil || errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	for got := ""; got != "closed 1"; {
		got = <-r.book.events
	}
	if n := r.metric(t, "keyward_quota_rejected_total", "unread"); n != 1 {
		t.Errorf("%v counted", n)
	}
}

// Streams come and go while others are assigned to, and rules change, for the race detector.
func TestRaces(t *testing.T) {
	r := startRig(t, quotaRules)
	kinds := []AssignmentKind{AssignPair, AssignSame, AssignDeny, AssignAllow, AssignAbandon}
	var senders sync.WaitGroup
	r.book.react = func(stream uint64, usages []BucketUsage) {
		key := usages[0].Bucket.Key
		senders.Go(func() {
			for i := range 20 {
				_ = r.Send(stream, uint64(i), []Assignment{{Key: key, Kind: kinds[i%len(kinds)], Tokens: 3, TTL: time.Minute}})
			}
		})
	}
	conn := r.dial(t)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for j := range 10 {
				ctx, cancel := context.WithCancel(t.Context())
				c := openClient(ctx, t, conn, fmt.Sprint(i))
				for n := range 5 {
					c.report("shop", usage(1, 0, 0, "api_key", fmt.Sprint(n)), usage(1, 0, 0, "user", fmt.Sprint(n)))
				}
				for range j % 3 / 2 { // the first id without a limit is answered
					c.hear()
				}
				if j%2 == 0 {
					_ = c.CloseSend()
				}
				cancel()
			}
		})
	}
	for i := range 20 {
		r.service.SetRules(loadRules(t, quotaRules), rls.Switches{Shadow: i%2 == 1})
	}
	all.Wait()
	r.Close()
	senders.Wait()
	opened, closed := 0, 0
	for r.metric(t, "keyward_quota_streams", "") > 0 {
		time.Sleep(time.Millisecond)
	}
	for end := time.Now().Add(20 * time.Second); ; {
		select {
		case e := <-r.book.events:
			opened += strings.Count(e, "opened ")
			closed += strings.Count(e, "closed ")
			continue
		default:
		}
		if opened == closed && opened > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d opened, %d closed", opened, closed)
		}
		time.Sleep(time.Millisecond)
	}
}
