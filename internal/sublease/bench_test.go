package sublease

import (
	"fmt"
	"testing"
	"time"
)

// fixed is memory for any number of leases.
type fixed struct{ slots []uint32 }

func (f *fixed) Put(_ Print, tokens uint32, _ int64) (uint32, bool) {
	f.slots = append(f.slots, tokens)
	return uint32(len(f.slots) - 1), true
}

func (f *fixed) Left(slot uint32) (uint32, bool) {
	return f.slots[slot], true
}

func (f *fixed) Add(slot, tokens uint32) (uint32, bool) {
	left := f.slots[slot]
	f.slots[slot] += tokens
	return left, true
}

func (f *fixed) Rivals(Print, func(uint32)) {}

func (f *fixed) Remove(slot uint32) (uint32, bool) { return f.slots[slot], true }

// BenchmarkTick looks at 10,000 leases as a sidecar does, 50 times a second. Busy ones are used at 50 hits a second, the others
// at 2.
func BenchmarkTick(b *testing.B) {
	b.Run("busy", func(b *testing.B) { benchmarkTick(b, func(int) bool { return true }) })
	b.Run("slow", func(b *testing.B) { benchmarkTick(b, func(i int) bool { return i%25 == 0 }) })
}

func benchmarkTick(b *testing.B, used func(i int) bool) {
	const keys = 10_000
	book, now := NewBook(Options{}), int64(1000*time.Hour)
	memory := &fixed{}
	book.Opened(1, memory)
	for i := range uint64(keys) {
		book.Lease(now, 1, Print{i, 1}, fmt.Sprint("key ", i), Limit{1_000_000, time.Hour})
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now += int64(TickInterval)
		for j := range memory.slots {
			if used(i + j) {
				memory.slots[j] -= min(1, memory.slots[j])
			}
		}
		for _, h := range book.Tick(now).Asks {
			book.Granted(now, Lot{KeyHits: h.KeyHits, Left: 999_000, Known: true})
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
		book.Granted(now, Lot{KeyHits: KeyHits{Key: fmt.Sprint("key ", i%keys), Hits: 8}, Left: 999_000, Known: true})
		book.Tick(now)
	}
}
