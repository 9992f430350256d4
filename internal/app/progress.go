package app

import (
	"sync"
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// progress is the progress of the last change of the ring at this member, and whether the member is ready because of
// it.
type progress struct {
	mu sync.Mutex // also orders what the cluster is given
	membership.Progress
	known   bool        // Progress has been set
	onRing  bool        // the member has joined and is on the ring
	settled bool        // it has received all of its counters once, or has waited for settleTimeout
	timer   *time.Timer // runs out after settleTimeout; nil until the member is on the ring
}

// settleTimeout is how long a member on the ring waits for its counters before it is ready without them.
const settleTimeout = 5 * time.Second

// onProgress records the progress of a handoff and publishes it: other members may wait for it.
func (m *sidecar) onProgress(p membership.Progress) {
	m.progress.mu.Lock()
	defer m.progress.mu.Unlock()
	m.progress.Progress, m.progress.known = p, true
	m.progress.settled = m.progress.settled || p.CompleteRing != 0
	m.timeline.addProgress(time.Now(), p)
	m.publishProgressLocked()
	m.recordRing(p)
	m.updateReadinessLocked()
}

// setOnRing records whether this member is on the ring. The member becomes ready when it has also received its
// counters: until then it would have to wait or guess for keys whose holders do not use the new ring yet. It then
// stays ready.
func (m *sidecar) setOnRing(onRing bool) {
	p := &m.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onRing = onRing
	if onRing && !p.settled && p.timer == nil {
		p.timer = time.AfterFunc(settleTimeout, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.settled = true
			m.updateReadinessLocked()
		})
	}
	m.updateReadinessLocked()
}

func (m *sidecar) updateReadinessLocked() {
	m.health.Set(partCluster, m.progress.onRing && m.progress.settled)
}

// publishProgress gives the cluster, which has just started, the progress so far.
func (m *sidecar) publishProgress() {
	m.progress.mu.Lock()
	defer m.progress.mu.Unlock()
	m.publishProgressLocked()
}

func (m *sidecar) publishProgressLocked() {
	c, p := m.cluster.Load(), &m.progress
	if c == nil || !p.known {
		return
	}
	c.SetProgress(p.Progress)
}

// incompletePeers returns the number of members that still lack some of their counters.
func (m *sidecar) incompletePeers() int {
	m.progress.mu.Lock()
	defer m.progress.mu.Unlock()
	return m.progress.Unconfirmed
}
