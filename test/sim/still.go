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
	d := 300*time.Millisecond + w.upto(9*time.Second)
	suspended := w.rnd.IntN(3) > 0
	w.trace("%s's machine stops for %v, suspended %v", m.name(), d, suspended)
	w.stats.count(map[bool]string{true: "fault: machine suspended", false: "fault: machine moved"}[suspended])
	w.oracle.cutOff(m)
	m.paused = true
	w.oracle.disturbed(pauseTrouble)
	w.after(d, nil, func() { m.resume(d, suspended) })
}

// resume lets a machine go on whose clocks stood still for lost.
func (m *member) resume(lost time.Duration, suspended bool) {
	if !m.paused || m.gone {
		return
	}
	w := m.w
	m.behind += int64(lost)
	m.skew -= int64(lost)
	switch {
	case suspended && w.bug != StoodStill:
		m.setRight()
	case suspended:
		w.after(w.upto(3*time.Second), m, m.setRight)
	default:
		m.stepped = true
		w.oracle.severed[m.slot] = w.now // it goes on as it was until it has heard the others
		w.after(w.upto(3*time.Second), m, m.setRight)
	}
	m.wake()
}

// setRight corrects the clock, which the driver notices at once, and before the next decision.
func (m *member) setRight() {
	m.skew += m.behind
	m.behind = 0
	m.w.trace("%s's clock is right again", m.name())
	m.apply(m.node.Fence(m.clock()))
}
