package sim

import (
	"slices"
	"syscall"
	"time"

	"github.com/keyward/keyward/journal/modeldisk"
)

// scheduleDurable schedules the restarts of all members and the faults of volumes.
func (w *world) scheduleDurable() {
	d := &w.o.Durable
	if !d.On {
		return
	}
	at := func(from, to float64, fn func()) {
		l := float64(w.o.Length)
		t := time.Duration(l*from) + w.randomBelow(time.Duration(l*(to-from)))
		if w.rnd.IntN(2) == 0 { // during a burst of requests, or just after it
			t = t.Truncate(w.o.Length/12) + w.randomBelow(150*time.Millisecond)
		}
		w.after(t, nil, fn)
	}
	n := d.Crashes + d.Stops
	stops := d.Stops
	for i := range n {
		from, to := 0.15+0.45*float64(i)/float64(n), 0.15+0.45*float64(i+1)/float64(n)
		if stops > 0 && (d.Crashes == 0 || w.rnd.IntN(2) == 0) {
			stops--
			at(from, to, w.stopAll)
			continue
		}
		at(from, to, w.crashAllSoon)
	}
	for range d.Stalls {
		at(0.05, 0.6, w.stallVolume)
	}
	for range d.Failures {
		at(0.05, 0.6, w.failVolume)
	}
}

// crashAllSoon crashes all members at once, in some seeds just after their volumes have begun to fail.
func (w *world) crashAllSoon() {
	if w.o.Durable.Failures == 0 || w.rnd.IntN(2) == 0 {
		w.crashAll()
		return
	}
	way := 1 // every sync fails
	if w.rnd.IntN(2) == 0 {
		way = w.rnd.IntN(4)
	}
	w.failVolumes(w.volumes, way)
	w.after(w.randomBelow(time.Second), nil, w.crashAll)
}

// crashAll crashes all members at once. They start again soon.
func (w *world) crashAll() {
	ms := w.running()
	if len(ms) == 0 || w.stopping {
		return
	}
	again := w.coldStart // the members that start crash
	power := w.chance(w.o.Durable.Power)
	w.trace("all members crash, power lost: %v", power)
	w.mixHash(2)
	w.stats.count(map[bool]string{true: "fault: power lost", false: "fault: all members killed"}[power])
	w.oracle.allEnd(ms)
	for _, m := range ms {
		m.end()
	}
	for _, v := range w.volumes {
		if power {
			v.disk.PowerLoss()
		} else {
			v.disk.Kill()
		}
		if w.o.Durable.Failures > 0 && w.rnd.IntN(2) == 0 {
			v.heal()
		}
	}
	if again {
		w.oracle.disturbed(faultCrash)
		w.startAll(w.planned)
		return
	}
	if w.chance(w.o.Durable.Again) {
		w.after(w.randomBelow(2500*time.Millisecond), nil, func() {
			if w.coldStart || w.rnd.IntN(2) == 0 {
				w.crashAll()
			}
		})
	}
	w.damageVolumes(ms)
	w.oracle.disturbed(faultCrash)
	w.restartAll(ms)
}

// damageVolumes loses volumes of some of the members that have ended, or flips bits on them.
func (w *world) damageVolumes(ms []*member) {
	d := &w.o.Durable
	for _, v := range w.volumes {
		v.lost = false
	}
	if w.chance(d.Lost) {
		for range 1 + w.rnd.IntN(2)*w.rnd.IntN(len(ms)) {
			v := ms[w.rnd.IntN(len(ms))].volume
			w.trace("volume %d is lost", v.name)
			w.stats.count("fault: volume lost")
			w.replaceVolume(v)
			v.lost = true
			w.oracle.volumeLost(v)
		}
	}
	if w.chance(d.Flips) {
		v := ms[w.rnd.IntN(len(ms))].volume
		written := w.writtenPages(v) // the rest of a segment has only zeros
		use := func(f modeldisk.Flip) bool { return written[f.Path][f.Offset/4096] }
		if flips := v.disk.FlipBits(journalDir, 1+w.rnd.IntN(3), use); len(flips) > 0 {
			w.trace("volume %d: bits flip: %v", v.name, flips)
			w.stats.count("fault: bits flipped")
			v.lost = true
			w.oracle.volumeLost(v)
		}
	}
}

// writtenPages returns the pages of v's files that have other bytes than zeros.
func (w *world) writtenPages(v *volume) map[string]map[int64]bool {
	pages := map[string]map[int64]bool{}
	for _, path := range v.disk.Files(journalDir) {
		pages[path] = map[int64]bool{}
		for i, b := range v.disk.Bytes(path) {
			if b != 0 {
				pages[path][int64(i)/4096] = true
			}
		}
	}
	return pages
}

