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
	startCapacity = 50_000 // questions a second, before anything was measured
	leastCapacity = 5_000  // a process that does other things than deciding is not that slow
	leastShare    = .05    // of the processors, below which the process's other work would be most of what is measured
	overloadShare = .8     // of them, above which it is overloaded, in two measurements in a row
	smoothing     = 8      // measurements that an estimate follows within

	fallbackBreak = 10 * time.Second // without a degraded answer, after which all is well again
)

// meter measures how many questions a second this process could decide, by what its processor time was spent on.
type meter struct {
	at, cpu  int64 // of the last measurement: by the monotonic clock, and the process's time; nanoseconds
	decided  uint64
	pace     float64 // questions decided in a second of one processor
	busy     int     // measurements in a row above overloadShare
	degraded uint64

	fallback, fallbackLast int64 // since when, and when last, answers were degraded; 0: not now
}

// workload is what a measurement says.
type workload struct {
	capacity   float64 // questions a second with all processors
	used       float64 // questions a second that the time spent is worth
	overloaded bool
}

// measure takes the process's time cpu, and how many questions have been decided, at at.
func (m *meter) measure(at, cpu int64, decided uint64, processors int) workload {
	if m.at == 0 {
		m.pace = startCapacity / float64(processors)
	}
	took, worked, questions := at-m.at, cpu-m.cpu, float64(decided-m.decided)
	share := 0.0
	if m.at != 0 && took > 0 {
		share = float64(worked) / float64(took) / float64(processors)
	}
	if share > leastShare {
		m.pace += (questions/time.Duration(worked).Seconds() - m.pace) / smoothing
	}
	if m.busy++; share <= overloadShare {
		m.busy = 0
	}
	m.at, m.cpu, m.decided = at, cpu, decided
	capacity := max(leastCapacity, m.pace*float64(processors))
	return workload{capacity: capacity, used: share * capacity, overloaded: m.busy >= 2}
}

// fallbackFor is for how long answers have been degraded without a break, given how many were until at.
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

// measure is called once in measureEvery.
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
	p.m.fallback.Set(p.meter.fallbackFor(mono, decided[owner.Share]+decided[owner.Open]+decided[owner.Closed]).Seconds())
}

// Load is how loaded this member was in the last second: the questions a second that its processor time would be worth; 0 when
// most of that may have gone into other things than deciding.
func (p *Peer) Load() float64 { return math.Float64frombits(p.load.Load()) }
