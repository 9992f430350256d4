//go:build !race

package spec

// The model is a twin of both modules: it implements the actions of Federated.tla with the same names. WindowLeases.tla
// is the special case without floors, outages, lost writes and owner changes.

// The arrays of a state have room for these constants.
const (
	maxRegions  = 2
	maxWindows  = 2
	maxRequests = 2
	maxBoots    = 2
)

// state is one state of the model. Equal states have equal values: every message has a fixed place.
type state struct {
	window        int8
	store, before store
	losses        int8
	regions       [maxRegions]region
	floors        [maxRegions][maxWindows]int8
	cut           [maxRegions]bool
	requests      [maxRegions][maxRequests]request
	grants        [maxRegions][maxRequests][maxWindows]totals
	moves         [maxRegions][maxBoots]move
	spent         [maxWindows]int8
}

// store is the coordinator's store.
type store struct {
	charged [maxWindows]int8
	records [maxRegions]record
}

type record struct{ boot, seq, granted int8 }

// region is the escrow of a region, or a holder of WindowLeases.tla. Windows and numbers of requests start at 1.
type region struct {
	window, have, left, boot, seq int8
	taken, waiting                bool
}

// request is a message to the coordinator. Its region and number are its place; boot 0 means that it was not sent.
type request struct{ boot, window, have int8 }

// totals is the set of the totals in all grants of one region, request and window.
type totals uint16

// move is a balance sent to the next owner. Its region and boot are its place; window 0 means that it was not sent.
type move struct{ window, left int8 }

// model contains the constants of a module.
type model struct {
	regions, limit, windows, batch, requests, lostWrites, moves int8
	floor, slice                                                [maxRegions]int8
	away                                                        [maxRegions]bool
	regionalOnly                                                bool
	bug                                                         string
	view                                                        bool // count views instead of states
}

func (m *model) first() (s state) {
	s.window = 1
	for r := range m.regions {
		s.regions[r] = region{window: 1, boot: 1, taken: true}
	}
	return s
}

// pool returns the hits that the coordinator may lend.
func (m *model) pool() int8 {
	if m.bug == "floorlent" {
		return m.limit
	}
	return m.limit - m.floor[0] - m.floor[1]
}

// next visits the successors of s.
func (m *model) next(s state, visit func(state)) {
	if s.window < m.windows {
		visit(m.coordinatorTick(s))
	}
	if s.losses < m.lostWrites && s.store != s.before {
		c := s
		c.losses, c.store = s.losses+1, s.before
		visit(c)
	}
	for r := range m.regions {
		m.local(s, r, visit)
		for i, q := range s.requests[r] {
			if q.boot != 0 {
				m.lend(s, r, int8(i+1), q, visit)
			}
		}
		for i, windows := range s.grants[r] {
			for w, set := range windows {
				for t := int8(0); set>>t != 0; t++ {
					if set>>t&1 != 0 {
						m.accept(s, r, int8(i+1), int8(w+1), t, visit)
					}
				}
			}
		}
		for i, t := range s.moves[r] {
			if t.window != 0 {
				m.take(s, r, int8(i+1), t, visit)
			}
		}
	}
}

// local visits the successors of s that differ by an action of region r alone.
func (m *model) local(s state, r int8, visit func(state)) {
	g := s.regions[r]
	w := g.window - 1
	if g.window < m.windows {
		c := s
		c.regions[r] = m.enter(g, g.window+1)
		visit(c)
	}
	if s.floors[r][w] < m.floorLimit(&s, r) {
		c := s
		c.floors[r][w]++
		visit(c)
	}
	if g.left > 0 {
		c := s
		c.regions[r].left--
		c.spent[w]++
		visit(c)
	}
	if g.seq < m.requests {
		visit(send(s, r, 0))
		visit(send(s, r, min(g.left, g.have)))
	}
	if g.boot <= m.moves {
		c := s
		c.moves[r][g.boot-1] = move{g.window, g.left}
		c.regions[r] = region{window: g.window, boot: g.boot + 1, seq: g.seq}
		visit(c)
	}
	if m.away[r] {
		c := s
		c.cut[r] = !s.cut[r]
		visit(c)
	}
}

