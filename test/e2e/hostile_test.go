package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keyward/keyward/internal/lab"
)

// TestHostileRequests sends what no honest Envoy sends: every answer is a refusal or a plain error, nothing panics, memory
// stays bounded, and honest counters are not disturbed.
func TestHostileRequests(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": "domain: app\ndescriptors:\n  - key: k\n    rate_limit: {unit: hour, requests_per_unit: 5}\n"}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	start(t, l, names(3)...)
	client := dial(t, l.Sidecars[0].RLS, nil)
	for range 3 {
		ask(t, client, request("app", 1, "k", "honest"))
	}
	many := &rlsv3.RateLimitRequest{Domain: "app"}
	for i := range 10_000 {
		many.Descriptors = append(many.Descriptors, request("app", 1, "k", fmt.Sprint(i)).Descriptors[0])
	}
	deep := &ratelimitv3.RateLimitDescriptor{}
	for range 1000 {
		deep.Entries = append(deep.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: "k", Value: "v"})
	}
	over := func(what string, r *rlsv3.RateLimitRequest) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		res, err := client.ShouldRateLimit(ctx, r)
		if err != nil || res.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT {
			t.Errorf("%s: %v, %v, want OVER_LIMIT", what, res.GetOverallCode(), err)
		}
	}
	over("10,000 descriptors", many)
	over("a value of 65 KiB", request("app", 1, "k", strings.Repeat("v", 65<<10)))
	over("1,000 entries", &rlsv3.RateLimitRequest{Domain: "app", Descriptors: []*ratelimitv3.RateLimitDescriptor{deep}})
	huge := request("app", 1, "k", "huge")
	huge.Descriptors[0].HitsAddend = wrapperspb.UInt64(math.MaxUint64)
	over("an addend of 2^64-1", huge)
	over("and once more", huge)
	over("a counter that is full for ever", request("app", 1, "k", "huge"))
	if res := ask(t, client, request("app", 1, "k", strings.Repeat("v", 64<<10))); res.OverallCode != rlsv3.RateLimitResponse_OK {
		t.Errorf("a value of 64 KiB: %v", res)
	}

	unknown := request("app", 1, "k", "override")
	unknown.Descriptors[0].Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: typev3.RateLimitUnit_UNKNOWN}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if res, err := client.ShouldRateLimit(ctx, unknown); err == nil && res.OverallCode == rlsv3.RateLimitResponse_OK {
		t.Errorf("an override without a unit was admitted: %v", res)
	}
	for _, r := range []*rlsv3.RateLimitRequest{{}, {Domain: "app"}, {Descriptors: request("", 1, "k", "v").Descriptors}} {
		if res, err := client.ShouldRateLimit(ctx, r); err == nil {
			t.Errorf("%v: answered %v", r, res)
		}
	}
	if res := ask(t, client, peek("app", "k", "honest")); res.Statuses[0].LimitRemaining != 2 {
		t.Errorf("the honest counter has %d left, not 2", res.Statuses[0].LimitRemaining)
	}
	for _, body := range []string{"", "}", "{", `{"domain":5}`, strings.Repeat("[", 1<<20), "\x00\xff"} {
		res, err := http.Post("http://"+l.Sidecars[0].HTTP+"/json", "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			continue
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("/json %.20q: %s", body, res.Status)
		}
	}
}

// TestValuesAreBytes sends header values that are not UTF-8 through a real Envoy: they are counted, not waved through.
func TestValuesAreBytes(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": "domain: app\ndescriptors:\n  - key: api_key\n    rate_limit: {unit: hour, requests_per_unit: 3}\n"}, Expect: 3})
	members := names(3)
	start(t, l, members...)
	_, e := ownerDirect(t, l, "", "--timeout", "5s")
	for _, key := range []string{"a\xff\xfeb", "\x80", "caf\xe9", "\xf0\x28\x8c\x28"} {
		got := tally(sendKeys(e.Listener, []string{key, key, key, key, key, key, key, key}, 2))
		if got[200] != 3 || got[429] != 5 {
			t.Errorf("key %q: %v, want 3 admitted of 8", key, got)
		}
	}
	if m := sum(t, l, "keyward_misrouted_total"); m != 0 {
		t.Errorf("%v misrouted", m)
	}
}

