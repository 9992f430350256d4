package peer

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/owner"
)

const (
	// clockCheckEvery is for how long a decision relies on the last check of the clocks. A check costs about 400 ns, so
	// at 100,000 decisions a second it adds 4 ns to each.
	clockCheckEvery = time.Millisecond
	// maxLostTime is how much time the monotonic clock may lose, in total, before ownership is revoked. CLOCK_BOOTTIME
	// and CLOCK_MONOTONIC differ by exactly the time for which the kernel was suspended, so there is no other cause. A
	// member may lose half a second before other members take over keys that it still decides.
	maxLostTime = 50 * time.Millisecond
)

// Reasons to revoke ownership, as labels of the metric.
const (
	revokedStep    = "step"    // the wall clock was set
	revokedSuspend = "suspend" // the monotonic clock stopped, by CLOCK_BOOTTIME
	revokedPeers   = "peers"   // both clocks stopped, by the clocks of the other members
)

// clockCheck is the state of the clock checks.
type clockCheck struct {
	lastCheck  atomic.Int64 // when a check last found no difference, by the monotonic clock
	bootOffset atomic.Int64 // CLOCK_BOOTTIME minus the monotonic clock at the start or the last revocation
	revoking   atomic.Bool  // a check has found a difference, and Node has not revoked ownership yet
	mu         sync.Mutex   // serializes adjustClock
}

// decisionTime returns the monotonic time for a decision. If the machine was suspended or the wall clock was set
// earlier than a millisecond before that time, ownership has been revoked when it returns. The caller must not hold a
// lock.
//
// A time that was read earlier, such as when the call was received, cannot take its place: the machine may have been
// suspended since.
func (p *Peer) decisionTime() int64 {
	mono := p.clock.mono()
	if mono-p.clockCheck.lastCheck.Load() > int64(clockCheckEvery) {
		p.checkClocks()
	}
	return mono
}

// checkClocks compares the clocks. If they differ, ownership has been revoked when it returns.
func (p *Peer) checkClocks() {
	r := p.clock.read()
	// revoking is checked last: adjustClock sets it before it changes what this comparison uses.
	if p.lostTime(r) <= maxLostTime && p.clock.offset(r).Abs() <= maxStep && !p.clockCheck.revoking.Load() {
		p.clockCheck.lastCheck.Store(r.mono)
		return
	}
	p.revokeOnClockJump()
}

// lostTime returns the time that the monotonic clock has lost since ownership was last revoked for it.
func (p *Peer) lostTime(r reading) time.Duration {
	if r.boot == 0 {
		return 0
	}
	return time.Duration(r.boot - r.mono - p.clockCheck.bootOffset.Load())
}

// revokeOnClockJump makes the clock follow the wall clock. It revokes ownership if that takes a step or if the
// monotonic clock has lost time.
func (p *Peer) revokeOnClockJump() {
	if e, revoked := p.adjustClock(); revoked {
		p.apply(e)
	}
}

// adjustClock is revokeOnClockJump without the work that Node then requires, which must be done without its lock.
func (p *Peer) adjustClock() (e owner.Ready, revoked bool) {
	w := &p.clockCheck
	w.mu.Lock()
	defer w.mu.Unlock()
	r := p.clock.read()
	lost, off := p.lostTime(r), p.clock.offset(r)
	if lost <= maxLostTime && off.Abs() <= maxStep {
		p.clock.steer(r.mono, r.wall, p.o.TickEvery)
		w.lastCheck.Store(r.mono)
		return e, false
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
	e = p.o.Node.ClockStepped(p.clock.at(r.mono))
	w.bootOffset.Store(r.boot - r.mono)
	w.lastCheck.Store(r.mono)
	p.logRevoked(reason, "lost", max(0, lost), "step", off)
	return e, true
}

// reportStoppedClocks records that Node revoked ownership because the clocks of the other members advanced while this
// member's clocks had stopped.
func (p *Peer) reportStoppedClocks(lost time.Duration) {
	p.skews.reset()
	p.logRevoked(revokedPeers, "lost", lost)
}

func (p *Peer) logRevoked(reason string, attrs ...any) {
	p.m.revocations.WithLabelValues(reason).Inc()
	p.log.Warn("ownership revoked after a clock jump; waiting for peers to confirm",
		append([]any{"cause", reason}, attrs...)...)
}
