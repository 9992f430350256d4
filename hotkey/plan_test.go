package hotkey

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/keyward/keyward/ring"
)

// bench is a planner with its input of each second.
type bench struct {
	t      *testing.T
	now    int64
	at     *ring.Ring
	p      *Planner
	load   map[ring.ID]float64
	others []Route
}

func newBench(t *testing.T, members int) *bench {
	return &bench{t: t, now: 1_700_000_000 * second, at: ringOf(equal(members)...), p: NewPlanner("m0", 0)}
}

// plan advances time by a second. Every route must be valid, and the ring must assign its sub-keys to their members.
func (b *bench) plan(hot ...HotCounter) []Route {
	b.t.Helper()
	b.now += second
	routes := b.p.Plan(b.now, targets(b.at, b.load), hot, b.others)
	for _, r := range routes {
		if err := r.Validate(); err != nil || r.Manual || r.Author != "m0" {
			b.t.Errorf("%+v: %v", r, err)
		}
		for _, s := range r.Subs {
			if ownerOf(b.at, s.Key) != s.Member {
				b.t.Errorf("%q is not assigned to %s", s.Key, s.Member)
			}
		}
	}
	return routes
}

// alice is a key with this rate and a limit of 1000 per second.
func alice(rate float64) HotCounter {
	return HotCounter{Domain: "d", Name: "user=alice", Owner: "alice", Hash: ring.Hash("alice"), Rate: rate, Limit: 1000, Window: second, Splittable: true}
}

func TestSteps(t *testing.T) {
	type step struct {
		rate   float64 // 0: not hot
		mode   Mode
		capped bool
	}
	steps := func(s ...step) []step { return s }
	for name, c := range map[string]struct {
		change func(h *HotCounter)
		steps  []step // one per second
	}{
		"below its limit: spread": {func(*HotCounter) {}, steps(step{900, Spread, false}, step{900, Spread, false}, step{0, Auto, false})},
		"twice its limit: split":  {func(*HotCounter) {}, steps(step{2000, Spread, false})},
		"a cap that is enough": {func(*HotCounter) {}, steps(step{2100, Cap, true}, step{2100, Cap, true}, step{1000, Cap, true},
			step{1040, Cap, true}, step{1040, Cap, true}, step{1040, Cap, true}, step{1040, Cap, true}, step{1000, Cap, true})},
		"a cap that is not enough": {func(*HotCounter) {}, steps(step{8000, Cap, true}, step{8000, Cap, true}, step{8000, Cap, true}, step{8000, Cap, true},
			step{8000, Cap, true}, step{4001, Spread, true}, step{1500, Spread, true}, step{999, Spread, false}, step{2000, Spread, false}, step{2001, Spread, true})},
		"a cap that is no longer needed": {func(*HotCounter) {}, steps(step{2100, Cap, true}, step{999, Spread, false})},
		"cooled meanwhile":               {func(*HotCounter) {}, steps(step{2100, Cap, true}, step{0, Auto, false}, step{1500, Spread, false})},
		"dedicated":                      {func(h *HotCounter) { h.Dedicated = true }, steps(step{900, Dedicated, false}, step{2100, Dedicated, true})},
		"not to be split":                {func(h *HotCounter) { h.Splittable, h.Dedicated = false, true }, steps(step{900, Auto, false}, step{2100, Cap, true}, step{1000, Cap, true}, step{999, Auto, false})},
		"limit 0":                        {func(h *HotCounter) { h.Limit, h.Splittable = 0, false }, steps(step{5000, Auto, false})},
		"without an owner string":        {func(h *HotCounter) { h.Owner, h.Hash = "", 0 }, steps(step{900, Auto, false})},
		"no header has its value":        {func(h *HotCounter) { h.Hash++ }, steps(step{900, Auto, false})},
		"no header can have its value":   {func(h *HotCounter) { h.Owner = "alice "; h.Hash = ring.Hash(h.Owner) }, steps(step{900, Auto, false})},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 6)
			for i, s := range c.steps {
				var hot []HotCounter
				if s.rate > 0 {
					hot = []HotCounter{alice(s.rate)}
					c.change(&hot[0])
				}
				got := step{rate: s.rate}
				if routes := b.plan(hot...); len(routes) > 0 {
					got.mode, got.capped = routes[0].Mode, routes[0].Capped()
				}
				if got != s {
					t.Errorf("second %d: %+v, want %+v", i, got, s)
				}
			}
		})
	}
}

