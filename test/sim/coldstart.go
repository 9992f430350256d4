package sim

import "time"

// The times of a start, shorter than those of package cluster: 30 s and 5 s.
const (
	coldStartLimit = 6 * time.Second
	placesLimit    = 2 * time.Second
	seekEvery      = 50 * time.Millisecond
)

// join takes a place on the ring as package cluster does without --data: when m's turn has come. m may decide as soon as it
// has met a member that may. If there is none, all members have ended, and those that start together take their places at
// once. Each of them decides when all that it has met have places on its ring, or coldStartLimit has passed, so that none is a
// cluster of its own.
func (m *member) join() {
	met := m.hasMet()
	if !m.joined && met && (m.clusterRunning() || m.table[m.slot].state == active && (m.allPlaced() || m.waitedFor(coldStartLimit))) {
		m.trustRing()
	}
	if m.table[m.slot].state == joining && met {
		turn := !m.joined || (m.node.Progress().Prefetched || m.w.concurrentChanges()) && m.myTurn(joining)
		if turn || m.waitedFor(joinWithin) {
			m.w.oracle.grown()
			m.become(active)
			m.update()
		}
	}
	if !m.joined || m.table[m.slot].state == joining {
		m.w.after(100*time.Millisecond, m, m.join)
	}
}

// trustRing makes m decide by its ring.
func (m *member) trustRing() {
	m.joined, m.table[m.slot].established = true, true
	m.update()
}

// allPlaced reports whether all live members that do not leave have places on m's ring.
func (m *member) allPlaced() bool {
	for i := range m.table {
		if m.live(i) && m.table[i].state != leaving && m.ringBoots[i] == 0 {
			return false
		}
	}
	return true
}

// seek takes a place on the ring as package cluster does with --data: not before m's journals are loaded, and in a cold
// start, not before all journals of the last ring are, or coldStartLimit has passed. m may decide once all live members
// have places, or placesLimit has passed.
func (m *member) seek() {
	w := m.w
	if w.now-m.gossipedAt > int64(time.Second) { // m has paused, and has not heard from the others since
		w.after(seekEvery, m, m.seek)
		return
	}
	running := m.clusterRunning()
	if !m.seated && m.mayJoin() {
		m.seated, m.seatedAt, m.startedCluster = true, w.now, !running
		w.trace("%s joins; the cluster runs: %v", m.name(), running)
	}
	if m.seated {
		established := m.joined || running && !m.waitsForPlaces()
		if m.table[m.slot].state == joining {
			m.establish(established)
			m.takePlace(running)
		}
		m.establish(established || m.mayTrustRing())
	}
	if m.table[m.slot].state == joining || !m.joined {
		w.after(seekEvery, m, m.seek)
	}
}

// takePlace makes m active if its turn has come.
func (m *member) takePlace(running bool) {
	if running {
		ready := m.node.Progress().Prefetched || m.w.concurrentChanges()
		if !(ready && m.joined && m.myTurn(joining)) && m.w.now-m.seatedAt < int64(joinWithin) {
			return
		}
		m.w.oracle.grown()
	}
	m.become(active)
	m.update()
}

// establish makes m trust its ring from now on, if on is set.
func (m *member) establish(on bool) {
	if !on || m.joined {
		return
	}
	m.joined, m.trustedAt = true, m.w.now
	m.table[m.slot].established = true
	m.w.trace("%s trusts its ring", m.name())
	m.w.oracle.restarted(m)
	m.update()
	m.gossipToAll()
}

// clusterRunning reports whether another member is active and trusts its ring.
func (m *member) clusterRunning() bool {
	return m.any(func(e *entry) bool { return e.state == active && e.established })
}

// any reports whether f returns true for another live member.
func (m *member) any(f func(*entry) bool) bool {
	for i := range m.table {
		if i != m.slot && m.live(i) && f(&m.table[i]) {
			return true
		}
	}
	return false
}

// mayJoin reports whether m may take part.
func (m *member) mayJoin() bool {
	if m.w.bug == bugDecideWhileLoading {
		return m.hasMetOthers()
	}
	switch {
	case m.table[m.slot].loading:
		return false
	case !m.hasMetOthers():
		return false
	case m.any(func(e *entry) bool { return e.state == active }):
		last, complete := m.journalsLoaded()
		m.followed = last.ring == 0 || !complete
		return true
	}
	if _, complete := m.journalsLoaded(); complete {
		return true
	}
	if m.waitedFor(coldStartLimit) && m.w.now-m.loadedAt >= int64(coldStartLimit) {
		m.w.stats.count("journal: joined without all")
		if m.w.allLoaded() {
			m.w.stats.count("journal: joined without all, although all were loaded")
		}
		return true
	}
	return false
}

// hasMetOthers reports whether m has met an active member, or all that start together, or has waited long enough.
func (m *member) hasMetOthers() bool {
	known := 0
	for i := range m.table {
		if m.live(i) {
			known++
		}
	}
	return known >= m.w.expected && m.hasMet() || m.waitedFor(coldStartLimit) || m.any(func(e *entry) bool { return e.state == active })
}

func (m *member) waitedFor(d time.Duration) bool { return m.w.now-m.startedAt >= int64(d) }

// journalsLoaded returns the last ring that live members announce, and whether they have loaded all journals of it and
// none is loading. A running cluster needs no journals.
func (m *member) journalsLoaded() (last announcement, complete bool) {
	if m.clusterRunning() {
		return last, true
	}
	for i := range m.table {
		a := &m.table[i].journals
		if m.live(i) && a.ring != 0 && (a.at > last.at || a.at == last.at && (a.ring > last.ring || a.ring == last.ring && a.size > last.size)) {
			last = *a
		}
	}
	n := 0
	for i := range m.table {
		if e := &m.table[i]; m.live(i) && e.state != leaving && e.journals.ring == last.ring {
			n += e.journals.loaded
		}
	}
	loading := m.any(func(e *entry) bool { return e.loading && e.state != leaving })
	return last, !loading && (last.ring == 0 || n >= last.size)
}

func (m *member) waitsForPlaces() bool {
	return m.startedCluster && m.w.now-m.seatedAt < int64(placesLimit)
}

// mayTrustRing reports whether m may trust its ring although it has met no running cluster.
func (m *member) mayTrustRing() bool {
	waits := m.waitsForPlaces()
	if !waits && m.waitedFor(coldStartLimit) {
		return true
	}
	return m.allPlaced() && (!waits || !m.followed ||
		m.any(func(e *entry) bool { return e.state == active && e.established && e.ring == m.view.Ring.Fingerprint() }))
}
