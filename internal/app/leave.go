package app

import (
	"context"
	"sync"
	"time"

	"github.com/keyward/keyward/internal/api"
)

// How long the steps of leaving may take. Together they stay under the 30 s that Kubernetes gives a pod.
const (
	handoffTimeout = 12 * time.Second // until others have all counters
	lingerTimeout  = 10 * time.Second // until nobody asks any more
	stopTimeout    = 3 * time.Second  // until calls in flight are answered

	quietAfter = 2 * time.Second        // without a question, where there have been any
	quietIdle  = 500 * time.Millisecond // without a question, where there has never been one
)

// drain is a member's way off the ring. It begins once.
type drain struct {
	once sync.Once
	done chan struct{} // closed when the member has drained, or given up

	mu       sync.Mutex // guards all below
	began    time.Time  // zero: not yet
	ended    time.Time  // zero: not yet
	complete bool       // nothing is left to hand over
	sent     uint64     // counters handed over before
	calls    uint64     // questions from Envoys so far
	lastCall time.Time  // when asked last rose
}

func newDrain() *drain { return &drain{done: make(chan struct{})} }

// startDrain has the member leave the ring: unhealthy first, so that nobody sends more, with its doors open; then off the
// others' rings, with its counters in their hands. Then it forwards what still comes.
func (m *sidecar) startDrain() <-chan struct{} {
	d := m.drain
	d.once.Do(func() {
		now := time.Now()
		m.health.Set(partRunning, false)
		d.mu.Lock()
		d.began, d.lastCall, d.calls, d.sent = now, now, m.calls(), m.countersSent()
		d.mu.Unlock()
		m.log.Info("draining")
		c := m.cluster.Load()
		c.Drain()
		go m.watchCalls()
		go func() {
			defer close(d.done)
			bound := time.NewTimer(handoffTimeout)
			defer bound.Stop()
			select {
			case <-c.Drained():
			case <-bound.C:
			}
			d.mu.Lock()
			d.ended = time.Now()
			select {
			case <-c.Drained():
				d.complete = true
			default:
			}
			d.mu.Unlock()
			m.reportDrain(m.drainProgress())
		}()
	})
	return d.done
}

func (m *sidecar) reportDrain(p api.DrainStatus) {
	if p.Complete {
		m.log.Info("drained", "handed_over", p.HandedOver, "seconds", p.Seconds)
		return
	}
	m.incomplete.Inc()
	m.log.Error("handoff_incomplete: leaving before others have all counters", "handed_over", p.HandedOver, "members", p.Incomplete, "seconds", p.Seconds)
}

// drainProgress is how far the drain has come.
func (m *sidecar) drainProgress() api.DrainStatus {
	d := m.drain
	p := api.DrainStatus{State: m.cluster.Load().View().SelfMember().State.String(), Incomplete: m.incompletePeers()}
	sent := m.countersSent()
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

// calls is the number of questions that came over gRPC.
func (m *sidecar) calls() uint64 { return m.stats.Method("ShouldRateLimit").TotalRequests.Value() }

// watchCalls notes when Envoys ask, from the drain on until the process ends.
func (m *sidecar) watchCalls() {
	d := m.drain
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-m.ended:
			return
		case now := <-again.C:
			asked := m.calls()
			d.mu.Lock()
			if asked != d.calls {
				d.calls, d.lastCall = asked, now
			}
			d.mu.Unlock()
		}
	}
}

// quietIn is how long it takes at least until this member counts as not being asked any more.
func (d *drain) quietIn(now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls == 0 {
		return quietIdle - now.Sub(d.lastCall)
	}
	return quietAfter - now.Sub(d.lastCall)
}

// linger forwards until Envoys have found others to ask.
func (m *sidecar) linger(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lingerTimeout)
	defer cancel()
	for ctx.Err() == nil {
		wait := m.drain.quietIn(time.Now())
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
	m.log.Info("still asked, ending all the same")
}

// leave ends a member that runs: it drains, unless it has, forwards while it is still asked, and stops.
func (m *sidecar) leave() {
	<-m.startDrain()
	m.linger(context.Background())
	bounded, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	m.stop(bounded)
}
