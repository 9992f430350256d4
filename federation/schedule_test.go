package federation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// second returns a time in the year 2026, in Unix nanoseconds.
func second(n int) int64 {
	return time.Date(2026, 3, 1, 12, 0, n, 0, time.UTC).UnixNano()
}

// layouts returns the layouts of a file.
func layouts(t *testing.T, content string) []*Layout {
	t.Helper()
	ls, err := ParseLayouts("f.yaml", []byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return ls
}

const (
	layoutOne   = "{name: f, epoch: 1, coordinator: a, regions: [{name: a, weight: 3, address: 'a:1'}, {name: b, address: 'b:1'}]}\n"
	layoutTwo   = "{name: f, epoch: 2, from: 2026-03-01T12:02:00Z, coordinator: b, regions: [{name: a, address: 'a:1'}, {name: b, weight: 3, address: 'b:1'}]}\n"
	layoutThree = "{name: f, epoch: 3, from: 2026-03-01T12:01:00Z, coordinator: home, regions: [{name: b}, {name: c}]}\n"
)

func schedule(t *testing.T, region string, now int64, contents ...string) *LayoutSchedule {
	t.Helper()
	s, err := NewLayoutSchedule(region, time.Minute, layouts(t, contents[0]), now)
	for _, content := range contents[1:] {
		if err == nil {
			s, _, err = s.Update(layouts(t, content), now)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A window uses the layout with the highest epoch whose from is not after its begin.
func TestWindowsUseTheLayoutOfTheirBegin(t *testing.T) {
	s := schedule(t, "a", second(0), layoutOne+"---\n"+layoutTwo)
	for begin, want := range map[int64]uint32{0: 1, second(0): 1, second(120) - 1: 1, second(120): 2, second(9999): 2} {
		p := s.At(begin)
		if p.Layout.Epoch != want || !p.Opened(begin) {
			t.Errorf("a window that begins at %d uses epoch %d", begin, p.Layout.Epoch)
		}
		for epoch := range uint32(4) {
			if TermOf(s.TermOf).Lends(&PoolRequest{Epoch: epoch}, begin) != (epoch == want) {
				t.Errorf("epoch %d at %d", epoch, begin)
			}
		}
	}
	one, two := s.At(second(119)), s.At(second(120))
	if !one.Lends || two.Lends {
		t.Errorf("region a lends: %v, then %v", one.Lends, two.Lends)
	}
	for _, p := range []*LayoutPhase{one, two} {
		home := AuthorityID(p.Layout.Coordinator)
		if got := p.AuthorityOf(DefaultAuthority, Key{1, 2}); got != home {
			t.Errorf("epoch %d: coordinator %d", p.Layout.Epoch, got)
		}
		if got := p.AuthorityOf(AuthorityID("b"), Key{}); (got != 0) != (p == two) {
			t.Errorf("epoch %d: rules that name b have the coordinator %d", p.Layout.Epoch, got)
		}
		if got := p.AuthorityOf(AuthorityID("redis"), Key{}); got != AuthorityID("redis") {
			t.Errorf("epoch %d: rules that name redis have the coordinator %d", p.Layout.Epoch, got)
		}
	}
}

// A layout that follows and begins earlier replaces the one before it.
func TestALaterLayoutWithdrawsOneThatHasNotBegun(t *testing.T) {
	s := schedule(t, "b", second(0), layoutOne+"---\n"+layoutTwo, layoutOne+"---\n"+layoutTwo+"---\n"+layoutThree)
	for begin, want := range map[int64]uint32{second(59): 1, second(60): 3, second(120): 3, second(300): 3} {
		if p := s.At(begin); p.Layout.Epoch != want {
			t.Errorf("a window that begins at %d uses epoch %d", begin, p.Layout.Epoch)
		}
	}
	if s.At(second(60)).Opened(second(60)-1) || TermOf(s.TermOf).Lends(&PoolRequest{Epoch: 2}, second(200)) {
		t.Error("the layout of epoch 2 is used")
	}
}

// A process that reads a layout late lends and borrows nothing until the others have had the time to read it, too.
func TestLateLayouts(t *testing.T) {
	for now, opens := range map[int]int{0: 120, 60: 120, 61: 121, 119: 179, 120: 180, 500: 560} {
		s := schedule(t, "a", second(0), layoutOne)
		s, late, err := s.Update(layouts(t, layoutOne+"---\n"+layoutTwo), second(now))
		if err != nil || (len(late) > 0) != (opens > 120) {
			t.Fatalf("read after %d s: late %v, error %v", now, late, err)
		}
		for _, at := range []int{119, 120, opens - 1, opens} {
			p := s.At(second(at))
			if epoch := p.Layout.Epoch; (epoch == 2) != (at >= 120) || p.Opened(second(at)) != (at < 120 || at >= opens) {
				t.Errorf("read after %d s: after %d s epoch %d, opened %v", now, at, epoch, p.Opened(second(at)))
			}
		}
	}
}

// A process keeps the layouts that it has, and refuses a file that contradicts them.
func TestLayoutFilesThatContradict(t *testing.T) {
	both := layoutOne + "---\n" + layoutTwo
	for name, c := range map[string]struct{ before, after, want string }{
		"a layout changes in place": {both, strings.Replace(both, "weight: 3", "weight: 4", 1), "the layout of epoch 1 has changed"},
		"the newest is missing":     {both, layoutOne, "the layout of epoch 2 is missing"},
		"the one in use is missing": {layoutOne, layoutTwo, "the layout of epoch 1 is missing"},
		"another federation":        {layoutTwo, strings.Replace(layoutTwo, "name: f,", "name: g,", 1), "has changed"},
		"one between":               {both + "---\n" + strings.Replace(layoutThree, "3", "5", 1), strings.Replace(layoutThree, "3", "4", 1) + "---\n" + strings.Replace(layoutThree, "3", "5", 1), "the layout of epoch 4 is new"},
	} {
		s, err := NewLayoutSchedule("a", time.Minute, layouts(t, c.before), second(1000))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Update(layouts(t, c.after), second(1000)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewLayoutSchedule("a", time.Minute, layouts(t, layoutTwo), second(0)); err == nil || !strings.Contains(err.Error(), "begins at 2026-03-01T12:02:00Z") {
		t.Errorf("a start with a layout that does not apply yet: %v", err)
	}
	s := schedule(t, "a", second(1000), both, layoutTwo)
	if p := s.At(second(0)); p == nil || p.Layout.Epoch != 1 {
		t.Error("the layout of windows that have begun is forgotten")
	}
	if s := schedule(t, "a", second(1000), layoutTwo); s.At(second(0)) != nil {
		t.Error("after a restart without the former layout, its windows use the next one")
	}
}

// With one layout, budgets are those of Divide.
func TestOneLayoutDividesItsWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		l, names := randomLayout(r, 1)
		n, percent := r.Uint32N(5000)>>r.IntN(12), uint8(r.IntN(101))
		for i, name := range names {
			s, err := NewLayoutSchedule(name, time.Minute, []*Layout{l}, 0)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := s.At(0).Budget(n, percent), Divide(n, l.Weights(), percent, i); got != want {
				t.Fatalf("%d of %d, weights %v, region %d: %+v, not %+v", percent, n, l.Weights(), i, got, want)
			}
		}
	}
}

// randomLayout returns a layout of some of six regions in random order.
func randomLayout(r *rand.Rand, epoch uint32) (l *Layout, names []string) {
	l = &Layout{Name: "f", Epoch: epoch, Coordinator: "home"}
	for _, i := range r.Perm(6)[:1+r.IntN(6)] {
		w := []uint32{0, 1, 1, 2, 7, 1 << 31}[r.IntN(6)]
		if len(names) == 0 {
			w = 1 + r.Uint32N(3)
		}
		names = append(names, fmt.Sprint(i))
		l.Regions = append(l.Regions, LayoutRegion{Name: names[len(names)-1], Weight: &w})
	}
	return l, names
}

// While layouts are in the file together, whatever some regions have read of it, the floors and the largest pool are within
// the limit. Regions that have removed the first layouts have at most what the newest one alone gives.
func TestMixedLayoutsStayWithinTheLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 20000 {
		var ls []*Layout
		for epoch := range uint32(1 + r.IntN(3)) {
			l, _ := randomLayout(r, epoch+1)
			if epoch > 0 {
				l.From = "2026-03-01T12:00:00Z"
			}
			ls = append(ls, l)
		}
		n, percent := r.Uint32N(5000)>>r.IntN(12), uint8(r.IntN(101))
		floors, pool := uint64(0), uint64(0)
		first, known := r.IntN(len(ls)), r.IntN(2) == 0
		for i := range 6 {
			mine := ls[:1+r.IntN(len(ls))] // of those that each region has read
			if known {                     // all have all, and some have removed the first ones
				mine = ls[r.IntN(first+1):]
			}
			s, err := NewLayoutSchedule(fmt.Sprint(i), time.Minute, mine, second(0))
			if err != nil {
				t.Fatal(err)
			}
			b := s.At(second(0)).Budget(n, percent)
			floors, pool = floors+uint64(b.Floor), max(pool, uint64(b.Pool))
		}
		if floors+pool > uint64(n) {
			t.Fatalf("limit %d, floors of %d %% are %d, and the pool is %d: %+v", n, percent, floors, pool, slices.Collect(func(yield func(Layout) bool) {
				for _, l := range ls {
					yield(*l)
				}
			}))
		}
	}
}
