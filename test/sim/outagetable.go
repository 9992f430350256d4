package sim

import (
	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// outageEvent is an event of the table of outages above whose limit nothing is admitted.
type outageEvent int

// The events. Those of the members of a region are counted by its own oracle.
const (
	eventCut outageEvent = iota
	eventOneWay
	eventSlow
	eventLoss
	eventDouble
	eventDown
	eventFailover
	eventClocks
	eventFarClocks
	eventCrash
	eventMoved

	outageEvents = 11
)

var eventNames = [outageEvents]string{
	"region cut off", "region cut off one way", "slow link", "message lost", "message repeated", "coordinator down",
	"store fails over", "clocks at most 250 ms apart", "clocks more than 250 ms apart", "a member dies", "another owner",
}

// lossRow is a way in which a coordinator's store loses what it has lent.
type lossRow int

// The ways.
const (
	rowFailover lossRow = iota
	rowEmptied
	rowForgot
)

// outageRow is a row of the table of outages: how much may be admitted above the limit of one window.
type outageRow struct {
	name    string
	formula func(f *federal, p *poolWindow) uint64
}

// outageTable is the table of docs/federation.md. Rows of 0 are not in it: no event but these licenses anything.
var outageTable = []outageRow{
	{"regional_only: slice - floor of each region that is cut off", func(f *federal, p *poolWindow) (n uint64) {
		for i := range p.regions {
			if x := &p.regions[i]; x.away && f.rules[p.key].terms.Outage == federation.RegionalOnly {
				n += uint64(x.budget.Slice - x.budget.Floor)
			}
		}
		return n
	}},
	{"snapshot: slice of each region that is cut off", func(f *federal, p *poolWindow) (n uint64) {
		for i := range p.regions {
			if x := &p.regions[i]; x.away && f.rules[p.key].terms.Outage == federation.Snapshot {
				n += uint64(x.budget.Slice)
			}
		}
		return n
	}},
	{"fail_open: local_cap of each member", func(f *federal, p *poolWindow) (n uint64) {
		return uint64(len(p.open)) * uint64(f.rules[p.key].localCap)
	}},
	{"an owner dies: U of its floor", func(_ *federal, p *poolWindow) (n uint64) {
		for i := range p.regions {
			n += p.regions[i].unreplicated
		}
		return n
	}},
	{"a floor's state is lost: the floor", func(_ *federal, p *poolWindow) (n uint64) {
		for i := range p.regions {
			n += p.regions[i].lost
		}
		return n
	}},
	{"parts of a region that are complete for themselves: the floor of each", func(_ *federal, p *poolWindow) (n uint64) {
		for i := range p.regions {
			n += p.regions[i].parts
		}
		return n
	}},
	{"a store loses its newest writes: what was lent with them", func(_ *federal, p *poolWindow) uint64 { return p.lostWrites }},
	{"a store loses everything: pool x rest of the window", func(_ *federal, p *poolWindow) uint64 { return p.emptied }},
	{"a coordinator restarts with nothing: the pool", func(_ *federal, p *poolWindow) uint64 { return p.forgot }},
}

// licensed returns how much may be admitted above the limit in p, and the names of the rows that allow it.
func (f *federal) licensed(p *poolWindow) (n uint64, rows []string) {
	for i := range outageTable {
		if x := outageTable[i].formula(f, p); x > 0 {
			n += x
			rows = append(rows, outageTable[i].name)
		}
	}
	return n, rows
}

// poolWindow is one window of a key in all regions together, by its index.
type poolWindow struct {
	key     int
	index   int64
	events  [outageEvents]bool
	regions []regionWindow
	open    map[*member]uint64 // hits admitted by fail_open

	escrowed                    uint64 // hits admitted from escrows
	refunded                    uint64
	offered                     uint64
	wrong                       uint64 // requests refused while at most 80 % of the limit was requested
	requests                    uint64
	lent                        uint64
	lostLent                    uint64 // hits whose grants a store has lost
	lateLent                    uint64 // hits that a former coordinator has lent, which had not read the layout in time
	trusting                    bool   // a region borrowed that took the coordinator for the one that lent the window before
	lostWrites, emptied, forgot uint64
}

// regionWindow is the part of one region in a poolWindow.
type regionWindow struct {
	budget federation.Budget
	away   bool   // a member may have counted the coordinator as away
	floors uint64 // hits admitted from the floor that clients know of

	unreplicated, lost, parts uint64 // see outageTable
}

// admitted returns the hits that were admitted in p.
func (p *poolWindow) admitted() uint64 {
	n := p.escrowed
	for i := range p.regions {
		n += p.regions[i].floors
	}
	for _, open := range p.open {
		n += open
	}
	return n
}

// federatedBooks is the oracle of the limits that several regions share.
type federatedBooks struct {
	f       *federal
	windows map[windowKey]*poolWindow
	order   []*poolWindow
	active  [outageEvents]int
}

type windowKey struct {
	key   int
	index int64
}

func (b *federatedBooks) init(f *federal) {
	*b = federatedBooks{f: f, windows: map[windowKey]*poolWindow{}}
}

// window returns the window of key k with that index.
func (b *federatedBooks) window(k int, index int64) *poolWindow {
	p := b.windows[windowKey{k, index}]
	if p == nil {
		p = &poolWindow{key: k, index: index, open: map[*member]uint64{}}
		for i := range b.f.regions {
			p.regions = append(p.regions, regionWindow{budget: b.f.layouts.budget(i, k, index)})
		}
		b.windows[windowKey{k, index}] = p
		b.order = append(b.order, p)
	}
	for e, n := range b.active {
		p.events[e] = p.events[e] || n > 0
	}
	return p
}

func (b *federatedBooks) begin(e outageEvent) {
	b.active[e]++
	b.touch(e)
}

func (b *federatedBooks) end(e outageEvent) { b.active[e]-- }

// farClocks reports whether clocks differ by more than the tolerance.
func (b *federatedBooks) farClocks() bool { return b.active[eventFarClocks] > 0 }

// touch records an event in all windows that have not ended.
func (b *federatedBooks) touch(e outageEvent) {
	b.f.stats.count("event: " + eventNames[e])
	for _, p := range b.order {
		if r := b.rule(p.key); r.End(p.index) > b.f.now {
			p.events[e] = true
		}
	}
}

func (b *federatedBooks) rule(k int) *limit.Rule { return &b.f.regions[0].rules[0][k].limit }

// lent checks a grant (C1): it is charged before it is lent, and what a region shows that it has is charged, too.
func (b *federatedBooks) lent(s *poolStore, region int, r *federation.PoolRequest, g *federation.PoolGrant) {
	k, _ := b.f.ruleOf(r.Key)
	p, had, sum := b.window(k, g.Window), uint64(0), g.Total
	if r.Window == g.Window {
		had = r.Have
	}
	gain := g.Total - min(g.Total, had)
	if p.lent += gain; s.h.index != b.f.layouts.home(k, g.Window) {
		p.lateLent += gain
	}
	for i := range g.Others {
		sum += g.Others[i].Granted
	}
	switch {
	case g.Total < had || g.Total > had+r.Tokens:
		b.f.fail("F2: %s has %d of window %d of %04x, requests %d, and then has %d", regionName(region), had, g.Window, r.Key[0]>>48, r.Tokens, g.Total)
	case g.Used < sum:
		b.f.fail("F2: %s has charged %d in window %d of %04x, and regions have %d of them", homeName(s.h.index), g.Used, g.Window, r.Key[0]>>48, sum)
	case g.Total > had && g.Used > g.Usable:
		b.f.fail("F2: %s lends %d of window %d of %04x, although %d of %d are charged", homeName(s.h.index), g.Total-had, g.Window,
			r.Key[0]>>48, g.Used, g.Usable)
	}
	if r.Tokens > g.Total-had {
		b.f.stats.count("pool: lent less than was requested")
	}
	if had != r.Have {
		b.f.stats.count("pool: request of another window")
	}
}

// lose records that a store has lost the charge of n hits that it has lent.
func (b *federatedBooks) lose(key federation.Key, window int64, n uint64) {
	k, _ := b.f.ruleOf(key)
	b.window(k, window).lostLent += n
	b.f.stats.count("pool: write lost")
}

// storeLost records what may be lent again after a loss of s.
func (b *federatedBooks) storeLost(s *poolStore, what lossRow) {
	b.f.stats.count("fault: " + [...]string{"store fails over", "store loses everything", "coordinator restarts with nothing"}[what])
	for k := range b.f.rules {
		if what != rowFailover {
			b.allLost(k, s, what)
		}
	}
	if what == rowFailover {
		for _, p := range b.order {
			p.lostWrites = p.lostLent
		}
	}
}

// allLost records what may be lent again of rule k after s has lost everything, by its clock.
// That may be the clock of another server than before, by which windows that were lent of have not begun, or have not ended.
func (b *federatedBooks) allLost(k int, s *poolStore, what lossRow) {
	r, now := b.rule(k), s.clock()
	b.window(k, r.Index(now))
	for _, p := range b.order {
		// A former coordinator that has not read the layout in time loses what it has lent, as the present one would.
		if p.key != k || b.f.layouts.home(k, p.index) != s.h.index && p.lateLent == 0 {
			continue
		}
		pool := uint64(b.f.layouts.pool(k, p.index))
		switch rest := min(r.End(p.index)-now, int64(r.Window)); {
		case p.lostLent == 0 && p.index != r.Index(now):
		case what == rowForgot:
			p.forgot += pool
		case rest > 0:
			p.emptied += uint64(float64(pool) * float64(rest) / float64(r.Window))
		}
	}
}
