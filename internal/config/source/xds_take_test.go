package source

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Responses of a server, one after the other.
func TestTakeAnswers(t *testing.T) {
	var got []string
	w := &xdsWatch{o: XDSOptions{}.withDefaults(), sink: func(e LoadResult) { got = append(got, outcome(e)) }}
	good := &discovery.DiscoveryResponse{TypeUrl: rateLimitConfigType, VersionInfo: "1", Nonce: "n1"}
	good.Resources = append(good.Resources, mustAny(t, resourceOf("r", "a", 1)))
	garbage := &discovery.DiscoveryResponse{TypeUrl: rateLimitConfigType, VersionInfo: "2", Nonce: "n2"}
	garbage.Resources = append(garbage.Resources, mustAny(t, resourceOf("r", "a", 1)))
	garbage.Resources[0].Value = []byte{0xff}
	other := &discovery.DiscoveryResponse{TypeUrl: resource.ClusterType, VersionInfo: "3", Nonce: "n3"}

	steps := []struct {
		answer  *discovery.DiscoveryResponse
		version string
		fault   string // part of the rejection; empty: acknowledged
		again   int    // how often it was rejected in a row
		events  int
	}{
		{good, "1", "", 0, 1},
		{garbage, "1", "resource 0", 1, 1},
		{garbage, "1", "resource 0", 2, 0},
		{garbage, "1", "resource 0", 3, 0},
		{other, "1", "response of type", 1, 1},
		{garbage, "1", "resource 0", 1, 1},
		{good, "1", "", 0, 1},
		{new(discovery.DiscoveryResponse), "1", "response of type", 1, 1},
	}
	for i, s := range steps {
		got = nil
		r := w.process(s.answer)
		if r.GetVersionInfo() != s.version || r.GetResponseNonce() != s.answer.GetNonce() || w.refused.times != s.again || len(got) != s.events {
			t.Errorf("step %d: %v, refused %d times, events %q", i, r, w.refused.times, got)
		}
		if text := r.GetErrorDetail().GetMessage(); (text == "") != (s.fault == "") || !strings.Contains(text, s.fault) {
			t.Errorf("step %d: fault %q", i, text)
		}
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{}.withDefaults()
	for failures, want := range map[int]time.Duration{1: 10, 2: 20, 3: 40, 4: 60, 5: 60, 1000: 60} {
		if got := b.after(failures, 0.5); got != want*time.Second {
			t.Errorf("after %d failures: %v", failures, got)
		}
		if lo, hi := b.after(failures, 0), b.after(failures, 1); lo != want*time.Second/2 || hi != want*time.Second*3/2 {
			t.Errorf("after %d failures: from %v to %v", failures, lo, hi)
		}
		b.Steady = true
		if got := b.after(failures, 0); got != want*time.Second {
			t.Errorf("steady, after %d failures: %v", failures, got)
		}
		b.Steady = false
	}
}

// Every response is either acknowledged or rejected.
func FuzzTakeAnswer(f *testing.F) {
	f.Add("1", rateLimitConfigType, rateLimitConfigType, []byte{})
	raw, err := proto.Marshal(resourceOf("r", "a", 1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("2", rateLimitConfigType, rateLimitConfigType, raw)
	f.Add("3", rateLimitConfigType, resource.ClusterType, raw)
	f.Fuzz(func(t *testing.T, version, typeURL, inner string, value []byte) {
		var events []LoadResult
		w := &xdsWatch{o: XDSOptions{}.withDefaults(), sink: func(e LoadResult) { events = append(events, e) }, version: "old"}
		answer := &discovery.DiscoveryResponse{VersionInfo: version, TypeUrl: typeURL, Nonce: "n"}
		answer.Resources = []*anypb.Any{{TypeUrl: inner, Value: value}}
		r := w.process(answer)
		if len(events) != 1 || (events[0].Rules == nil) != (events[0].Err != nil) {
			t.Fatalf("events: %+v", events)
		}
		want := version
		if events[0].Err != nil {
			want = "old"
		}
		if (r.GetErrorDetail() == nil) != (events[0].Err == nil) || r.GetVersionInfo() != want || r.GetResponseNonce() != "n" {
			t.Fatalf("said %v to %+v", r, events[0])
		}
		if _, err := proto.Marshal(r); err != nil && utf8.ValidString(version) {
			t.Fatalf("cannot be said: %v", err)
		}
	})
}
