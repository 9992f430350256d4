package peer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/owner"
)

const (
	// lookAgain is how long a decision relies on the last look at the clocks. A look costs some 400 ns, so at 100,000
	// decisions a second it adds 4 ns to each.
	lookAgain = time.Millisecond
	// maxParting is how much time the monotonic clock may lose, in all, before the member is fenced. The kernel keeps
	// CLOCK_BOOTTIME and CLOCK_MONOTONIC apart by exactly the time that it was suspended, so nothing else comes near it.
	// A member may lose half a second before the others take over keys that it still decides.
	maxParting = 50 * time.Millisecond
)

// Reasons to be fenced, for the metric.
const (
	fencedStep    = "step"    // the wall clock was set
	fencedSuspend = "suspend" // the monotonic clock stood still, by CLOCK_BOOTTIME
	fencedPeers   = "peers"   // both stood still, by the clocks of the other members
)

// watch is what a Peer remembers of its looks at the clocks.
type watch struct {
	looked  atomic.Int64 // the last look that found nothing, by the monotonic clock
	apart   atomic.Int64 // CLOCK_BOOTTIME less the monotonic clock, when the Peer started or was last fenced
	fencing atomic.Bool  // a look has found something, and Node is not fenced yet
	mu      sync.Mutex   // serialises follow and fencing
}

// awake returns the monotonic time for a decision. The decision is fenced if the machine was suspended, or the wall clock
// was set, before the last millisecond of that time. The caller must not hold a lock.
func (p *Peer) awake() int64 {
	mono := p.clock.mono()
	if mono-p.watch.looked.Load() > int64(lookAgain) {
		p.look()
	}
	return mono
}

// look compares the clocks. When it returns, the Node is fenced if they had parted.
func (p *Peer) look() {
	r := p.clock.read()
	// fencing comes last: it is set before what the others compare with changes.
	if p.lost(r) <= maxParting && p.clock.off(r).Abs() <= maxStep && !p.watch.fencing.Load() {
		p.watch.looked.Store(r.mono)
		return
	}
	p.apply(p.steer())
}

// lost is the time that the monotonic clock has lost and for which the Node was not fenced.
func (p *Peer) lost(r reading) time.Duration {
	if r.boot == 0 {
		return 0
	}
	return time.Duration(r.boot - r.mono - p.watch.apart.Load())
}

// steer has the clock follow the wall clock, and fences the Node if that takes a step or if the monotonic clock has lost
// time.
func (p *Peer) steer() (fx owner.Effects) {
	w := &p.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	r := p.clock.read()
	lost, off := p.lost(r), p.clock.off(r)
	if lost <= maxParting && off.Abs() <= maxStep {
		p.clock.follow(r.mono, r.wall, p.o.TickEvery)
		w.looked.Store(r.mono)
		return fx
	}
	w.fencing.Store(true)
	defer w.fencing.Store(false)
	reason := fencedSuspend
	if lost <= maxParting {
		reason = fencedStep
	}
	if step := p.clock.follow(r.mono, r.wall, p.o.TickEvery); step != 0 {
		p.m.steps.Inc()
		p.skews.reset()
	}
	fx = p.o.Node.ClockStepped(p.clock.at(r.mono))
	w.apart.Store(r.boot - r.mono)
	w.looked.Store(r.mono)
	p.m.fences.WithLabelValues(reason).Inc()
	p.log.Warn("tokens given up until the other members confirm this one: its clocks stood still or were set",
		"reason", reason, "lost", max(0, lost), "step", off)
	return fx
}

// stoodStill notes that the Node was fenced because the clocks of the other members went on while this one's stood still.
func (p *Peer) stoodStill(lost time.Duration) {
	p.skews.reset()
	p.m.fences.WithLabelValues(fencedPeers).Inc()
	p.log.Warn("tokens given up until the other members confirm this one: its clocks stood still or were set",
		"reason", fencedPeers, "lost", lost)
}