func TestPlanSubKeys(t *testing.T) {
	for name, c := range map[string]struct {
		members int
		subs    uint8
		want    int // 0: no route
	}{
		"default": {10, 0, 4}, "as in the rule": {10, 7, 7}, "at most 16": {30, 200, 16}, "all members": {3, 0, 3},
		"both": {2, 0, 2}, "no other member": {1, 0, 0}, "no ring": {0, 0, 0},
	} {
		b := newBench(t, c.members)
		h := alice(900)
		h.SubKeys = c.subs
		routes, got := b.plan(h), 0
		if len(routes) > 0 {
			got = len(routes[0].Subs)
		}
		if got != c.want {
			t.Errorf("%s: %d sub-keys, want %d", name, got, c.want)
		}
	}
}

func TestPlanKeepsPlacementAndVersion(t *testing.T) {
	b := newBench(t, 8)
	first := b.plan(alice(900))[0]
	if first.Version != b.now || first.Name != "user=alice" || first.Limit != 0 {
		t.Errorf("%+v", first)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		b.load = map[ring.ID]float64{}
		for _, id := range idsOf(b.at) {
			b.load[id] = rnd.Float64() * 1000
		}
		if got := b.plan(alice(500 + 1000*rnd.Float64())); !reflect.DeepEqual(got, []Route{first}) {
			t.Fatalf("%+v became %+v", first, got)
		}
	}
	b.at = ring.New(slices.DeleteFunc(ids(b.at), func(m ring.Member) bool { return m.ID == first.Subs[0].Member }))
	got := b.plan(alice(900))[0]
	if got.Version != b.now || len(got.Subs) != 4 || slices.Contains(membersOf(got.Subs), first.Subs[0].Member) {
		t.Errorf("without %s: %+v", first.Subs[0].Member, got)
	}
}

func TestPlanSpreadsManyKeys(t *testing.T) {
	b, at := newBench(t, 10), map[ring.ID]float64{}
	b.load = map[ring.ID]float64{}
	var hot []HotCounter
	for i := range 50 {
		h := alice(1000)
		h.Owner, h.Hash = fmt.Sprint("customer-", i), 0
		hot = append(hot, h)
	}
	for _, r := range b.plan(hot...) {
		for _, s := range r.Subs {
			at[s.Member]++
		}
	}
	for id, n := range at {
		if n < 18 || n > 22 {
			t.Errorf("%s has %v of 200 sub-keys of 10 members", id, n)
		}
	}
	if len(b.load) > 0 {
		t.Error("Plan modified its argument Load")
	}
}

func TestPlanHottestFirst(t *testing.T) {
	b := newBench(t, 5)
	b.p = NewPlanner("m0", 10)
	var hot []HotCounter
	for i := range 30 {
		h := alice(100 + 10*float64(i))
		h.Owner, h.Hash = fmt.Sprint("customer-", i), 0
		hot = append(hot, h)
	}
	owners := func() (s []string) {
		for _, r := range b.plan(hot...) {
			s = append(s, r.Owner)
		}
		slices.Sort(s)
		return s
	}
	first := owners()
	if len(first) != 10 || !slices.Contains(first, "customer-29") || slices.Contains(first, "customer-19") {
		t.Errorf("routes for %v", first)
	}
	hot[0].Rate = 100 + 200*1.24 // less than a quarter hotter than the coldest
	if got := owners(); !slices.Equal(got, first) {
		t.Errorf("%v became %v", first, got)
	}
	hot[0].Rate = 1000
	if got := owners(); len(got) != 10 || !slices.Contains(got, "customer-0") || slices.Contains(got, "customer-20") {
		t.Errorf("routes for %v", got)
	}
	for i := range 4 {
		b.others = append(b.others, Route{Domain: "d", Owner: fmt.Sprint("other-", i), Mode: Cap, Author: "m1", Version: 1})
	}
	b.others = append(b.others, Route{Domain: "d", Owner: "younger", Mode: Cap, Author: "m1", Version: 2 * b.now})
	if got := owners(); len(got) != 6 {
		t.Errorf("%d routes in addition to 4 older and a newer one, of 10", len(got))
	}
}

