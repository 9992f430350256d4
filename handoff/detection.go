package handoff

import "github.com/keyward/keyward/internal/membership"

// pair returns the detection time of this member and p: the shorter of the two.
func (m *Machine) pair(p *peer) membership.Detection {
	return min(m.opts.Detection, p.Detection.OrDefault())
}

// ttl returns for how long a confirmation by p keeps this member's ownership valid.
func (m *Machine) ttl(p *peer) int64 { return int64(m.pair(p).OwnershipTTL()) }

// pingInterval returns the mean time between two pings of p.
func (m *Machine) pingInterval(p *peer) int64 { return int64(m.pair(p).Heartbeat()) }

// takeoverOf returns the time after a confirmation between this member and p at which it is certainly not used any
// more. If p has announced no Detection, it may disregard this member's.
func (m *Machine) takeoverOf(p *peer) int64 {
	d := m.opts.Detection
	if p.Detection == 0 {
		d = max(d, membership.DefaultDetection)
	}
	return int64(d.TakeoverDelay())
}

// sinceLost returns the time since this member last confirmed a member that has failed, for an Ack to p. It is shorter,
// or negative, if p would not wait long enough otherwise: p adds only its own T_take.
func (m *Machine) sinceLost(now int64, p *peer) int64 {
	d := p.Detection.OrDefault()
	if m.opts.Detection == membership.DefaultDetection {
		d = max(d, membership.DefaultDetection) // see takeoverOf: this member announces none
	}
	q := noneLost
	for b, c := range m.confirmed {
		if m.unreachable(b) {
			q = min(q, max(0, now-c.at)-max(0, c.takeover-int64(d.TakeoverDelay())))
		}
	}
	return q
}

// LongestDetection returns the longest detection time of this member and its live peers.
func (m *Machine) LongestDetection() membership.Detection {
	d := m.opts.Detection
	for _, p := range m.sortedPeers {
		d = max(d, p.Detection.OrDefault())
	}
	return d
}

// updateMinStall sets how far a peer's clock must have moved ahead before its heartbeats prove that the local clock
// stopped. A shorter stop is harmless: ownership ends T_own after a confirmation by the local clock, and the member that
// sent it waits for T_take, which is longer by twice this time. NTP slews clocks by at most 1 ms per second, so two
// clocks cannot drift this far apart within the two windows for which an offset is remembered.
func (m *Machine) updateMinStall() {
	d := m.opts.Detection
	for _, p := range m.sortedPeers {
		d = min(d, p.Detection.OrDefault())
	}
	m.minStall = int64(d.MinStall())
}
