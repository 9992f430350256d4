package quota

import (
	"fmt"
	"testing"
	"time"
)

// bench is a Ledger with a holder that grants everything, and Envoys that acknowledge at once.
type bench struct {
	l    *Ledger
	now  int64
	q    KeyQuota
	keys []Key
}

func newBench(ids, envoys int, q KeyQuota) *bench {
	b := &bench{l: NewLedger(Options{}), now: 1e18 / int64(q.Window) * int64(q.Window), q: q}
	for i := range ids {
		b.keys = append(b.keys, fmt.Sprintf("key-%d", i))
	}
	for range 3 {
		for s := range Stream(envoys) {
			if b.l.Streams() <= int(s) {
				b.l.Opened(b.now, s, "")
			}
			b.report(s)
		}
		b.drive()
		b.now += int64(5 * time.Second)
	}
	return b
}

func (b *bench) drive() {
	for b.l.Next() <= b.now {
		work := b.l.Tick(b.now)
		for _, r := range work.Responses {
			b.l.Acked(b.now, r.Stream, r.Serial)
		}
		for _, h := range work.Asks {
			b.l.Granted(b.now, AskResult{WindowHits: h})
		}
	}
}

func (b *bench) report(s Stream) {
	for _, k := range b.keys {
		b.l.Report(b.now, BucketReport{Stream: s, Key: k, Allowed: 10, Elapsed: 5 * time.Second}, b.q)
	}
}

// BenchmarkReport measures the report of an Envoy with 1,000 ids that 50 Envoys have.
func BenchmarkReport(t *testing.B) {
	b := newBench(1000, 50, KeyQuota{Limit: 1e6, Window: 24 * time.Hour})
	t.ReportAllocs()
	s := Stream(0)
	for t.Loop() {
		b.report(s % 50)
		if s++; s%50 == 0 {
			t.StopTimer()
			b.now += int64(5 * time.Second)
			b.drive()
			t.StartTimer()
		}
	}
}

// BenchmarkTick measures the Tick that searches for leases that will not last, every 250 ms, with 50 Envoys and 1,000 keys.
func BenchmarkTick(t *testing.B) {
	b := newBench(1000, 50, KeyQuota{Limit: 1e6, Window: 24 * time.Hour})
	t.ReportAllocs()
	for t.Loop() {
		b.now += int64(scanInterval)
		b.drive()
	}
}

// BenchmarkTurn measures all Ticks of a window of 10 s, with 50 Envoys and 100 keys.
func BenchmarkTurn(t *testing.B) {
	b := newBench(100, 50, KeyQuota{Limit: 1e6, Window: 10 * time.Second})
	t.ReportAllocs()
	for t.Loop() {
		for end := b.now + int64(b.q.Window); b.now < end; {
			b.now = min(end, max(b.now+1, b.l.Next()))
			b.drive()
		}
	}
}