// TestGarbageOnEveryPort writes noise to all ports of a member; the cluster must not notice.
func TestGarbageOnEveryPort(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": longRules}, Expect: 3, Args: []string{"--decision-timeout", "1s"}})
	members := names(3)
	start(t, l, members...)
	s := l.Sidecars[1]
	client := dial(t, l.Sidecars[0].RLS, nil)
	for range 5 {
		ask(t, client, request("app", 1, "api_key", "before"))
	}
	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise)
	texts := [][]byte{noise, []byte("GET / HTTP/1.1\r\n\r\n"), []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), noise[:1], {}, make([]byte, 4096), {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}}
	for _, addr := range []string{s.Gossip, s.Peer, s.RLS, s.Direct, s.HTTP, s.Debug, s.Metrics, s.XDS} {
		for _, text := range texts {
			if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
				_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
				_, _ = c.Write(text)
				_, _ = io.Copy(io.Discard, c)
				c.Close()
			} else {
				t.Errorf("%s does not listen: %v", addr, err)
			}
		}
	}
	u, err := net.Dial("udp", s.Gossip)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for i := range 2000 {
		_, _ = u.Write(noise[i : i+1+i%1400])
	}
	awaitRing(t, l, members...)
	if res := ask(t, client, peek("app", "api_key", "before")); res.Statuses[0].LimitRemaining != 95 {
		t.Errorf("the counter has %d left, not 95", res.Statuses[0].LimitRemaining)
	}
	for _, s := range l.Sidecars {
		if !s.Running() {
			t.Errorf("%s has ended", s.Name)
		}
		if rss, err := s.RSS(); err != nil || rss > 300<<20 {
			t.Errorf("%s uses %d MiB, %v", s.Name, rss>>20, err)
		}
	}
}

// TestFlood asks about far more keys than fit in memory: memory stays bounded, a spent key stays spent, and keys that no
// longer fit are admitted no more than their limit.
func TestFlood(t *testing.T) {
	l := newLab(t, lab.Options{
		Rules:  map[string]string{"app.yaml": "domain: app\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 5}\n"},
		Expect: 1, Args: []string{"--max-keys", "20000"},
	})
	start(t, l, "pod-a")
	s := l.Sidecars[0]
	client := dial(t, s.RLS, nil)
	spend := func(key string) (admitted int) {
		for range 8 {
			if ask(t, client, request("app", 1, "k", key)).OverallCode == rlsv3.RateLimitResponse_OK {
				admitted++
			}
		}
		return admitted
	}
	if n := spend("before"); n != 5 {
		t.Fatalf("%d admitted of a limit of 5", n)
	}
	const each, requests = 250, 1600 // 400,000 keys
	for i := range requests {
		flood := &rlsv3.RateLimitRequest{Domain: "app"}
		for j := range each {
			flood.Descriptors = append(flood.Descriptors, request("app", 1, "k", fmt.Sprintf("flood-%d-%d", i, j)).Descriptors[0])
		}
		ask(t, client, flood)
	}
	if n := spend("before"); n != 0 {
		t.Errorf("a spent key was admitted %d times after the flood", n)
	}
	if n := spend("after"); n > 5 {
		t.Errorf("a key that does not fit was admitted %d times, limit 5", n)
	}
	fam := metrics(t, s.Metrics)
	kept, overflow := value(fam, "keyward_keys", "table", "owned"), value(fam, "keyward_overflow_keys_total")
	rss, err := s.RSS()
	t.Logf("%v keys kept, at least %v in the sketch, %d MiB", kept, overflow, rss>>20)
	if kept > 20_000 || overflow == 0 || err != nil || rss > 200<<20 {
		t.Errorf("%v keys kept of at most 20,000, %v in the sketch, %d MiB, %v", kept, overflow, rss>>20, err)
	}
}
