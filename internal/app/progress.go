package app

import (
	"sync"
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// progress is how far the last change of the ring has come.
type progress struct {
	mu sync.Mutex // also orders what the cluster is told
	membership.Progress
	known   bool
	onRing  bool
	settled bool        // it has had all that is its own, or waited for it for long enough
	timer   *time.Timer // nil: it has not been on the ring
}

// settleTimeout is how long a member that has its place waits for what is its own before it is ready all the same.
const settleTimeout = 5 * time.Second

// onProgress passes on how far a change of the ring has come: others may wait for it.
func (m *sidecar) onProgress(p membership.Progress) {
	m.progress.mu.Lock()
	defer m.progress.mu.Unlock()
	m.progress.Progress, m.progress.known = p, true
	m.progress.settled = m.progress.settled || p.CompleteRing != 0
	m.timeline.addProgress(time.Now(), p)
	m.publishProgressLocked()
	m.updateReadinessLocked()
}

// setOnRing says whether this member has its place. It is ready when it has taken over what is its own as well: until then it would
// have to wait, or to guess, for those of its keys whose holders have not heard of it. After that it stays ready.
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

// publishProgress tells the cluster, which has just begun, what came before.
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

// incompletePeers is the number of members that do not have all that is theirs yet.
func (m *sidecar) incompletePeers() int {
	m.progress.mu.Lock()
	defer m.progress.mu.Unlock()
	return m.progress.Unconfirmed
}

// countersSent is the number of counters handed over to other members so far, as /metrics shows it.
func (m *sidecar) countersSent() uint64 {
	families, err := m.reg.Gather()
	if err != nil {
		return 0
	}
	for _, f := range families {
		if f.GetName() != "keyward_handoff_keys_total" {
			continue
		}
		for _, c := range f.GetMetric() {
			for _, l := range c.GetLabel() {
				if l.GetValue() == "sent" {
					return uint64(c.GetCounter().GetValue())
				}
			}
		}
	}
	return 0
}
