package peer

import (
	"math"
	"runtime"
	"syscall"
	"time"

	"github.com/keyward/keyward/owner"
)

const (
	measureEvery  = time.Second
	startCapacity = 50_000 // requests a second, before the first measurement
	leastCapacity = 5_000  // requests a second: a process that is slower does other work
	leastShare    = .05    // of the processors; below it, most of the measured time may be other work
	overloadShare = .8     // of the processors; above it in two measurements in a row, the process is overloaded
	smoothing     = 8      // measurements over which an estimate is averaged

	fallbackBreak = 10 * time.Second // without a degraded result, after which degraded operation has ended
)

// meter estimates how many requests a second this process can decide, from the processor time that it uses.
type meter struct {
	at, cpu  int64 // of the last measurement: monotonic clock and processor time, in nanoseconds
	decided  uint64
	pace     float64 // requests decided in a second of one processor
	busy     int     // measurements in a row above overloadShare
	degraded uint64

	fallback, fallbackLast int64 // when results began to be degraded, and when the last one was; 0: not now
}

// workload is the result of a measurement.
type workload struct {
	capacity   float64 // requests a second with all processors
	used       float64 // requests a second that the used processor time is equivalent to
	overloaded bool
}

// measure processes a measurement at time at: the processor time, and the number of requests decided since the start.
func (m *meter) measure(at, cpu int64, decided uint64, processors int) workload {
	if m.at == 0 {
		m.pace = startCapacity / float64(processors)
	}
	took, worked, requests := at-m.at, cpu-m.cpu, float64(decided-m.decided)
	share := 0.0
	if m.at != 0 && took > 0 {
		share = float64(worked) / float64(took) / float64(processors)
	}
	if share > leastShare {
		m.pace += (requests/time.Duration(worked).Seconds() - m.pace) / smoothing
	}
	if m.busy++; share <= overloadShare {
		m.busy = 0
	}
	m.at, m.cpu, m.decided = at, cpu, decided
	capacity := max(leastCapacity, m.pace*float64(processors))
	return workload{capacity: capacity, used: share * capacity, overloaded: m.busy >= 2}
}

// fallbackFor returns for how long results have been degraded without a break, given their number at time at.
func (m *meter) fallbackFor(at int64, degraded uint64) time.Duration {
	switch {
	case degraded != m.degraded:
		m.degraded, m.fallbackLast = degraded, at
		if m.fallback == 0 {
			m.fallback = at
		}
	case at-m.fallbackLast > int64(fallbackBreak):
		m.fallback = 0
	}
	if m.fallback == 0 {
		return 0
	}
	return time.Duration(at - m.fallback)
}

// measure measures the load of this process. It is called every measureEvery.
func (p *Peer) measure(mono int64) {
	decided, asked := p.o.Node.Decisions()
	all := asked
	for _, n := range decided {
		all += n
	}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return
	}
	l := p.meter.measure(mono, u.Utime.Nano()+u.Stime.Nano(), all, runtime.GOMAXPROCS(0))
	p.o.Node.SetLoad(l.capacity, l.overloaded)
	load := l.used
	if load <= leastShare*l.capacity {
		load = 0
	}
	p.load.Store(math.Float64bits(load))
	p.m.capacity.Set(l.capacity)
	p.m.load.Set(l.used)
	degraded := decided[owner.Share] + decided[owner.Open] + decided[owner.Closed]
	p.m.fallback.Set(p.meter.fallbackFor(mono, degraded).Seconds())
}

// Load returns this member's load in the last second: the requests a second that its processor time is equivalent to.
// It is 0 if most of that time may have been other work.
func (p *Peer) Load() float64 { return math.Float64frombits(p.load.Load()) }
