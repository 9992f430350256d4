//go:build !race

package spec

import "math/bits"

// invariants contains the invariants of the modules by their names there.
var invariants = map[string]func(*model, *state) bool{
	"Strict":   func(m *model, s *state) bool { return s.mostAdmitted() <= m.limit },
	"Bound":    func(m *model, s *state) bool { return s.mostAdmitted() <= m.limit+m.overdraft()+m.lost(s) },
	"Charged":  charged,
	"Covered":  covered,
	"Recorded": recorded,
	"Repaired": repaired,
}

// mostAdmitted returns the most hits admitted in a window.
func (s *state) mostAdmitted() (most int8) {
	for w, n := range s.spent {
		for r := range s.floors {
			n += s.floors[r][w]
		}
		most = max(most, n)
	}
	return most
}

// overdraft returns the hits that regional_only may add in one window.
func (m *model) overdraft() (n int8) {
	for r := range m.regions {
		if m.regionalOnly && m.away[r] {
			n += m.slice[r] - m.floor[r]
		}
	}
	return n
}

// lost returns the hits that lost writes may have added.
func (m *model) lost(s *state) int8 { return s.losses * m.batch }

func charged(m *model, s *state) bool {
	for _, n := range s.store.charged {
		if n > m.pool() {
			return false
		}
	}
	return true
}

func covered(m *model, s *state) bool {
	for w := range m.windows {
		n := s.spent[w]
		for r := range m.regions {
			n += s.owed(r, w+1)
		}
		if n > s.store.charged[w]+m.lost(s) {
			return false
		}
	}
	return true
}

// owed returns how many more hits of window w region r can spend from escrow without another grant.
func (s *state) owed(r, w int8) (n int8) {
	g := s.regions[r]
	if g.window > w {
		return 0
	}
	have := int8(0)
	if g.window == w {
		n, have = g.left, g.have
	}
	if g.waiting {
		if set := s.grants[r][g.seq-1][w-1]; set != 0 {
			n += max(0, int8(bits.Len16(uint16(set)))-1-have)
		}
	}
	if !g.taken {
		if t := s.moves[r][g.boot-2]; t.window == w {
			n += t.left
		}
	}
	return n
}

func recorded(m *model, s *state) bool {
	for r := range m.regions {
		if g := s.regions[r]; g.window == s.window && g.have > s.store.records[r].granted {
			return false
		}
	}
	return true
}

func repaired(_ *model, s *state) bool {
	var n int8
	for _, r := range s.store.records {
		n += r.granted
	}
	return n <= s.store.charged[s.window-1]
}
