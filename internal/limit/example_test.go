package limit_test

import (
	"fmt"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// A member charges a token bucket until no hit fits. The Decision contains the time until the next hit fits.
func ExampleRule_Take() {
	r := limit.Rule{Algorithm: limit.TokenBucket, Window: time.Minute, Limit: 60, Burst: 3}
	var s limit.State
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC).UnixNano()
	const writer = 7 // the number of the member that charges
	for range 4 {
		d := r.Take(&s, now, writer, 1)
		fmt.Println("over:", d.Over, "remaining:", d.Remaining, "reset:", d.Reset)
	}
	// Output:
	// over: false remaining: 2 reset: 1s
	// over: false remaining: 1 reset: 2s
	// over: false remaining: 0 reset: 3s
	// over: true remaining: 0 reset: 1s
}

// Two members charge the same key while a partition separates them. Their merged State contains the charges of both.
func ExampleRule_Merge() {
	r := limit.Rule{Algorithm: limit.FixedWindow, Window: time.Minute, Limit: 10}
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC).UnixNano()
	var a, b limit.State
	r.Take(&a, now, 2, 3)
	r.Take(&b, now, 3, 4)
	r.Merge(&a, &b)
	r.Merge(&a, &b) // merging again changes nothing
	fmt.Println("used:", r.Used(&a, now))
	// Output:
	// used: 7
}

// A counter that only one member charges needs no State: a Tally is three numbers.
func ExampleRule_TakeTally() {
	r := limit.Rule{Window: time.Minute, Limit: 2}
	now := time.Date(2026, 11, 23, 12, 0, 30, 0, time.UTC).UnixNano()
	var t limit.Tally
	for range 3 {
		var d limit.Decision
		t, d = r.TakeTally(t, now, 1)
		fmt.Println("over:", d.Over, "remaining:", d.Remaining, "reset:", d.Reset)
	}
	// Output:
	// over: false remaining: 1 reset: 30s
	// over: false remaining: 0 reset: 30s
	// over: true remaining: 0 reset: 30s
}