// enter returns the state of a region that has entered window w.
func (m *model) enter(g region, w int8) region {
	g.window, g.have = w, 0
	if m.bug != "carryover" {
		g.left = 0
	}
	return g
}

// reach returns the state of a region that has received a message about window w.
func (m *model) reach(g region, w int8) region {
	if w > g.window {
		return m.enter(g, w)
	}
	return g
}

func (m *model) floorLimit(s *state, r int8) int8 {
	if m.regionalOnly && s.cut[r] {
		return max(m.floor[r], m.slice[r]-s.regions[r].have)
	}
	return m.floor[r]
}

func send(s state, r, back int8) state {
	g := &s.regions[r]
	g.have, g.left, g.seq, g.waiting = g.have-back, g.left-back, g.seq+1, true
	s.requests[r][g.seq-1] = request{g.boot, g.window, g.have}
	return s
}

func (m *model) accept(s state, r, seq, window, total int8, visit func(state)) {
	if s.cut[r] || !s.awaits(r, seq) && m.bug != "twooutstanding" {
		return
	}
	g := m.reach(s.regions[r], window)
	g.waiting = false
	if window == g.window && total >= g.have {
		g.left += total - g.have
		g.have = total
	}
	s.regions[r] = g
	visit(s)
}

// awaits reports whether region r accepts grants for a request.
func (s *state) awaits(r, seq int8) bool { return s.regions[r].waiting && s.regions[r].seq == seq }

func (m *model) take(s state, r, boot int8, t move, visit func(state)) {
	g := m.reach(s.regions[r], t.window)
	if boot+1 != g.boot || g.taken && m.bug != "taketwice" {
		return
	}
	g.taken = true
	if t.window == g.window {
		g.left += t.left
	}
	s.regions[r] = g
	visit(s)
}

func (m *model) coordinatorTick(s state) state {
	s.window++
	if m.bug != "nextwindow" {
		s.store.records = [maxRegions]record{}
	}
	s.before = s.store
	return s
}

// recordOf returns what a request of the given owner has to be compared with.
func (m *model) recordOf(s *state, r, boot int8) record {
	old := s.store.records[r]
	switch {
	case old.boot == boot:
		return old
	case m.bug == "bootcredit":
		return record{granted: old.granted}
	}
	return record{}
}

func (m *model) lend(s state, r, seq int8, q request, visit func(state)) {
	old, have := m.recordOf(&s, r, q.boot), int8(0)
	if q.window == s.window {
		have = q.have
	}
	change := have - old.granted
	switch m.bug {
	case "nextwindow":
		change = q.have - old.granted
	case "norepair":
		change = min(0, change)
	}
	if s.cut[r] || q.window > s.window || seq <= old.seq && m.bug != "doublereconcile" {
		return
	}
	w := s.window - 1
	rest := max(0, s.store.charged[w]+change)
	for n := range min(m.batch, max(0, m.pool()-rest)) + 1 {
		c, paid := s, n
		if m.bug == "latecharge" {
			paid = 0
		}
		c.before = s.store
		c.store.charged[w] = rest + paid
		c.store.records[r] = record{q.boot, seq, have + paid}
		c.grants[r][seq-1][w] |= 1 << (have + n)
		visit(c)
	}
}

// canonical returns the view of s: a state without what can no longer have an effect.
func (m *model) canonical(s state) state {
	if s.losses == m.lostWrites {
		s.before = store{}
	}
	useful := s.window < m.windows || s.losses < m.lostWrites || m.moves > 0 // all requests are
	for r := range m.regions {
		for i := range s.requests[r] {
			seq := int8(i + 1)
			if !useful && seq <= s.store.records[r].seq {
				s.requests[r][i] = request{}
			}
			if !s.awaits(r, seq) {
				s.grants[r][i] = [maxWindows]totals{}
			}
		}
		for i := range s.moves[r] {
			if g := s.regions[r]; g.taken || int8(i+2) != g.boot {
				s.moves[r][i] = move{}
			}
		}
	}
	return s
}
