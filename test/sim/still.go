package sim

import "time"

// stillSome stops a member's machine: not only its process, as pauseSome does, but its clocks, too. A machine that was
// suspended says so when it resumes: its wall clock is right again, and CLOCK_BOOTTIME has gone on. One that was moved to
// another host says nothing. The clocks of the others tell it, and its own is set moments later.
func (w *World) stillSome() {
	m := w.some()
	if m == nil || m.paused {
		return
	}
	d := 500*time.Millisecond + w.upto(4*time.Second)
	if w.rnd.IntN(3) > 0 {
		d += 4*time.Second + w.upto(2*time.Second) // long enough for the heir to take over
	}
	suspended := w.rnd.IntN(3) > 0
	w.trace("%s's machine stops for %v, suspended %v", m.name(), d, suspended)
	w.stats.count(map[bool]string{true: "fault: machine suspended", false: "fault: machine moved"}[suspended])
	w.oracle.cutOff(m)
	m.paused = true
	w.oracle.disturbed(pauseTrouble)
	w.after(d, nil, func() { m.resume(d, suspended) })
	w.crowd(m, d)
}

// resume lets a machine go on whose clocks stood still for lost.
func (m *member) resume(lost time.Duration, suspended bool) {
	if !m.paused || m.gone {
		return
	}
	w := m.w
	m.behind += int64(lost)
	m.skew -= int64(lost)
	for i := range m.table {
		m.table[i].heard = min(w.now, m.table[i].heard+int64(lost)) // gossip goes by the same clock
	}
	m.told = w.now
	switch {
	case suspended && w.bug != StoodStill:
		m.setRight()
	case suspended:
		w.after(w.upto(3*time.Second), m, m.setRight)
	default:
		m.stepped = true
		w.oracle.severed[m.slot] = w.now // it goes on as it was until it has heard the others
		w.after(w.upto(3*time.Second), m, func() {
			w.oracle.lagged()
			m.setRight()
		})
	}
	m.wake()
}

// crowd has one of m's keys asked for: of the others just before its machine goes on, when the heir may have taken over, and of m
// itself at once, for calls have waited for it.
func (w *World) crowd(m *member, stopped time.Duration) {
	k := w.keyOf(m)
	if k < 0 {
		return
	}
	const others, waited = 800 * time.Millisecond, 300 * time.Millisecond
	for range 200 {
		w.after(stopped-w.upto(others), nil, func() {
			if o := w.pick(); o != nil && o != m {
				w.put(k, o)
			}
		})
		w.after(stopped+w.upto(waited), nil, func() {
			if !m.gone && !m.paused && m.ready() {
				w.put(k, m)
			}
		})
	}
}

// keyOf is a key that m owns by its ring, or -1.
func (w *World) keyOf(m *member) int {
	if m.ring == nil {
		return -1
	}
	first := w.rnd.IntN(w.o.Keys)
	for i := range w.o.Keys {
		k := (first + i) % w.o.Keys
		if o := m.ring.Owner(w.rules[len(w.rules)-1][k].owner); o >= 0 && o == m.ring.Index(slotID(m.slot)) {
			return k
		}
	}
	return -1
}

// setRight corrects the clock, which the driver notices at once, and before the next decision.
func (m *member) setRight() {
	m.skew += m.behind
	m.behind = 0
	m.w.trace("%s's clock is right again", m.name())
	m.apply(m.node.ClockStepped(m.clock()))
}
