package boot

import (
	"sync"
	"time"

	"github.com/keyward/keyward/peer"
)

// progress is how far the last change of the ring has come.
type progress struct {
	mu sync.Mutex // also orders what the cluster is told
	peer.Progress
	known bool
}

// onProgress passes on how far a change of the ring has come: others may wait for it.
func (m *Sidecar) onProgress(p peer.Progress) {
	m.progress.mu.Lock()
	defer m.progress.mu.Unlock()
	m.progress.Progress, m.progress.known = p, true
	m.timeline.handoff(time.Now(), p)
	m.tellProgressLocked()
}

// repeatProgress tells the cluster, which has just begun, what came before.
func (m *Sidecar) repeatProgress() {
	m.progress.mu.Lock()
	defer m.progress.mu.Unlock()
	m.tellProgressLocked()
}

func (m *Sidecar) tellProgressLocked() {
	c, p := m.cluster.Load(), &m.progress
	if c == nil || !p.known {
		return
	}
	c.SetComplete(p.Complete)
	c.SetWarm(p.Warm)
	c.SetHandedOver(p.HandedOver)
}

// pending is the number of members that do not have all that is theirs yet.
func (m *Sidecar) pending() int {
	m.progress.mu.Lock()
	defer m.progress.mu.Unlock()
	return m.progress.Incomplete
}

// sent is the number of counters handed over to other members so far, as /metrics shows it.
func (m *Sidecar) sent() uint64 {
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
