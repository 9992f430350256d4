//go:build !race

package spec

import (
	"path/filepath"
	"testing"
)

// result is the result of a search by the twin or by TLC. Both search breadth first, so the shortest path to a
// violation has the same length.
type result struct {
	states   int    // distinct states; 0 if an invariant is violated
	violated string // an invariant, or empty
	depth    int    // states on the shortest path to the violation, or on the longest of all shortest paths
}

// explore visits all states, nearest first, and one state for each key. It stops when visit returns false. It returns
// the number of keys, and the number of states on the longest of all shortest paths.
func (m *model) explore(key func(state) state, visit func(*state) bool) (keys, depth int) {
	seen, more := map[state]struct{}{}, true
	level, next := []state(nil), []state(nil)
	add := func(s state) {
		k := key(s)
		if _, known := seen[k]; more && !known {
			seen[k] = struct{}{}
			next = append(next, k)
			more = visit(&k)
		}
	}
	for add(m.first()); len(next) > 0; depth++ {
		level, next = next, level[:0]
		for i := 0; i < len(level) && more; i++ {
			m.next(level[i], add)
		}
	}
	return len(seen), depth
}

// search explores all states, or all views if the configuration has one, until an invariant is violated.
func (m *model) search(checked []string) (out result) {
	key := func(s state) state { return s }
	if m.view {
		key = m.canonical
	}
	out.states, out.depth = m.explore(key, func(s *state) bool {
		for _, name := range checked {
			if !invariants[name](m, s) {
				out.violated = name
			}
		}
		return out.violated == ""
	})
	if out.violated != "" {
		out.states = 0
	}
	return out
}

// want contains the results for all configurations.
var want = map[string]result{
	"WindowLeases.cfg":        {states: 91035, depth: 20},
	"Federated.cfg":           {states: 51566, depth: 19},
	"Federated-outage.cfg":    {states: 15576, depth: 22},
	"Federated-lostwrite.cfg": {states: 17884, depth: 17},
	"Federated-move.cfg":      {states: 12936, depth: 18},
	"Federated-all.cfg":       {states: 31072, depth: 20},

	"broken/WindowLeases-carryover.cfg":       {violated: "Bound", depth: 11},
	"broken/WindowLeases-doublereconcile.cfg": {violated: "Bound", depth: 10},
	"broken/WindowLeases-latecharge.cfg":      {violated: "Bound", depth: 9},
	"broken/WindowLeases-nextwindow.cfg":      {violated: "Bound", depth: 12},
	"broken/WindowLeases-twooutstanding.cfg":  {violated: "Bound", depth: 11},
	"broken/Federated-bootcredit.cfg":         {violated: "Bound", depth: 10},
	"broken/Federated-carryover.cfg":          {violated: "Bound", depth: 12},
	"broken/Federated-doublereconcile.cfg":    {violated: "Bound", depth: 10},
	"broken/Federated-floorlent.cfg":          {violated: "Bound", depth: 10},
	"broken/Federated-nextwindow.cfg":         {violated: "Bound", depth: 12},
	"broken/Federated-taketwice.cfg":          {violated: "Bound", depth: 10},
	"broken/Federated-twooutstanding.cfg":     {violated: "Bound", depth: 12},
	"broken/Federated-norepair.cfg":           {violated: "Repaired", depth: 7},
	"broken/Federated-outage.cfg":             {violated: "Strict", depth: 8},
	"broken/Federated-lostwrite.cfg":          {violated: "Strict", depth: 11},
}

// configs returns the paths of all configurations and requires that want contains them, and no others.
func configs(t *testing.T) []string {
	t.Helper()
	paths, _ := filepath.Glob("*.cfg")
	broken, _ := filepath.Glob("broken/*.cfg")
	paths = append(paths, broken...)
	for _, path := range paths {
		if _, ok := want[filepath.ToSlash(path)]; !ok {
			t.Errorf("no result is expected of %s", path)
		}
	}
	if len(paths) != len(want) {
		t.Errorf("%d configurations, but %d expected results", len(paths), len(want))
	}
	return paths
}

func load(t *testing.T, path string) (*model, []string) {
	t.Helper()
	m, checked, err := readConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	return m, checked
}

// TestTwin searches all configurations in Go.
func TestTwin(t *testing.T) {
	for _, path := range configs(t) {
		t.Run(path, func(t *testing.T) {
			m, checked := load(t, path)
			if got := m.search(checked); got != want[path] {
				t.Errorf("got %+v, want %+v", got, want[path])
			}
		})
	}
}

// TestLarger searches more states than TLC can in a few seconds.
func TestLarger(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	for _, c := range []struct {
		config string
		change func(*model)
		states int
	}{
		{"WindowLeases.cfg", func(m *model) { m.limit, m.batch = 3, 3 }, 356820},
		{"Federated-outage.cfg", func(m *model) { m.windows, m.requests = 2, 1 }, 367176},
		{"Federated-lostwrite.cfg", func(m *model) { m.lostWrites = 2 }, 95560},
		{"Federated-move.cfg", func(m *model) { m.limit, m.batch = 2, 2 }, 52321},
		{"Federated-move.cfg", func(m *model) { m.windows = 2 }, 1379888},
		{"Federated-all.cfg", func(m *model) { m.requests = 2 }, 825384},
	} {
		t.Run(c.config, func(t *testing.T) {
			m, checked := load(t, c.config)
			c.change(m)
			if got := m.search(checked); got.violated != "" || got.states != c.states {
				t.Errorf("got %+v, want %d states", got, c.states)
			}
		})
	}
}

// TestView requires that a search of views finds the views of all states: what a view leaves out has no effect.
func TestView(t *testing.T) {
	for _, path := range []string{
		"Federated.cfg", "Federated-outage.cfg", "Federated-lostwrite.cfg", "Federated-move.cfg", "Federated-all.cfg",
	} {
		m, _ := load(t, path)
		views := map[state]struct{}{}
		states, _ := m.explore(func(s state) state { return s }, func(s *state) bool {
			views[m.canonical(*s)] = struct{}{}
			return true
		})
		if len(views) != want[path].states {
			t.Errorf("%s: %d views of %d states, but a search of views finds %d", path, len(views), states, want[path].states)
		}
	}
}
