package cluster

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// volume is a member that starts with a data directory.
type volume struct {
	name        string
	after, load time.Duration // when it starts, and how long it loads
	noData      bool          // it has no data directory
	journals    membership.Journals
}

// sighting records what one member of a fleet has seen.
type sighting struct {
	*Cluster
	mu       sync.Mutex
	log      strings.Builder // guarded by mu
	placedAt time.Duration   // guarded by mu: when it had a place on the ring first, since the fleet's start; 0: never
	joinedAt time.Duration   // guarded by mu: when it had joined first; 0: never
	size     int             // guarded by mu: of the ring then
}

func (s *sighting) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(b)
}

// lines returns how often the log has each of the two lines about journals.
func (s *sighting) lines() (waiting, gaveUp int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.log.String()
	return strings.Count(text, `level=INFO msg="waiting for the journals of the last ring" ring=0`),
		strings.Count(text, `level=WARN msg="joining without all journals of the last ring" ring=0`)
}

// fleetOptions returns the options of v in a fleet of n members.
func fleetOptions(v volume, i, n, expect int) Options {
	var join []string
	for k := range n {
		join = append(join, fmt.Sprintf("127.0.0.1:%d", 7100+k))
	}
	o := options(v.name, join...)
	o.Bind, o.Expect, o.Data, o.Timing = join[i], expect, !v.noData, Timing{}
	return o
}

// startFleet starts the volumes, and returns them when limit has passed since the start of the first.
func startFleet(t *testing.T, expect int, limit time.Duration, volumes ...volume) []*sighting {
	t.Helper()
	type event struct {
		at time.Duration
		do func()
	}
	begin := time.Now()
	all, events := make([]*sighting, len(volumes)), []event{{limit, func() {}}}
	for i, v := range volumes {
		s := &sighting{}
		all[i] = s
		o := fleetOptions(v, i, len(volumes), expect)
		o.Logger = slog.New(slog.NewTextHandler(s, nil))
		o.OnView = func(w *membership.View) {
			s.mu.Lock()
			defer s.mu.Unlock()
			now := max(1, time.Since(begin))
			if s.placedAt == 0 && placed(w) {
				s.placedAt = now
			}
			if s.joinedAt == 0 && w.Joined {
				s.joinedAt, s.size = now, w.Ring.Len()
			}
		}
		events = append(events, event{v.after, func() { s.Cluster = up(t, o) }})
		if !v.noData {
			events = append(events, event{v.after + v.load, func() { s.SetLoaded(v.journals) }})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for _, e := range events {
		time.Sleep(e.at - time.Since(begin))
		e.do()
	}
	return all
}

// check requires that the member has had a place since from or later, and full rights within a second of full, on a
// ring of the given size; 0: any.
func (s *sighting) check(t *testing.T, from, full time.Duration, size, missing int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.View()
	late := s.joinedAt > full+time.Second
	if s.placedAt < from || s.joinedAt < full || late || size > 0 && s.size != size || v.Missing != missing {
		t.Errorf("%s was placed after %v and joined after %v on a ring of %d, %d missing; want %v, %v, %d, %d",
			v.Self, s.placedAt, s.joinedAt, s.size, v.Missing, from, full, size, missing)
	}
}

// Three members with all journals start in any order. None has a place before the last journal is loaded, and all have
// full rights a second later.
func TestJournalsInAnyOrder(t *testing.T) {
	for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var volumes []volume
				for i, at := range order {
					volumes = append(volumes, volume{
						name: fmt.Sprint("m-", i), after: time.Duration(at) * 5 * time.Second, load: time.Second,
						journals: journalsOf(3, 1),
					})
				}
				for i, s := range startFleet(t, 2, 15*time.Second, volumes...) {
					s.check(t, 11*time.Second, 11*time.Second, 3, 0)
					if waiting, gaveUp := s.lines(); waiting != min(1, 2-order[i]) || gaveUp != 0 {
						t.Errorf("%s logs %d waits and gives up %d times", volumes[i].name, waiting, gaveUp)
					}
				}
			})
		})
	}
}

func TestFleetsWithJournals(t *testing.T) {
	const second = time.Second
	none, three, five := membership.Journals{}, journalsOf(3, 1), journalsOf(5, 1)
	stale := membership.Journals{Ring: 0xdef, Size: 3, At: 900, Loaded: 1}
	fleet := func(journals ...membership.Journals) (all []volume) {
		for i, j := range journals {
			all = append(all, volume{name: string(rune('a' + i)), journals: j})
		}
		return all
	}
	for name, c := range map[string]struct {
		volumes []volume
		loads   []time.Duration // how long each volume loads
		full    time.Duration   // when all have full rights
		missing int
	}{
		"complete":         {fleet(three, three, three), nil, 0, 0},
		"one volume lost":  {fleet(three, three, none), nil, 30 * second, 1},
		"three to five":    {fleet(three, three, three, none, none), []time.Duration{2: 3 * second, 4: 0}, 3 * second, 0},
		"five to three":    {fleet(five, five, five), nil, 30 * second, 2},
		"on shared disks":  {fleet(journalsOf(5, 3), journalsOf(5, 2), none), nil, 0, 0},
		"one stale volume": {fleet(journalsOf(2, 1), journalsOf(2, 1), stale), nil, 0, 0},
		"one loads for long": {
			fleet(journalsOf(2, 1), journalsOf(2, 1), none), []time.Duration{2: 20 * second}, 20 * second, 0,
		},
		"all load for long": {
			fleet(three, three, three), []time.Duration{40 * second, 45 * second, 50 * second}, 50 * second, 0,
		},
		"other names": {
			[]volume{{name: "x", journals: three}, {name: "y", journals: three}, {name: "z-0", journals: three}},
			[]time.Duration{2: 3 * second}, 3 * second, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i, load := range c.loads {
				c.volumes[i].load = load
			}
			virtual(t, func(t *testing.T) {
				gaveUp := 0
				for _, s := range startFleet(t, len(c.volumes), c.full+5*second, c.volumes...) {
					s.check(t, c.full, c.full, len(c.volumes), c.missing)
					_, n := s.lines()
					gaveUp += n
				}
				if (gaveUp > 0) != (c.missing > 0) || gaveUp > len(c.volumes) {
					t.Errorf("%d members log that they give up", gaveUp)
				}
			})
		})
	}
}

