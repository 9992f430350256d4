package rlqs

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/stats"
)

// FuzzDecode compares the decoder with package proto, and resolves what it has decoded.
func FuzzDecode(f *testing.F) {
	for _, m := range []*pb.RateLimitQuotaUsageReports{
		{Domain: "shop", BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			usage(1, 2, 5*time.Second, "0.api_key", "k", "1.path", "/pay"), usage(1, 0, -time.Second, "b", "1", "a", "2"),
		}},
		{Domain: "other"},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\x12\x08\x0a\x06\x0a\x04\x0a\x00\x12\x00"))
	f.Add([]byte("\x12\x0a\x0a\x02\x0a\x00\x12\x02\x08\x01\x12\x02\x10\x01"))
	service := rls.New(rls.Options{Decider: idle{}, Stats: stats.New(stats.Options{})})
	service.SetRules(loadRules(f, quotaRules), rls.Switches{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r usageReport
		err := r.decode(b)
		var want pb.RateLimitQuotaUsageReports
		oracle := proto.Unmarshal(b, &want)
		if errors.Is(err, errMalformed) && oracle == nil {
			t.Fatal("malformed only here")
		}
		if err == nil && oracle != nil && !strings.Contains(oracle.Error(), "UTF-8") {
			t.Fatalf("malformed for package proto: %v", oracle)
		}
		if err != nil {
			return
		}
		if oracle == nil {
			compareReports(t, &r, &want)
		}
		for i := range r.usages {
			resolve(t, service.Matcher(), &r.usages[i])
		}
	})
}

func compareReports(t *testing.T, r *usageReport, want *pb.RateLimitQuotaUsageReports) {
	if r.domain != want.GetDomain() || len(r.usages) != len(want.GetBucketQuotaUsages()) {
		t.Fatalf("%q, %d usages", r.domain, len(r.usages))
	}
	for i, w := range want.GetBucketQuotaUsages() {
		u := &r.usages[i]
		id := map[string]string{}
		for _, e := range u.id {
			id[e.Key] = e.Value
		}
		if !maps.Equal(id, w.GetBucketId().GetBucket()) || len(id) != len(u.id) ||
			u.allowed != min(w.GetNumRequestsAllowed(), MaxReported) || u.denied != min(w.GetNumRequestsDenied(), MaxReported) {
			t.Fatalf("%+v, want %v", u, w)
		}
		if d := w.GetTimeElapsed(); u.seconds != d.GetSeconds() || u.nanos != d.GetNanos() || u.elapsed() < 0 ||
			d.CheckValid() == nil && u.elapsed() != max(0, d.AsDuration()) {
			t.Fatalf("%v, want %v", u.elapsed(), d)
		}
	}
}

// resolve checks what must be true of every bucket.
func resolve(t *testing.T, m rls.RuleMatcher, u *reportedUsage) {
	key := string(appendKey(nil, "shop", u.id))
	id := slices.Clone(u.id)
	b := newBucket(m, key, "shop", u.id)
	if !slices.Equal(id, u.id) {
		t.Fatal("the id has changed")
	}
	if len(b.Entries) != len(id) || b.Limited() != (b.Request.Rule.Limit > 0) {
		t.Fatalf("%+v", b)
	}
	var back pb.BucketId
	if err := proto.Unmarshal(encodeID(id), &back); err != nil && !strings.Contains(err.Error(), "UTF-8") {
		t.Fatal(err)
	} else if err == nil && len(back.GetBucket()) != len(id) {
		t.Fatalf("%v", &back)
	}
	if b.Limited() {
		want := m.Match("shop", b.Entries)
		if want.Match.Digest != b.Match.Digest {
			t.Fatal("another digest")
		}
	}
}

// Ids have equal keys only if they are equal.
func TestKeysDiffer(t *testing.T) {
	keys := map[string][]config.Entry{}
	for _, id := range [][]config.Entry{
		{{Key: "a", Value: "b"}}, {{Key: "ab", Value: ""}}, {{Key: "", Value: "ab"}}, {{Key: "a", Value: ""}, {Key: "b", Value: ""}}, {{Key: "a", Value: "b\x00"}},
		{{Key: "a", Value: "b"}, {Key: "c", Value: "d"}}, {{Key: "a", Value: "b\x01c\x01d"}},
	} {
		k := string(appendKey(nil, "d", id))
		if keys[k] != nil {
			t.Errorf("%q and %q", keys[k], id)
		}
		keys[k] = id
	}
}

func TestPositions(t *testing.T) {
	for in, want := range map[string]string{
		"0.a,1.b": "a,b", "1.a,0.b": "b,a", "0.a": "a", "0.": "", "0.1.x": "1.x", "10.k,0.a,1.b,2.c,3.d,4.e,5.f,6.g,7.h,8.i,9.j": "a,b,c,d,e,f,g,h,i,j,k",
		"1.a": "-", "0.a,b": "-", "0.a,0.b": "-", "0.a,2.b": "-", "00.a": "-", "0.a,01.b": "-", "+0.a": "-", "-0.a": "-", "a": "-", ".a": "-", "65536.a": "-", "0a": "-",
	} {
		var id []config.Entry
		for _, k := range strings.Split(in, ",") {
			id = append(id, config.Entry{Key: k})
		}
		before := slices.Clone(id)
		if !arrange(id) {
			if want != "-" || !slices.Equal(id, before) {
				t.Errorf("%s: no positions, %v", in, id)
			}
			continue
		}
		var got []string
		for _, e := range id {
			got = append(got, e.Key)
		}
		if strings.Join(got, ",") != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}
