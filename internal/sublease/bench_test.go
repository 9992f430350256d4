package sublease

import (
	"fmt"
	"testing"
	"time"
)

// fixed is memory in which every lease is always half spent.
type fixed struct{ slots []uint32 }

func (f *fixed) Put(_ Print, tokens uint32, _ int64) (uint32, bool) {
	f.slots = append(f.slots, tokens)
	return uint32(len(f.slots) - 1), true
}

func (f *fixed) Left(slot uint32) (uint32, bool) {
	f.slots[slot] -= min(1, f.slots[slot])
	return f.slots[slot], true
}

func (f *fixed) Add(slot, tokens uint32) (uint32, bool) {
	left := f.slots[slot]
	f.slots[slot] += tokens
	return left, true
}

func (f *fixed) Remove(slot uint32) (uint32, bool) { return f.slots[slot], true }

// BenchmarkTick looks at 8,192 leases that are used at 50 hits a second, as often as a sidecar does 50 times a second.
func BenchmarkTick(b *testing.B) {
	const keys = 8192
	book, now := NewBook(Options{}), int64(1000*time.Hour)
	book.Opened(1, &fixed{})
	for i := range uint64(keys) {
		book.Lease(now, 1, Print{i, 1}, fmt.Sprint("key ", i), Limit{1_000_000, time.Hour})
	}
	b.ReportAllocs()
	for b.Loop() {
		now += int64(TickInterval)
		for _, h := range book.Tick(now).Asks {
			book.Granted(now, Lot{KeyHits: h, Left: 500_000, Known: true})
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys, "ns/lease")
}

// BenchmarkGranted adds a lot of one key while 8,192 others have leases, as a sidecar does for each answer of an owner.
func BenchmarkGranted(b *testing.B) {
	const keys = 8192
	book, now := NewBook(Options{}), int64(1000*time.Hour)
	book.Opened(1, &fixed{})
	for i := range uint64(keys) {
		book.Lease(now, 1, Print{i, 1}, fmt.Sprint("key ", i), Limit{1_000_000, time.Hour})
	}
	book.Tick(now)
	i := 0
	for b.Loop() {
		i++
		book.Granted(now, Lot{KeyHits: KeyHits{Key: fmt.Sprint("key ", i%keys), Hits: 8}, Left: 500_000, Known: true})
		book.Tick(now)
	}
}
