package app

import (
	"context"
	"sync"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/membership"
)

// How long the steps of leaving may take. Together they stay below the 30 s that Kubernetes gives a pod.
const (
	handoffTimeout = 12 * time.Second // until other members have all counters
	lingerTimeout  = 10 * time.Second // until Envoys send no more calls
	stopTimeout    = 3 * time.Second  // until calls in flight are answered

	quietAfter = 2 * time.Second        // without a call, if there have been any
	quietIdle  = 500 * time.Millisecond // without a call, if there have been none

	handoffPoll = 50 * time.Millisecond // how often a member that lingers looks whether it has handed over its counters
)

// drain is a member's departure from the ring. It happens once.
type drain struct {
	once sync.Once
	done chan struct{} // closed when the member has drained, or given up

	mu       sync.Mutex // guards all below
	began    time.Time  // zero before the drain
	ended    time.Time  // zero until the member has drained, or given up
	complete bool       // all counters were sent, or there was no member to send them to
	last     bool       // no member was left on the ring
	sent     uint64     // counters sent before the drain
	calls    uint64     // calls of Envoys so far
	lastCall time.Time  // when calls last grew
}

func newDrain() *drain { return &drain{done: make(chan struct{})} }

// startDrain makes the member leave the ring and returns a channel that is closed when it has. The member first
// reports that it is unhealthy, so that Envoys stop sending calls, while its listeners stay open. Then it leaves the
// ring and sends its counters to the next owners. It forwards the calls that still arrive.
func (m *sidecar) startDrain() <-chan struct{} {
	d := m.drain
	d.once.Do(func() {
		now := time.Now()
		m.health.Set(partRunning, false)
		d.mu.Lock()
		d.began, d.lastCall, d.calls, d.sent = now, now, m.calls(), m.peer.CountersSent()
		d.mu.Unlock()
		m.Log.Info("draining")
		m.cluster.Load().Drain()
		m.tasks.start(m.watchCalls)
		m.tasks.start(m.awaitDrained)
	})
	return d.done
}

// awaitDrained waits until the cluster has all counters, or handoffTimeout has passed, and ends the drain.
func (m *sidecar) awaitDrained(ctx context.Context) {
	c, d := m.cluster.Load(), m.drain
	defer close(d.done)
	ctx, cancel := context.WithTimeout(ctx, handoffTimeout)
	defer cancel()
	select {
	case <-c.Drained():
	case <-ctx.Done():
	}
	d.mu.Lock()
	d.ended = time.Now()
	select {
	case <-c.Drained():
		v := c.View()
		d.complete, d.last = true, v.Leaving() && v.Ring.Len() == 0
	default:
	}
	d.mu.Unlock()
	m.reportDrain(m.drainProgress())
}

func (m *sidecar) reportDrain(p api.DrainStatus) {
	took := time.Duration(p.Seconds * float64(time.Second))
	if p.Complete {
		m.Log.Info("drained", "keys", p.HandedOver, "duration", took)
		return
	}
	m.incomplete.Inc()
	m.Log.Error("handoff_incomplete: leaving before other members have all counters",
		"keys", p.HandedOver, "members", p.Incomplete, "duration", took)
}

// drainProgress returns the progress of the drain.
func (m *sidecar) drainProgress() api.DrainStatus {
	d := m.drain
	p := api.DrainStatus{State: m.cluster.Load().View().SelfMember().State.String(), Incomplete: m.incompletePeers()}
	sent := m.peer.CountersSent()
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.began.IsZero():
		return p
	case d.ended.IsZero():
		p.Seconds = time.Since(d.began).Seconds()
	default:
		p.Done, p.Complete, p.Seconds = true, d.complete, d.ended.Sub(d.began).Seconds()
	}
	p.HandedOver = sent - d.sent
	return p
}

// calls returns the number of calls received over gRPC.
func (m *sidecar) calls() uint64 { return m.stats.Method("ShouldRateLimit").TotalRequests.Value() }

// watchCalls records when Envoys call, from the start of the drain on.
func (m *sidecar) watchCalls(ctx context.Context) {
	d := m.drain
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			calls := m.calls()
			d.mu.Lock()
			if calls != d.calls {
				d.calls, d.lastCall = calls, now
			}
			d.mu.Unlock()
		}
	}
}

// quietIn returns the time until the member counts as not called anymore, if no call arrives. It is not positive if
// it does now.
func (d *drain) quietIn(now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls == 0 {
		return quietIdle - now.Sub(d.lastCall)
	}
	return quietAfter - now.Sub(d.lastCall)
}

// restsIn returns the time until the member may stop, if nothing changes. It is not positive if it may now. If it was the
// last member, another one that has joined since takes over its counters first.
func (d *drain) restsIn(now time.Time, v *membership.View) time.Duration {
	wait := d.quietIn(now)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last && !v.SelfMember().HandedOff {
		return max(wait, handoffPoll)
	}
	return wait
}

// linger forwards calls until Envoys have found other members, and continues the handoff if it was the last member.
func (m *sidecar) linger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lingerTimeout)
	defer cancel()
	for ctx.Err() == nil {
		wait := m.drain.restsIn(time.Now(), m.cluster.Load().View())
		if wait <= 0 {
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	m.Log.Info("clients still send calls after the drain, or a member is still taking over counters; stopping")
}

// leave ends a running member: it drains, unless it already has, forwards calls until they stop, and stops.
func (m *sidecar) leave() {
	<-m.startDrain()
	m.linger(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	m.stop(ctx)
}
