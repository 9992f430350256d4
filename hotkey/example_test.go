package hotkey_test

import (
	"fmt"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/ring"
)

// start is the time at which the examples start, in Unix nanoseconds.
var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC).UnixNano()

// A key with 900 requests per second and a limit of 1000 is spread over sub-keys on other members.
func ExamplePlanner() {
	r := ring.New([]ring.Member{{ID: "pod-0"}, {ID: "pod-1"}, {ID: "pod-2"}, {ID: "pod-3"}})
	fmt.Println("owner:", r.At(r.Owner(ring.Hash("alice"))).ID)

	p := hotkey.NewPlanner("pod-0", 0)
	hot := hotkey.HotCounter{
		Domain: "shop", Name: "user=alice", Owner: "alice", Rate: 900,
		Limit: 1000, Window: int64(time.Second), Splittable: true, SubKeys: 3,
	}
	to := hotkey.Targets{Ring: r, Load: map[ring.ID]float64{"pod-0": 50}}
	for _, route := range p.Plan(start, to, []hotkey.HotCounter{hot}, nil) {
		for _, s := range route.Subs {
			fmt.Println(s.Key, "on", s.Member)
		}
	}
	// Output:
	// owner: pod-1
	// alice#0 on pod-2
	// alice#10 on pod-3
	// alice#1 on pod-0
}

// Rates reports keys whose rate is above the baseline at two consecutive ticks.
func ExampleRates() {
	var rates hotkey.Rates
	key, now := hotkey.Digest{1, 2}, start
	baseline := hotkey.Baseline{Mean: 5, Absolute: 100}
	rates.Follow(now, key, 150, 0)
	for range 3 {
		for _, c := range rates.Tick(now, baseline) {
			fmt.Printf("hot: %v, %.0f requests per second\n", c.Hot, c.Rate)
		}
		now += int64(500 * time.Millisecond)
		rates.Count(key, now, 75)
	}
	// Output:
	// hot: true, 166 requests per second
}

// Sketch estimates the rate of any key in fixed memory.
func ExampleSketch() {
	s := hotkey.NewSketch(1)
	now := start
	var estimate float64
	for range 100 { // 100 requests for one key, with 900 others, in one second
		for range 9 {
			now += int64(time.Millisecond)
			s.Add(now, hotkey.Digest{uint64(now), 0})
		}
		now += int64(time.Millisecond)
		estimate = s.Add(now, hotkey.Digest{42, 42})
	}
	fmt.Printf("%.0f per second of %.0f\n", estimate, s.Total(now))
	// Output:
	// 100 per second of 1000
}