func TestPlanOneCounterForAnOwnerString(t *testing.T) {
	b := newBench(t, 5)
	strict, loose := alice(2100), alice(2100)
	strict.Limit, loose.Window, loose.Name = 5, second/10, "user=alice,path=/"
	routes := b.plan(strict, loose, strict)
	if len(routes) != 1 || routes[0].Capped() || routes[0].Name != loose.Name {
		t.Errorf("%+v", routes)
	}
}

func TestPlanObeysManualRoutes(t *testing.T) {
	b := newBench(t, 5)
	byHand := func(by ring.ID, mode Mode, ver int64) Route {
		return Route{Domain: "d", Owner: "alice", Manual: true, Author: by, Mode: mode, Version: ver}
	}
	for name, c := range map[string]struct {
		others []Route
		want   int
	}{
		"nothing":          {nil, 1},
		"never":            {[]Route{byHand("m3", Never, 1)}, 0},
		"by this member":   {[]Route{byHand("m0", Cap, 1)}, 0},
		"cleared":          {[]Route{byHand("m0", Cap, 1), byHand("m3", Auto, 2)}, 1},
		"cleared before":   {[]Route{byHand("m3", Auto, 1), byHand("m0", Cap, 2)}, 0},
		"of another owner": {[]Route{{Domain: "d", Owner: "bob", Manual: true, Author: "m1", Mode: Never, Version: 1}}, 1},
	} {
		b.others = c.others
		if got := b.plan(alice(900)); len(got) != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	b.others = []Route{byHand("m3", Never, 1)}
	b.plan(alice(3000))
	b.others = nil
	if got := b.plan(alice(3000)); len(got) != 1 || got[0].Mode != Cap {
		t.Errorf("after a manual route has ended, the first step is %+v", got)
	}
}

func TestPlanYieldsToANewerRoute(t *testing.T) {
	b := newBench(t, 6)
	mine := b.plan(alice(900))[0]
	rival := Route{Domain: "d", Owner: "alice", Name: "user=alice", Author: "m1", Mode: Spread, Version: mine.Version - 1,
		Subs: targets(b.at, map[ring.ID]float64{mine.Subs[0].Member: 1000}).place("alice", 4)}
	if slices.Equal(rival.Subs, mine.Subs) {
		t.Fatal("both members place alike: this tests nothing")
	}
	b.others = []Route{rival, mine}
	if got := b.plan(alice(900)); !reflect.DeepEqual(got, []Route{mine}) {
		t.Errorf("no route next to an older one: %+v", got)
	}
	rival.Version = mine.Version + 1
	b.others = []Route{rival, mine}
	for range 3 {
		if got := b.plan(alice(900)); len(got) != 0 {
			t.Errorf("a route next to a newer one: %+v", got)
		}
	}
	b.others = nil // the key moved from m1 to m0
	if got := b.plan(alice(900)); len(got) != 1 || got[0].Version != b.now || !slices.Equal(got[0].Subs, rival.Subs) {
		t.Errorf("%+v does not continue %+v", got, rival)
	}
}

func TestPlanTriesAnInheritedCapAgain(t *testing.T) {
	b := newBench(t, 6)
	b.others = []Route{{Domain: "d", Owner: "alice", Author: "m1", Mode: Cap, Limit: 1000, Window: second, Version: 1}}
	b.plan(alice(3000))
	b.others = nil
	for i := range 6 {
		if got := b.plan(alice(3000)); len(got) != 1 || (got[0].Mode == Cap) != (i < 5) {
			t.Errorf("second %d: %+v", i, got)
		}
	}
}

func TestPlannersAgreeOnOne(t *testing.T) {
	r, now := ringOf(equal(6)...), 1000*second
	planners := map[ring.ID]*Planner{}
	for _, id := range idsOf(r) {
		planners[id] = NewPlanner(id, 0)
	}
	var said []Route
	for i := range 10 {
		now += second
		var next []Route
		for _, id := range idsOf(r) { // each considers itself the owner
			next = append(next, planners[id].Plan(now, targets(r, nil), []HotCounter{alice(900)}, said)...)
		}
		if i > 2 && !reflect.DeepEqual(next, said) {
			t.Errorf("%+v became %+v", said, next)
		}
		said = next
	}
	if len(said) != 1 {
		t.Errorf("%d routes for one key", len(said))
	}
}

func TestPlanFitsAnyNameIntoAPacket(t *testing.T) {
	long := func(n int) string { return strings.Repeat("é", n/2) }
	var members []ring.Member
	for i := range 20 {
		members = append(members, ring.Member{ID: ring.ID(fmt.Sprintf("%0128d", i)), Weight: 1})
	}
	b := newBench(t, 0)
	b.at = ring.New(members)
	h := alice(900)
	h.Domain, h.Owner, h.Hash, h.SubKeys, h.Name = long(256), long(256), 0, 16, "\x1b\n\xff"+long(1000)
	routes := b.plan(h)
	if len(routes) != 1 || len(routes[0].Subs) < 2 {
		t.Fatalf("%+v", routes)
	}
	if name := routes[0].Name; !strings.HasPrefix(name, "���éé") || !utf8.ValidString(name) {
		t.Errorf("named %q", name)
	}
	if got := b.plan(h); !reflect.DeepEqual(got, routes) {
		t.Errorf("%+v became %+v", routes, got)
	}
}

func BenchmarkPlan(b *testing.B) {
	r, p := ringOf(equal(20)...), NewPlanner("m0", 0)
	var hot []HotCounter
	for i := range 100 {
		h := alice(float64(1000 + i))
		h.Owner, h.Hash = fmt.Sprint("customer-", i), 0
		hot = append(hot, h)
	}
	now := int64(time.Hour)
	for b.Loop() {
		now += second
		p.Plan(now, targets(r, nil), hot, nil)
	}
}

// TestEntriesOfRoutes: a route contains the descriptor of its counter if Envoy can compare it and if it fits. It is
// announced again when its descriptor becomes known.
func TestEntriesOfRoutes(t *testing.T) {
	long := strings.Repeat("v", maxText)
	for name, c := range map[string]struct {
		entries []RouteEntry
		keep    bool
	}{
		"one":                 {[]RouteEntry{{"user", "alice"}}, true},
		"two":                 {[]RouteEntry{{"plan", "free"}, {"user", "alice"}}, true},
		"none":                {nil, false},
		"an empty value":      {[]RouteEntry{{"user", ""}}, false},
		"not UTF-8":           {[]RouteEntry{{"user", "\xff"}}, false},
		"a control character": {[]RouteEntry{{"user", "a\nb"}}, false},
		"too long in all":     {[]RouteEntry{{"a", long}, {"b", long}, {"c", long}, {"d", long}}, false},
	} {
		b := newBench(t, 6)
		h := alice(5000)
		h.Entries = c.entries
		routes := b.plan(h)
		if len(routes) != 1 {
			t.Fatalf("%s: %d routes", name, len(routes))
		}
		if kept := len(routes[0].Entries) > 0; kept != c.keep || kept && !slices.Equal(routes[0].Entries, c.entries) {
			t.Errorf("%s: %v", name, routes[0].Entries)
		}
	}
	b := newBench(t, 6)
	first := b.plan(alice(5000))
	h := alice(5000)
	h.Entries = []RouteEntry{{"user", "alice"}}
	if again := b.plan(h); len(again[0].Entries) != 1 || again[0].Version <= first[0].Version {
		t.Errorf("after %+v: %+v", first[0], again[0])
	}
}

// TestPlanQuota checks that a rule's own step replaces the others, and lasts for two windows.
func TestPlanQuota(t *testing.T) {
	b := newBench(t, 5)
	h := alice(5000)
	h.Quota, h.Allow, h.Window, h.Entries = true, true, 10*second, []RouteEntry{{"user", "alice"}}
	first := b.plan(h)
	if len(first) != 1 || first[0].Mode != Quota || !first[0].Allow || first[0].Capped() || first[0].Subs != nil {
		t.Fatalf("%+v", first)
	}
	for range 19 {
		if got := b.plan(); !reflect.DeepEqual(got, first) {
			t.Fatalf("not kept: %+v", got)
		}
	}
	if got := b.plan(); len(got) != 0 {
		t.Errorf("after two windows: %+v", got)
	}
	if h.Entries = []RouteEntry{{"plan", "free"}, {"user", "alice"}}; len(b.plan(h)) != 0 {
		t.Error("a route matches requests of other counters")
	}
}