// A member that does not finish loading delays the others for 30 s, and its lack of a place for 5 s more.
func TestOneLoadsForever(t *testing.T) {
	virtual(t, func(t *testing.T) {
		all := startFleet(t, 3, 101*time.Second,
			volume{name: "a", journals: journalsOf(3, 1)}, volume{name: "b", journals: journalsOf(3, 1)},
			volume{name: "c", load: 100 * time.Second, journals: journalsOf(3, 1)})
		for _, s := range all[:2] {
			s.check(t, 30*time.Second, 35*time.Second, 2, 0) // the last one has loaded now
		}
		all[2].check(t, 100*time.Second, 100*time.Second, 2, 0)
	})
}

// A member without a data directory waits for the journals that others announce.
func TestMixedFleetWaitsForJournals(t *testing.T) {
	a := volume{name: "a", journals: journalsOf(2, 1)}
	b := volume{name: "b", journals: journalsOf(2, 1), load: 10 * time.Second}
	c := volume{name: "c", noData: true}
	virtual(t, func(t *testing.T) {
		all := startFleet(t, 3, 15*time.Second, a, b, c)
		for i, size := range []int{3, 3, 0} { // c has full rights as soon as another member has
			all[i].check(t, 10*time.Second, 10*time.Second, size, 0)
		}
	})
}

// A member that restarts into a running cluster waits only until it has loaded its journals, whatever ring they name.
func TestRestartDoesNotWaitForJournals(t *testing.T) {
	virtual(t, func(t *testing.T) {
		volumes := []volume{
			{name: "a", journals: journalsOf(3, 1)}, {name: "b", journals: journalsOf(3, 1)},
			{name: "c", journals: journalsOf(3, 1)},
		}
		all := startFleet(t, 3, 5*time.Second, volumes...)
		all[2].Close()
		time.Sleep(time.Minute)
		again := up(t, fleetOptions(volumes[2], 2, 3, 3))
		time.Sleep(10 * time.Second)
		if v := again.View(); v.Joined || placed(v) || len(v.Members) != 3 {
			t.Fatalf("while loading: joined %v, placed %v, %d members", v.Joined, placed(v), len(v.Members))
		}
		again.SetLoaded(membership.Journals{Ring: 0xfff, Size: 3, At: 2000, Loaded: 1})
		time.Sleep(time.Second)
		for _, c := range []*Cluster{all[0].Cluster, all[1].Cluster, again} {
			if v := c.View(); !v.Joined || v.Ring.Len() != 3 || v.Missing != 0 {
				t.Errorf("%s: joined %v, ring of %d, %d missing", v.Self, v.Joined, v.Ring.Len(), v.Missing)
			}
		}
	})
}

// A standalone member has its place as soon as it has loaded its journals.
func TestStandaloneWithJournals(t *testing.T) {
	for size, gaveUp := range map[int]int{1: 0, 3: 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				s := &sighting{}
				s.Cluster = up(t, Options{Node: "alone", Data: true, Expect: 3, Logger: slog.New(slog.NewTextHandler(s, nil))})
				time.Sleep(time.Hour)
				if v := s.View(); v.Joined || placed(v) || !s.Searched() || !v.SelfMember().Loading {
					t.Errorf("while loading: joined %v, placed %v, searched %v", v.Joined, placed(v), s.Searched())
				}
				s.SetLoaded(journalsOf(size, 1))
				time.Sleep(time.Millisecond)
				v := s.View()
				if !v.Joined || !placed(v) || v.Missing != size-1 || v.SelfMember().Loading || v.NRef != 1 {
					t.Errorf("loaded: %+v", v)
				}
				if waiting, n := s.lines(); waiting != 0 || n != gaveUp {
					t.Errorf("logs %d waits, gives up %d times", waiting, n)
				}
			})
		})
	}
}

// Searched reports true only when the View has the members that the first attempt has found.
func TestSearched(t *testing.T) {
	virtual(t, func(t *testing.T) {
		a := up(t, options("a-0"))
		time.Sleep(time.Minute)
		views := 0
		var joining atomic.Pointer[Cluster]
		o := options("b", a.Gossip())
		o.OnView = func(v *membership.View) {
			b := joining.Load()
			if views++; b != nil && b.Searched() && len(v.Members) < 2 {
				t.Errorf("view %d lacks a member", views)
			}
		}
		b := up(t, o)
		joining.Store(b)
		if b.Searched() {
			t.Error("before the first attempt")
		}
		eventually(t, "the first attempt", b.Searched)
		if _, ok := b.View().Find("a-0"); !ok {
			t.Error("the view lacks a member that runs")
		}
	})
}
