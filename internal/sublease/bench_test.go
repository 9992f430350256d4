package sublease

import (
	"fmt"
	"testing"
	"time"
)

// fixed is memory with room for a number of leases.
type fixed struct {
	slots []uint32
	free  []uint32
}

func newFixed(room uint32) *fixed {
	f := &fixed{slots: make([]uint32, room)}
	for i := range room {
		f.free = append(f.free, i)
	}
	return f
}

func (f *fixed) Put(_ Print, tokens uint32, _ int64) (uint32, bool) {
	if len(f.free) == 0 {
		return 0, false
	}
	slot := f.free[len(f.free)-1]
	f.free, f.slots[slot] = f.free[:len(f.free)-1], tokens
	return slot, true
}

func (f *fixed) Left(slot uint32) (uint32, bool) { return f.slots[slot], true }

func (f *fixed) Add(slot, tokens uint32) (uint32, bool) {
	left := f.slots[slot]
	f.slots[slot] += tokens
	return left, true
}

func (f *fixed) Rivals(p Print, see func(uint32)) {
	for i := range uint64(8) {
		if len(f.free) == 0 {
			see(uint32((p[0]*8 + i) % uint64(len(f.slots))))
		}
	}
}

func (f *fixed) Remove(slot uint32) (uint32, bool) {
	left := f.slots[slot]
	f.free, f.slots[slot] = append(f.free, slot), 0
	return left, true
}

// BenchmarkTick looks at leases as a sidecar does, 50 times a second. Busy ones are used at 50 hits a second, the others at 2.
// With 50,000 keys, most of them have no room, and their hits are calls, of which the Envoy sends messages.
func BenchmarkTick(b *testing.B) {
	b.Run("busy/10000", func(b *testing.B) { benchmarkTick(b, 10_000, 1) })
	b.Run("slow/10000", func(b *testing.B) { benchmarkTick(b, 10_000, 25) })
	b.Run("slow/50000", func(b *testing.B) { benchmarkTick(b, 50_000, 25) })
}

// benchmarkTick has each key used once in a number of ticks.
func benchmarkTick(b *testing.B, keys, every int) {
	book, now := NewBook(Options{}), int64(1000*time.Hour)
	memory := newFixed(1 << 14)
	book.Opened(1, memory)
	for i := range uint64(keys) {
		book.Lease(now, 1, Print{i, 1}, fmt.Sprint("key ", i), Limit{1_000_000, time.Hour})
	}
	tick := func() {
		for range 2 {
			for _, h := range book.Tick(now).Asks {
				book.Granted(now, Lot{KeyHits: h.KeyHits, Left: 999_000, Known: true})
			}
		}
	}
	spend := func(i int) {
		now += int64(TickInterval)
		for j := i % every; j < len(memory.slots); j += every {
			memory.slots[j] -= min(1, memory.slots[j])
		}
		for j := i % (2 * every); j < keys; j += 2 * every { // two hits in a message
			if l := book.conns[1].lines[Print{uint64(j), 1}]; l == nil || !l.has {
				book.Interest(now, 1, Print{uint64(j), 1}, 2)
			}
		}
	}
	for i := range 1000 { // until the rates are known
		spend(i)
		tick()
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		spend(i)
		b.StartTimer()
		tick()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(keys), "ns/key")
	b.ReportMetric(float64(len(memory.slots)-len(memory.free)), "leases")
	b.ReportMetric(float64(book.Totals().Full)/(float64(now)/1e9-3.6e6), "full/s")
}

// BenchmarkGranted adds a lot of one key while 8,192 others have leases, as a sidecar does for each answer of an owner.
func BenchmarkGranted(b *testing.B) {
	const keys = 8192
	book, now := NewBook(Options{}), int64(1000*time.Hour)
	book.Opened(1, newFixed(1<<14))
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
