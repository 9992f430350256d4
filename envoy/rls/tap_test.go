package rls

import (
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

const tapped = `domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: free, rate_limit: {unlimited: true}}
`

// every is a rate at which no decision is left out.
const every = 1e9

func TestTapShowsDecisions(t *testing.T) {
	r := newRig(t, tapped)
	var all, over, keyed, other []DecisionSample
	defer r.Tap(TapOptions{Rate: every}, func(s DecisionSample) { all = append(all, s) })()
	defer r.Tap(TapOptions{Rate: every, Over: true}, func(s DecisionSample) { over = append(over, s) })()
	defer r.Tap(TapOptions{Rate: every, Text: "k=bo"}, func(s DecisionSample) { keyed = append(keyed, s) })()
	defer r.Tap(TapOptions{Rate: every, Domain: "e"}, func(s DecisionSample) { other = append(other, s) })()
	for _, value := range []string{"al", "al", "bob"} {
		if _, err := r.try(t, &pb.RateLimitRequest{Domain: "d", HitsAddend: 2, Descriptors: request("d", descriptor("k", value)).Descriptors}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.try(t, request("d", descriptor("free", "x"))); err != nil {
		t.Fatal(err)
	}
	if len(all) != 4 || len(over) != 1 || len(keyed) != 1 || len(other) != 0 {
		t.Fatalf("%d of all, %d over, %d of a key, %d of another domain", len(all), len(over), len(keyed), len(other))
	}
	first := DecisionSample{
		Time: all[0].Time, Domain: "d", Descriptor: "k=al", Rule: "d.k", Hits: 2, Limit: 3, Remaining: 1, Owner: ring.Hash("al"),
		Code: OK, Op: owner.Take, Path: owner.Local, Authority: owner.Full, Counted: true,
	}
	if all[0] != first || first.Time.IsZero() {
		t.Errorf("%+v, want %+v", all[0], first)
	}
	if o := over[0]; o.Descriptor != "k=al" || o.Code != OverLimit || o.Remaining != 0 {
		t.Errorf("over: %+v", o)
	}
	if keyed[0].Descriptor != "k=bob" {
		t.Errorf("of a key: %+v", keyed[0])
	}
	if f := all[3]; f.Counted || f.Code != OK || f.Rule != "d.free" || f.Limit != 0 {
		t.Errorf("without a limit: %+v", f)
	}
}

func TestTapEnds(t *testing.T) {
	r := newRig(t, tapped)
	n := 0
	stop := r.Tap(TapOptions{Rate: every}, func(DecisionSample) { n++ })
	defer r.Tap(TapOptions{Rate: every}, func(DecisionSample) {})()
	ask := func() {
		if _, err := r.try(t, request("d", descriptor("k", "al"))); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	stop()
	ask()
	if n != 1 {
		t.Errorf("%d samples, one was asked for before the end", n)
	}
}

// answered returns a decided call with two descriptors.
func answered(t *testing.T, r *rig) *Call {
	c := r.NewCall()
	if err := r.Decode(c, encodeRequest(t, request("d", descriptor("k", "al"), descriptor("k", strings.Repeat("b", 2000))))); err != nil {
		t.Fatal(err)
	}
	r.Decide(c, Caller{})
	return c
}

func TestTapSparesTheRest(t *testing.T) {
	r := newRig(t, tapped)
	c := answered(t, r)
	seen := map[string]int{}
	defer r.Tap(TapOptions{Rate: 20}, func(s DecisionSample) {
		seen[s.Descriptor[:3]]++
		if len(s.Descriptor) > maxSampleText {
			t.Errorf("%d bytes of text", len(s.Descriptor))
		}
	})()
	for ms := range 20_000 {
		r.taps.show(c, clock.Add(time.Duration(ms)*time.Millisecond))
	}
	// About 400; less because a sample waits for the next call.
	if n := seen["k=a"] + seen["k=b"]; n < 350 || n > 420 {
		t.Errorf("%d samples in 20 s at 20 a second", n)
	}
	if seen["k=a"] < 100 || seen["k=b"] < 100 {
		t.Errorf("of two descriptors %v", seen)
	}
}

func TestTapIsConcurrent(t *testing.T) {
	r := newRig(t, tapped)
	var asking, tapping sync.WaitGroup
	message, done := encodeRequest(t, request("d", descriptor("k", "al"))), make(chan struct{})
	for range 4 {
		asking.Go(func() {
			for range 500 {
				c := r.NewCall()
				_ = r.Decode(c, message)
				r.Decide(c, Caller{})
				r.Release(c)
			}
		})
		tapping.Go(func() {
			for {
				stop := r.Tap(TapOptions{Rate: every, Text: "al"}, func(s DecisionSample) {
					if s.Descriptor != "k=al" {
						t.Errorf("%+v", s)
					}
				})
				select {
				case <-done:
					stop()
					return
				default:
					stop()
				}
			}
		})
	}
	asking.Wait()
	close(done)
	tapping.Wait()
	if r.taps.list.Load() != nil {
		t.Error("a tap is still active")
	}
}
