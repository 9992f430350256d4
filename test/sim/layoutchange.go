package sim

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/owner"
)

const layoutEpoch = 7

// layoutOptions are the parameters of a change of the layout.
type layoutOptions struct {
	At      time.Duration // from the first fault to the begin of the layout; 0: it does not change
	Reads   time.Duration // from the first fault until the first process reads it
	Spread  time.Duration // within which all processes read it, but for those that never do
	Stray   float64       // part of the members and coordinators that never read it, but for former coordinators of keys
	Moves   bool          // from the first coordinator to the second one
	Weights []uint32
	Removes bool // regions of weight 0 are not in the layout
}

// expand chooses whether and how the layout changes.
func (c *layoutOptions) expand(f *federationOptions, r *rand.Rand) {
	if r.Float64() >= 0.35 {
		return
	}
	c.At = time.Duration(4000+r.IntN(10000)) * time.Millisecond
	c.Spread = time.Duration(r.IntN(2000)) * time.Millisecond
	c.Reads = max(0, c.At-time.Duration(r.IntN(12000))*time.Millisecond)
	if r.IntN(4) == 0 {
		c.Reads = c.At + time.Duration(r.IntN(4000))*time.Millisecond
	}
	c.Moves = r.IntN(2) == 0
	c.Removes = r.IntN(2) == 0
	c.Stray = []float64{0, 0, 0.3}[r.IntN(3)]
	for range f.Regions {
		c.Weights = append(c.Weights, []uint32{0, 1, 1, 3, 9}[r.IntN(5)])
	}
	c.Weights[r.IntN(f.Regions)] = 2
	if c.Moves {
		f.Coordinators = 2
	}
	if f.Calm {
		c.Reads, c.Stray, c.Weights = 0, 0, slices.Clone(f.Weights)
		c.At = max(c.At, 6*time.Second)
	}
}

// layoutChange contains the layouts of a world, and which process reads them when.
type layoutChange struct {
	f     *federal
	from  int64 // true time; that of windows
	file  []*federation.Layout
	all   []*federation.LayoutSchedule // of each region, with all layouts
	reads map[layoutReader]int64       // true time; only after schedule
}

// layoutReader is a member, or the coordinator with that index if region is -1.
type layoutReader struct{ region, index int }

const never = math.MaxInt64

func (c *layoutChange) init(f *federal) {
	c.f = f
	c.file = []*federation.Layout{c.layout(layoutEpoch, f.o.Federation.Weights, 0)}
	c.plan()
}

func (c *layoutChange) layout(epoch uint32, weights []uint32, home int) *federation.Layout {
	l := &federation.Layout{Name: "sim", Epoch: epoch, Coordinator: homeName(home)}
	for i := range weights {
		if weights[i] == 0 && c.f.o.Federation.Change.Removes {
			continue
		}
		l.Regions = append(l.Regions, federation.LayoutRegion{Name: regionName(i), Weight: &weights[i]})
	}
	return l
}

// plan computes what all layouts together allow.
func (c *layoutChange) plan() {
	c.all = nil
	for i := range c.f.o.Federation.Regions {
		c.all = append(c.all, mustSchedule(federation.NewLayoutSchedule(regionName(i), c.margin(), c.file, c.from)))
	}
}

func mustSchedule(s *federation.LayoutSchedule, err error) *federation.LayoutSchedule {
	if err != nil {
		panic(err)
	}
	return s
}

// margin returns the time within which all processes read the layout, by clocks that differ.
func (c *layoutChange) margin() time.Duration {
	return c.f.o.Federation.Change.Spread + time.Duration(2*c.f.o.Federation.Offset*1e9) + c.f.o.Skew + 250*time.Millisecond
}

// late reports whether some processes read the layout too late, or never.
func (c *layoutChange) late() bool {
	o := &c.f.o.Federation.Change
	return o.At > 0 && (o.Stray > 0 || o.Reads+o.Spread+c.margin() > o.At)
}

// read returns the schedule of a process that starts, which the new layout has reached, or not.
func (c *layoutChange) read(region string, clock int64, reached bool) *federation.LayoutSchedule {
	file := c.file[:1]
	if reached {
		file = c.file
	}
	return mustSchedule(federation.NewLayoutSchedule(region, c.margin(), file, clock))
}

// update returns the schedule of a process that reads the new layout.
func (c *layoutChange) update(s *federation.LayoutSchedule, clock int64) *federation.LayoutSchedule {
	if c.f.bug == bugLayoutEarly {
		clock -= int64(10 * time.Minute)
	}
	next, _, err := s.Update(c.file, clock)
	if err == nil && c.f.bug == bugLayoutFloors { // the former layout is removed, although others do not have the next one yet
		next, _, err = next.Update(c.file[1:], clock)
	}
	return mustSchedule(next, err)
}

// schedule chooses when which process reads the new layout.
func (c *layoutChange) schedule() {
	f, o := c.f, &c.f.o.Federation.Change
	if o.At == 0 {
		return
	}
	c.from, c.reads = f.now+int64(o.At), map[layoutReader]int64{}
	next := c.layout(layoutEpoch+1, o.Weights, 0)
	if o.Moves {
		next.Coordinator = homeName(1)
	}
	from := c.from
	if f.bug == bugLayoutEarly { // the processes read it when it begins, and use it in the window that has begun
		from -= int64(30 * time.Second)
	}
	next.From = time.Unix(0, from).UTC().Format(time.RFC3339Nano)
	c.file = append(c.file, next)
	c.plan()
	for i, w := range f.regions {
		for j := range w.slots {
			c.readLater(layoutReader{i, j}, f.chance(o.Stray))
		}
	}
	for i := range f.homes {
		c.readLater(layoutReader{-1, i}, f.chance(o.Stray) && !o.Moves)
	}
}

