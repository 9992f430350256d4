//go:build !race

package owner

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// TestMemoryPerKey measures the memory of a Node for each key, as the kernel reports it, and the time of garbage
// collections. KEYWARD_LONG=1 uses ten million keys.
func TestMemoryPerKey(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	sizes := []int{1e6}
	if os.Getenv("KEYWARD_LONG") != "" {
		sizes = append(sizes, 1e7)
	}
	empty := collection()
	t.Logf("no keys: a collection takes %v of CPU", empty)
	for _, keys := range sizes {
		before := resident(t)
		n := alone(Options{MaxKeys: 2 * keys, DomainQuota: 2 * keys, Seed: [2]uint64{1, 2}, NoHot: true})
		for i := range keys {
			req := Request{Key: spread(i), RingPos: uint64(i), Hits: 1, Rule: limit.Rule{Window: time.Hour, Limit: 10}}
			n.Decide(t0, &req)
		}
		grown := resident(t)
		slots := 0
		for i := range n.shards {
			slots += n.shards[i].counters.Owned.Bytes()
		}
		each := float64(slots) / float64(keys)
		gc := collection()
		t.Logf("%d keys: %.1f bytes of table and %.1f of RSS a key; a collection takes %v of CPU",
			keys, each, float64(grown-before)/float64(keys), gc)
		if n.Stats(t0).Keys != keys || each > 68 {
			t.Errorf("%d keys, %.1f bytes each", n.Stats(t0).Keys, each)
		}
		runtime.KeepAlive(n)
	}
}

// resident returns the resident memory of the process, after free memory has been returned.
func resident(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// collection returns the mean CPU time that the garbage collector takes for marking.
func collection() time.Duration {
	const times = 5
	read := func() float64 {
		s := []metrics.Sample{{Name: "/cpu/classes/gc/mark/dedicated:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/assist:cpu-seconds"}}
		metrics.Read(s)
		return s[0].Value.Float64() + s[1].Value.Float64()
	}
	runtime.GC()
	begin := read()
	for range times {
		runtime.GC()
	}
	return time.Duration((read() - begin) / times * 1e9).Round(time.Microsecond)
}

// TestExpiryInSteps requires that keys that expire at one instant are dropped within three rounds of Ticks, each of
// which sweeps an eighth of the slots.
func TestExpiryInSteps(t *testing.T) {
	const keys = 200_000
	n := alone(Options{MaxKeys: 2 * keys, DomainQuota: 2 * keys, Seed: [2]uint64{1, 2}, NoHot: true})
	for i := range keys {
		req := Request{Key: spread(i), RingPos: uint64(i), Hits: 1, Rule: limit.Rule{Window: time.Hour, Limit: 10}}
		n.Decide(t0, &req)
	}
	ticks, later := 0, t0+int64(time.Hour)+int64(time.Second)
	for ; n.Stats(later).Keys > 0 && ticks < 100; ticks++ {
		n.Tick(later)
	}
	t.Logf("%d keys are gone after %d ticks", keys, ticks)
	if ticks > 3*sweepPart {
		t.Errorf("%d ticks", ticks)
	}
	for i := range n.shards {
		if b := n.shards[i].counters.Owned.Bytes(); b > 0 {
			t.Fatalf("%d bytes are left", b)
		}
	}
}
