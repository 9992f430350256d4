package quota

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkReport measures the report of an Envoy with 1,000 ids, with the pushes that follow from it, and with 50 other
// Envoys on each key.
func BenchmarkReport(b *testing.B) {
	const ids, envoys = 1000, 50
	l, now, q := NewLedger(Options{}), int64(1e18), KeyQuota{Limit: 1e6, Window: time.Hour}
	keys := make([]Key, ids)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%d", i)
	}
	drive := func() {
		for l.Next() <= now {
			work := l.Tick(now)
			for _, r := range work.Responses {
				l.Acked(now, r.Stream, r.Serial)
			}
			for _, h := range work.Asks {
				l.Granted(now, h)
			}
		}
	}
	report := func(s Stream, allowed uint64) {
		for _, k := range keys {
			l.Report(now, BucketReport{Stream: s, Key: k, Allowed: allowed, Elapsed: 5 * time.Second}, q)
		}
		drive()
	}
	for s := range Stream(envoys) {
		l.Opened(now, s, "")
		report(s, 10)
		now += int64(100 * time.Millisecond)
	}
	for range 3 {
		for s := range Stream(envoys) {
			report(s, 10)
			now += int64(100 * time.Millisecond)
		}
	}
	b.ReportAllocs()
	n := Stream(0)
	for b.Loop() {
		report(n%envoys, 10)
		n++
		if now += int64(100 * time.Millisecond); now%int64(q.Window) > int64(50*time.Minute) {
			now -= int64(40 * time.Minute) // no turn of the window
		}
	}
}

// BenchmarkTurn measures the turn of a window for 50 Envoys with 100 keys each, all pushes included.
func BenchmarkTurn(b *testing.B) {
	const ids, envoys = 100, 50
	l, now, q := NewLedger(Options{}), int64(1e18), KeyQuota{Limit: 1e6, Window: 10 * time.Second}
	drive := func() {
		for l.Next() <= now {
			work := l.Tick(now)
			for _, r := range work.Responses {
				l.Acked(now, r.Stream, r.Serial)
			}
			for _, h := range work.Asks {
				l.Granted(now, h)
			}
		}
	}
	for s := range Stream(envoys) {
		l.Opened(now, s, "")
		for i := range ids {
			for range 2 {
				l.Report(now, BucketReport{Stream: s, Key: fmt.Sprintf("key-%d", i), Allowed: 10, Elapsed: 5 * time.Second}, q)
			}
		}
	}
	drive()
	b.ReportAllocs()
	for b.Loop() {
		for end := (now/int64(q.Window) + 1) * int64(q.Window); now < end; { // a window, from turn to turn
			now = min(end, max(now+1, l.Next()))
			drive()
		}
	}
}
