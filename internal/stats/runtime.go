package stats

import "runtime"

// AddRuntime adds the gauges and counters of the Go runtime: ratelimit.go.*.
func (s *StatStore) AddRuntime() {
	const scope = "ratelimit.go."
	gauge := func(name string) *Gauge { return s.Gauge(scope + name) }
	alloc, heapAlloc, heapSys, heapIdle := gauge("alloc"), gauge("heapAlloc"), gauge("heapSys"), gauge("heapIdle")
	heapInuse, heapReleased, heapObjects := gauge("heapInuse"), gauge("heapReleased"), gauge("heapObjects")
	nextGC, lastGC, gcCPU, goroutines := gauge("nextGC"), gauge("lastGC"), gauge("gcCPUPercent"), gauge("numGoroutine")
	sys := gauge("sys")
	counter := func(name string) *StatCounter { return s.Counter(scope + name) }
	totalAlloc, mallocs, frees := counter("totalAlloc"), counter("mallocs"), counter("frees")
	pause, numGC := counter("pauseTotalNs"), counter("numGC")
	s.BeforeRead(func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		alloc.Set(m.Alloc)
		sys.Set(m.Sys)
		heapAlloc.Set(m.HeapAlloc)
		heapSys.Set(m.HeapSys)
		heapIdle.Set(m.HeapIdle)
		heapInuse.Set(m.HeapInuse)
		heapReleased.Set(m.HeapReleased)
		heapObjects.Set(m.HeapObjects)
		nextGC.Set(m.NextGC)
		lastGC.Set(m.LastGC)
		gcCPU.Set(uint64(m.GCCPUFraction * 100))
		goroutines.Set(uint64(runtime.NumGoroutine()))
		totalAlloc.n.Store(m.TotalAlloc)
		mallocs.n.Store(m.Mallocs)
		frees.n.Store(m.Frees)
		pause.n.Store(m.PauseTotalNs)
		numGC.n.Store(uint64(m.NumGC))
	})
}