// stopAll stops all members in good order. They start again soon.
func (w *world) stopAll() {
	ms := w.running()
	switch {
	case len(ms) == 0 || w.stopping:
		return
	case w.coldStart:
		w.after(time.Second, nil, w.stopAll)
		return
	}
	w.trace("all members stop")
	w.mixHash(3)
	w.stats.count("plan: all members stopped")
	w.stopping = true
	for _, m := range ms {
		m.closing = true
	}
	// Until then, all requests are answered, and all replicas have arrived.
	w.after(w.o.Deadline+1500*time.Millisecond, nil, func() {
		ms = slices.DeleteFunc(ms, func(m *member) bool { return m.gone })
		w.oracle.allStop(ms)
		for _, m := range ms {
			w.after(w.randomBelow(500*time.Millisecond), m, func() { m.stopJournal(m.end) })
		}
		w.awaitStopped(ms)
	})
}

// awaitStopped starts members again once all of ms have ended.
func (w *world) awaitStopped(ms []*member) {
	if slices.ContainsFunc(ms, func(m *member) bool { return !m.gone }) {
		w.after(20*time.Millisecond, nil, func() { w.awaitStopped(ms) })
		return
	}
	w.oracle.allEnd(ms)
	for _, v := range w.volumes {
		v.lost = false
	}
	w.oracle.disturbed(faultCrash)
	w.stopping = false
	w.restartAll(ms)
}

// restartAll starts members again after all of ms have ended: the same ones, or others that have their volumes.
func (w *world) restartAll(ms []*member) {
	d := &w.o.Durable
	var slots []int
	for _, m := range ms {
		slots = append(slots, m.slot)
	}
	if d.Renames && w.rnd.IntN(4) > 0 {
		slots = w.rename(ms)
	}
	w.planned, w.expected = slots, len(slots)
	w.startAll(slots)
}

// startAll starts members in the given slots, each within a moment, and some of them late.
func (w *world) startAll(slots []int) {
	for _, i := range slots {
		at := w.randomBelow(1500 * time.Millisecond)
		if w.chance(w.o.Durable.Late) {
			at += coldStartLimit + w.randomBelow(2*time.Second)
		}
		w.after(at, nil, func() {
			if w.slots[i].now == nil && w.slots[i].boots < 30 {
				w.boot(i, false)
			}
		})
	}
}

// rename chooses slots for the members after a restart of all, as many or more or fewer, and gives them the volumes
// of those before.
func (w *world) rename(ms []*member) []int {
	n := len(ms)
	switch w.rnd.IntN(3) {
	case 0:
		n = max(1, n-1-w.rnd.IntN(2))
	case 1:
		n = min(len(w.slots), n+1+w.rnd.IntN(2))
	}
	order := w.rnd.Perm(len(w.slots))
	var volumes []*volume
	for _, m := range ms {
		if !slices.Contains(volumes, m.volume) {
			volumes = append(volumes, m.volume)
		}
	}
	w.rnd.Shuffle(len(volumes), func(i, j int) { volumes[i], volumes[j] = volumes[j], volumes[i] })
	for _, v := range w.volumes {
		if !slices.Contains(volumes, v) {
			volumes = append(volumes, v)
		}
	}
	for i, s := range order {
		w.slots[s].volume = volumes[i%len(volumes)]
	}
	slots := order[:n]
	for _, s := range slots {
		w.trace("%s will start with volume %d", slotID(s), w.slots[s].volume.name)
	}
	w.stats.count("plan: members renamed")
	return slots
}

// stallVolume makes a volume answer nothing for some seconds.
func (w *world) stallVolume() {
	v := w.volumes[w.rnd.IntN(len(w.volumes))]
	v.stallUntil = w.now + int64(500*time.Millisecond+w.randomBelow(4*time.Second))
	w.trace("volume %d stalls", v.name)
	w.stats.count("fault: volume stalled")
}

// heal ends all faults of v, except that it may still stall.
func (v *volume) heal() {
	v.syncError = nil
	v.disk.Heal()
}

// failVolume makes a volume fail for a while.
func (w *world) failVolume() {
	vs := w.volumes
	if w.rnd.IntN(3) > 0 {
		i := w.rnd.IntN(len(vs))
		vs = vs[i : i+1]
	}
	w.failVolumes(vs, w.rnd.IntN(4))
}

// failVolumes makes volumes fail for a while, in one of four ways.
func (w *world) failVolumes(vs []*volume, way int) {
	w.stats.count("fault: volume failed")
	for _, v := range vs {
		w.trace("volume %d fails: %d", v.name, way)
		switch way {
		case 0:
			v.disk.Fail(modeldisk.Write, syscall.EIO)
		case 1:
			v.syncError = syscall.EIO
			v.disk.Fail(modeldisk.Sync, v.syncError)
		case 2:
			v.disk.SetReadOnly(true)
		case 3:
			v.disk.SetBudget(v.disk.Used("/"))
		}
	}
	w.after(200*time.Millisecond+w.randomBelow(3*time.Second), nil, func() {
		for _, v := range vs {
			v.heal()
			w.trace("volume %d is healthy again", v.name)
		}
	})
}