// readLater has a process read the new layout.
func (c *layoutChange) readLater(x layoutReader, stray bool) {
	f, o := c.f, &c.f.o.Federation.Change
	d := o.Reads + f.randomBelow(o.Spread)
	if f.bug == bugLayoutEarly {
		d = o.At + f.randomBelow(100*time.Millisecond)
	}
	if stray {
		c.reads[x] = never
		return
	}
	c.reads[x] = f.now + int64(d)
	f.after(d, func() {
		if x.region < 0 {
			s := f.homes[x.index].store
			s.layouts = c.update(s.layouts, s.clock())
			f.trace("%s reads the layout", homeName(x.index))
			return
		}
		w := f.regions[x.region]
		if m := w.slots[x.index].now; m != nil && len(m.layouts.Phases()) == 1 {
			m.layouts = c.update(m.layouts, m.clock())
			m.node.SetFederation(w.placeOf(m.layouts))
			f.trace("%s of %s reads the layout", m.name(), regionName(x.region))
			f.stats.count("layout: read by a member that runs")
		}
	})
}

// place returns the place of a member that starts in that slot.
func (w *world) place(slot int, clock int64) (p owner.FederationPlace) {
	if w.federal == nil {
		return p
	}
	c := &w.federal.layouts
	at, planned := c.reads[layoutReader{w.region, slot}]
	return w.placeOf(c.read(regionName(w.region), clock, planned && at <= w.federal.now))
}

func (w *world) placeOf(s *federation.LayoutSchedule) owner.FederationPlace {
	p := owner.FederationPlace{Schedule: s}
	for i := range w.federal.o.Federation.Coordinators {
		p.Authorities = append(p.Authorities, homeName(i))
	}
	return p
}

// begin returns when a window of rule k begins.
func (c *layoutChange) begin(k int, index int64) int64 { return c.f.books.rule(k).End(index - 1) }

// changed reports whether a window may use the new layout.
func (c *layoutChange) changed(k int, index int64) bool {
	return len(c.file) > 1 && c.begin(k, index) >= c.from
}

// home returns the index of the coordinator of a window.
func (c *layoutChange) home(k int, index int64) int {
	if c.f.o.Federation.Change.Moves && c.changed(k, index) {
		return 1
	}
	return c.f.rules[k].home
}

// lenders returns the stores that may lend of a window: of one that begins after the change also that of the former coordinator,
// as long as processes have not read the layout.
func (c *layoutChange) lenders(k int, index int64) (ss []*poolStore) {
	h := c.home(k, index)
	ss = append(ss, c.f.homes[h].store)
	if former := c.f.rules[k].home; former != h {
		ss = append(ss, c.f.homes[former].store)
	}
	return ss
}

// slowest returns the store that may lend of a window whose clock is the furthest behind.
func (c *layoutChange) slowest(k int, index int64) *poolStore {
	return slices.MinFunc(c.lenders(k, index), func(a, b *poolStore) int { return cmp.Compare(a.offset, b.offset) })
}

// latestClock returns the latest reading of the clocks of the stores that may lend of a window.
func (c *layoutChange) latestClock(k int, index int64) (at int64) {
	for _, s := range c.lenders(k, index) {
		at = max(at, s.latestClock())
	}
	return at
}

// budget returns how the limit of a window is divided. A region that has not read the new layout has the slice of the former
// one.
func (c *layoutChange) budget(region, k int, index int64) federation.Budget {
	b := c.divide(c.all[region].Phases()[0], k)
	if c.changed(k, index) {
		next := c.divide(c.all[region].Phases()[1], k)
		b.Slice, b.Floor = max(b.Slice, next.Slice), min(b.Floor, next.Floor)
	}
	return b
}

// pool returns the most that is lent of a window: by the new layout, it is not more.
func (c *layoutChange) pool(k int, _ int64) uint32 {
	return c.divide(c.all[0].Phases()[0], k).Pool
}

func (c *layoutChange) divide(p *federation.LayoutPhase, k int) federation.Budget {
	return p.Budget(c.f.books.rule(k).Limit, c.f.rules[k].terms.Floor)
}

// budget returns how the limit of a window is divided by the layouts that m has read.
func (m *member) budget(k int, index int64) federation.Budget {
	c := &m.w.federal.layouts
	if p := m.layouts.At(c.begin(k, index)); p != nil {
		return c.divide(p, k)
	}
	return federation.Budget{}
}

// authority returns the coordinator of a window by the layouts that m has read.
func (m *member) authority(k int, index int64) uint32 {
	c := &m.w.federal.layouts
	p := m.layouts.At(c.begin(k, index))
	return p.AuthorityOf(c.f.rules[k].terms.Authority, owner.Key{})
}

// trustsPast reports whether m, which borrows hits of a window from h, takes h for the coordinator of the window before, by
// the layouts that m has read.
func (m *member) trustsPast(h *home, k int, index int64) bool {
	c := &m.w.federal.layouts
	begin := c.begin(k, index-1)
	p := m.layouts.At(begin)
	return h.index == c.home(k, index) && p != nil && p.Opened(begin) && m.authority(k, index-1) == h.id
}
