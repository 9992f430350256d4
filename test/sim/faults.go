package sim

import (
	"slices"
	"time"

	"github.com/keyward/keyward/owner"
)

// schedule schedules the requests, changes and faults of the safety phase, each at a random time.
func (w *world) schedule() {
	for range w.o.Requests {
		at := w.randomBelow(w.o.Length)
		if w.rnd.IntN(4) == 0 {
			at = at.Truncate(w.o.Length / 12) // bursts
		}
		at = w.lull(at)
		w.after(at, nil, w.sendRequest)
	}
	some := func(n int, fn func()) {
		for range n {
			w.after(w.randomBelow(w.o.Length*8/10), nil, fn)
		}
	}
	some(w.o.Leaves, w.leaveSome)
	some(w.o.Joins, w.joinSome)
	some(w.o.Rules, w.changeRules)
	for range w.o.Rolls {
		w.after(w.randomBelow(w.o.Length/4), nil, func() { w.roll(slices.Clone(w.running())) })
	}
	some(w.o.Crashes, w.crashSome)
	some(w.o.Pauses, w.pauseSome)
	some(w.o.Cuts, func() { w.cutSome(true) })
	some(w.o.OneWay, func() { w.cutSome(false) })
	some(w.o.Partitions, w.partition)
	some(w.o.Steps, w.stepSome)
	some(w.o.Leases.Decrees, w.setRoute)
	some(w.o.Stills, w.stopMachine)
	w.scheduleDurable()
	if w.o.Zones > 0 {
		w.after(w.o.Length/4+w.randomBelow(w.o.Length/2), nil, w.crashZone)
	}
}

// leaveSome makes a member leave. At least two remain.
func (w *world) leaveSome() {
	ms := w.running()
	if len(ms) > 2 {
		m := ms[w.rnd.IntN(len(ms))]
		w.after(0, m, m.leave)
	}
}

func (w *world) joinSome() {
	for i := range w.slots {
		if w.slots[i].now == nil && w.slots[i].boots < 30 {
			w.boot(i, false)
			return
		}
	}
}

// roll restarts members one after the other, each when the previous one is back on the ring.
func (w *world) roll(rest []*member) {
	if len(rest) == 0 || w.healed {
		return
	}
	m := rest[0]
	if !m.gone && m.leavingSince == 0 {
		w.after(0, m, m.leave)
	}
	w.stats.count("plan: rolled")
	var next func()
	next = func() {
		if w.healed {
			return
		}
		s := &w.slots[m.slot]
		switch {
		case s.now == m:
		case s.now == nil && s.boots < 30:
			w.boot(m.slot, false)
		case s.now == nil || s.now.table[m.slot].state == active:
			w.roll(rest[1:])
			return
		}
		w.after(200*time.Millisecond, nil, next)
	}
	w.after(300*time.Millisecond, nil, next)
}

// crash ends a boot without a message.
func (w *world) crash(m *member) {
	w.trace("%s crashes", m.name())
	w.mixHash(1, uint64(m.slot))
	if w.o.Durable.On {
		w.oracle.crashedWaiting(m)
	}
	w.oracle.crashed(m)
	w.quotaCrashed(m)
	m.end()
	w.oracle.disturbed(faultCrash)
}

func (w *world) anyMember() *member {
	ms := w.running()
	if len(ms) == 0 {
		return nil
	}
	return ms[w.rnd.IntN(len(ms))]
}

// crashSome crashes a member. It usually restarts under the same name, and always if all other members are leaving,
// because one has to remain.
func (w *world) crashSome() {
	m := w.anyMember()
	if m == nil || len(w.running()) < 2 || w.coldStart || w.stopping {
		return
	}
	w.stats.count("fault: crash")
	w.crash(m)
	stays := func(p *member) bool { return p.leavingSince == 0 }
	if w.rnd.IntN(3) > 0 || !slices.ContainsFunc(w.running(), stays) {
		w.after(w.randomBelow(6*time.Second), nil, func() {
			if s := &w.slots[m.slot]; s.now == nil && s.boots < 30 {
				w.boot(m.slot, false)
			}
		})
	}
}

// pauseSome pauses a member for up to ten seconds. Its events wait.
func (w *world) pauseSome() {
	m := w.anyMember()
	if m == nil || m.paused {
		return
	}
	d := 50*time.Millisecond + w.randomBelow(4*time.Second)
	if w.rnd.IntN(3) == 0 {
		d += w.randomBelow(6 * time.Second)
	}
	w.trace("%s pauses for %v", m.name(), d)
	w.stats.count("fault: pause")
	w.oracle.disconnected(m)
	m.paused = true
	w.oracle.disturbed(faultPause)
	w.after(d, nil, m.wake)
}

