package peer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/owner"
)

const (
	// clockCheckEvery is how long a decision relies on the last look at the clocks. A look costs some 400 ns, so at 100,000
	// decisions a second it adds 4 ns to each.
	clockCheckEvery = time.Millisecond
	// maxLostTime is how much time the monotonic clock may lose, in all, before the member is fenced. The kernel keeps
	// CLOCK_BOOTTIME and CLOCK_MONOTONIC apart by exactly the time that it was suspended, so nothing else comes near it.
	// A member may lose half a second before the others take over keys that it still decides.
	maxLostTime = 50 * time.Millisecond
)

// Reasons to be fenced, for the metric.
const (
	revokedStep    = "step"    // the wall clock was set
	revokedSuspend = "suspend" // the monotonic clock stood still, by CLOCK_BOOTTIME
	revokedPeers   = "peers"   // both stood still, by the clocks of the other members
)

// clockCheck is what a Peer remembers of its looks at the clocks.
type clockCheck struct {
	lastCheck  atomic.Int64 // the last look that found nothing, by the monotonic clock
	bootOffset atomic.Int64 // CLOCK_BOOTTIME less the monotonic clock, when the Peer started or was last fenced
	revoking   atomic.Bool  // a look has found something, and Node is not fenced yet
	mu         sync.Mutex   // serialises follow and fencing
}

// decisionTime returns the monotonic time for a decision. The decision is fenced if the machine was suspended, or the wall clock
// was set, before the last millisecond of that time. The caller must not hold a lock.
func (p *Peer) decisionTime() int64 {
	mono := p.clock.mono()
	if mono-p.clockCheck.lastCheck.Load() > int64(clockCheckEvery) {
		p.checkClocks()
	}
	return mono
}

// checkClocks compares the clocks. When it returns, the Node is fenced if they had parted.
func (p *Peer) checkClocks() {
	r := p.clock.read()
	// fencing comes last: it is set before what the others compare with changes.
	if p.lostTime(r) <= maxLostTime && p.clock.offset(r).Abs() <= maxStep && !p.clockCheck.revoking.Load() {
		p.clockCheck.lastCheck.Store(r.mono)
		return
	}
	p.apply(p.adjustClock())
}

// lostTime is the time that the monotonic clock has lost and for which the Node was not fenced.
func (p *Peer) lostTime(r reading) time.Duration {
	if r.boot == 0 {
		return 0
	}
	return time.Duration(r.boot - r.mono - p.clockCheck.bootOffset.Load())
}

// adjustClock has the clock follow the wall clock, and fences the Node if that takes a step or if the monotonic clock has lost
// time.
func (p *Peer) adjustClock() (fx owner.Effects) {
	w := &p.clockCheck
	w.mu.Lock()
	defer w.mu.Unlock()
	r := p.clock.read()
	lost, off := p.lostTime(r), p.clock.offset(r)
	if lost <= maxLostTime && off.Abs() <= maxStep {
		p.clock.steer(r.mono, r.wall, p.o.TickEvery)
		w.lastCheck.Store(r.mono)
		return fx
	}
	w.revoking.Store(true)
	defer w.revoking.Store(false)
	reason := revokedSuspend
	if lost <= maxLostTime {
		reason = revokedStep
	}
	if step := p.clock.steer(r.mono, r.wall, p.o.TickEvery); step != 0 {
		p.m.clockSteps.Inc()
		p.skews.reset()
	}
	fx = p.o.Node.ClockStepped(p.clock.at(r.mono))
	w.bootOffset.Store(r.boot - r.mono)
	w.lastCheck.Store(r.mono)
	p.m.revocations.WithLabelValues(reason).Inc()
	p.log.Warn("tokens given up until the other members confirm this one: its clocks stood still or were set",
		"reason", reason, "lost", max(0, lost), "step", off)
	return fx
}

// reportStoppedClocks notes that the Node was fenced because the clocks of the other members went on while this one's stood still.
func (p *Peer) reportStoppedClocks(lost time.Duration) {
	p.skews.reset()
	p.m.revocations.WithLabelValues(revokedPeers).Inc()
	p.log.Warn("tokens given up until the other members confirm this one: its clocks stood still or were set",
		"reason", revokedPeers, "lost", lost)
}
