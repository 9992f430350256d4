package sim

import "time"

// stopMachine stops a member's machine: not only its process, as pauseSome does, but also its clocks. A machine that
// was suspended notices it when it resumes: its wall clock is correct again, and CLOCK_BOOTTIME has advanced. One
// that was moved to another host does not. It learns it from the clocks of the others, and its own is corrected
// moments later.
func (w *world) stopMachine() {
	m := w.anyMember()
	if m == nil || m.paused {
		return
	}
	d := 500*time.Millisecond + w.randomBelow(4*time.Second)
	if w.rnd.IntN(3) > 0 {
		d += 4*time.Second + w.randomBelow(2*time.Second) // long enough for the successor to take over
	}
	suspended := w.rnd.IntN(3) > 0
	w.trace("%s's machine stops for %v, suspended %v", m.name(), d, suspended)
	w.stats.count(map[bool]string{true: "fault: machine suspended", false: "fault: machine moved"}[suspended])
	w.oracle.disconnected(m)
	m.paused = true
	w.oracle.disturbed(faultPause)
	w.after(d, nil, func() { m.resume(d, suspended) })
	w.requestsFor(m, d)
}

// resume resumes a machine whose clocks have stopped for lost.
func (m *member) resume(lost time.Duration, suspended bool) {
	if !m.paused || m.gone {
		return
	}
	w := m.w
	m.clockBehind += int64(lost)
	m.skew -= int64(lost)
	for i := range m.table {
		m.table[i].heardAt = min(w.now, m.table[i].heardAt+int64(lost)) // gossip uses the same clock
	}
	m.gossipedAt = w.now
	switch {
	case suspended && w.bug != bugIgnoreClockStop:
		m.correctClock()
	case suspended:
		w.after(w.randomBelow(3*time.Second), m, m.correctClock)
	default:
		m.stepped = true
		w.oracle.disconnectedAt[m.slot] = w.now // it continues until it has received messages of the others
		w.after(w.randomBelow(3*time.Second), m, func() {
			w.oracle.lagged()
			m.correctClock()
		})
	}
	m.wake()
}

// requestsFor sends requests for one of m's keys: to the others just before m's machine resumes, when the successor
// may have taken over, and to m immediately after, as calls that have waited.
func (w *world) requestsFor(m *member, stopped time.Duration) {
	k := w.keyOwnedBy(m)
	if k < 0 {
		return
	}
	const others, waited = 800 * time.Millisecond, 300 * time.Millisecond
	for range 200 {
		w.after(stopped-w.randomBelow(others), nil, func() {
			if o := w.readyMember(); o != nil && o != m {
				w.sendTo(k, o)
			}
		})
		w.after(stopped+w.randomBelow(waited), nil, func() {
			if !m.gone && !m.paused && m.ready() {
				w.sendTo(k, m)
			}
		})
	}
}

// keyOwnedBy returns a key that m owns on its ring, or -1.
func (w *world) keyOwnedBy(m *member) int {
	if m.view.Ring == nil {
		return -1
	}
	first := w.rnd.IntN(w.o.Keys)
	for i := range w.o.Keys {
		k := (first + i) % w.o.Keys
		if o := m.view.Ring.Owner(w.rules[len(w.rules)-1][k].owner); o >= 0 && o == m.view.Ring.Index(slotID(m.slot)) {
			return k
		}
	}
	return -1
}

// correctClock corrects the clock, which the driver notices at once, before the next decision.
func (m *member) correctClock() {
	m.skew += m.clockBehind
	m.clockBehind = 0
	m.w.trace("%s's clock is right again", m.name())
	m.apply(m.node.ClockStepped(m.clock()))
}