func (m *member) wake() {
	if !m.paused || m.gone {
		return
	}
	m.w.trace("%s wakes", m.name())
	m.paused = false
	m.w.oracle.disturbed(faultPause)
	late := m.backlog
	m.backlog = nil
	for _, fn := range late {
		if m.gone {
			return
		}
		m.do(fn)
	}
}

// cutSome blocks a link, in both directions or one, for a while.
func (w *world) cutSome(both bool) {
	i, j := w.rnd.IntN(len(w.slots)), w.rnd.IntN(len(w.slots))
	if i == j || w.blocked[i][j] {
		return
	}
	w.stats.count(map[bool]string{true: "fault: link cut", false: "fault: link cut one way"}[both])
	w.setLink(i, j, true, both)
	w.after(200*time.Millisecond+w.randomBelow(8*time.Second), nil, func() { w.setLink(i, j, false, both) })
}

func (w *world) setLink(i, j int, cut, both bool) {
	w.trace("link %s-%s: cut %v, both ways %v", slotID(i), slotID(j), cut, both)
	for _, s := range []int{i, j} {
		if m := w.slots[s].now; m != nil && cut {
			w.oracle.disconnected(m)
		}
	}
	w.blocked[i][j] = cut
	if both {
		w.blocked[j][i] = cut
	}
	w.oracle.disturbed(faultCut)
}

// partition divides the cluster in two for a while.
func (w *world) partition() {
	side := make([]bool, len(w.slots))
	for i := range w.slots {
		side[i] = w.rnd.IntN(2) == 0
	}
	w.stats.count("fault: partition")
	set := func(cut bool) {
		w.trace("partition %v: %v", side, cut)
		for i := range w.slots {
			if m := w.slots[i].now; m != nil && cut {
				w.oracle.disconnected(m)
			}
			for j := range w.slots {
				if side[i] != side[j] {
					w.blocked[i][j] = cut
				}
			}
		}
		w.oracle.disturbed(faultCut)
	}
	set(true)
	w.quotaParted(side)
	w.after(500*time.Millisecond+w.randomBelow(10*time.Second), nil, func() { set(false) })
}

// stepSome sets a member's clock, which its driver notices at once.
func (w *world) stepSome() {
	m := w.anyMember()
	if m == nil {
		return
	}
	w.stats.count("fault: clock step")
	w.oracle.disconnected(m)
	w.oracle.stepped()
	w.after(0, m, func() {
		m.stepped = true
		m.skew = -m.skew + int64(1100*time.Millisecond)*int64(1-2*w.rnd.IntN(2))
		w.trace("%s's clock steps", m.name())
		m.apply(m.node.ClockStepped(m.clock()))
	})
	w.oracle.disturbed(faultStep)
}

// heal ends all faults.
func (w *world) heal() {
	if w.failure != "" {
		return
	}
	w.healed = true
	w.unblockLinks()
	w.trace("all faults end")
	for _, m := range w.running() {
		m.wake()
	}
	w.oracle.disturbed(0)
}

// probe is the liveness phase: all members use one ring, and each key is decided by the same member, whichever member
// receives the request.
func (w *world) probe() {
	if w.failure != "" {
		return
	}
	ms := w.running()
	for _, m := range ms {
		if m.view.Ring.Fingerprint() != ms[0].view.Ring.Fingerprint() {
			w.fail("I9: %v after the last fault %s uses %s and %s uses %s", w.o.slowed(settleTime), m.name(), names(m.view.Ring),
				ms[0].name(), names(ms[0].view.Ring))
			return
		}
	}
	for _, m := range ms {
		if st := m.table[m.slot].state; st == active && !m.node.Progress().Complete() {
			w.fail("I9: %v after the last fault %s has not completed %s: %+v", w.o.slowed(settleTime), m.name(), names(m.view.Ring),
				m.node.Progress())
			return
		}
	}
	var probes []*request
	for k := range w.keys {
		r := &w.rules[len(w.rules)-1][k]
		for _, m := range ms {
			q := &request{from: m, sentAt: w.now, deadline: w.now + int64(time.Second)}
			q.req = owner.Request{Key: r.digest, RingPos: r.owner, Rule: r.limit, Op: owner.Read}
			probes = append(probes, q)
			w.after(time.Duration(q.deadline-w.now), m, q.expire)
			w.after(0, m, q.decide)
		}
	}
	w.oracle.probing = true
	w.run(1500 * time.Millisecond)
	w.oracle.probed(probes)
}
