package federation

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"
)

// LayoutSchedule determines which layout each window uses, as one region knows it: the one with the highest epoch that does
// not begin after the window. It is immutable.
//
// In a window that uses a layout whose predecessors are still in the file, each region has only the smallest of its floors
// under these layouts, and the pool leaves out the largest ones. So regions that do not have the newest layout yet exceed
// nothing, as long as they borrow from the same coordinator.
type LayoutSchedule struct {
	region string
	margin time.Duration
	known  []knownLayout  // by epoch; those that the file does not contain anymore remain
	phases []*LayoutPhase // by epoch
}

// knownLayout is a layout with what a process knows of it.
type knownLayout struct {
	*Layout
	from, opens int64 // see LayoutPhase
	listed      bool  // the file contains it
}

// LayoutPhase is a layout with the windows that use it, as one region sees it. It is immutable.
type LayoutPhase struct {
	Layout *Layout
	Term   LayoutTerm
	// Lends reports whether the region coordinates keys of rules that name no authority.
	Lends bool

	coordinator uint32   // AuthorityID
	homes       *Homes   // nil unless the coordinator is SpreadCoordinator
	idle        []uint32 // AuthorityIDs of regions that do not coordinate
	split       transition
}

// LayoutTerm is the time in which windows begin that use a layout, in Unix nanoseconds.
type LayoutTerm struct {
	From, Until int64
	// Opens is not before From. Windows that begin before have no pool, because the process has read the layout too late.
	Opens int64
}

// TermOf returns when windows begin that use the layout with that epoch. It returns false if it does not know the layout.
type TermOf func(epoch uint32) (t LayoutTerm, ok bool)

// Always is the TermOf of a federation that has always had one layout.
func Always(epoch uint32) TermOf {
	return func(e uint32) (LayoutTerm, bool) {
		return LayoutTerm{math.MinInt64, math.MaxInt64, math.MinInt64}, e == epoch
	}
}

// Lends reports whether pools of windows that begin at that time are lent by requests with the epoch of r.
func (of TermOf) Lends(r *PoolRequest, begin int64) bool {
	t, ok := of(r.Epoch)
	return ok && t.lends(begin)
}

// OpensMicro returns Opens in microseconds, rounded up: no window begins between.
func (t *LayoutTerm) OpensMicro() int64 { return microseconds(t.Opens) }

// UntilMicro returns Until in microseconds, rounded up.
func (t *LayoutTerm) UntilMicro() int64 { return microseconds(t.Until) }

// microseconds rounds up, and to what double precision represents.
func microseconds(at int64) int64 {
	const most = 1 << 52
	us := at / 1000
	if at%1000 > 0 {
		us++
	}
	return min(max(us, -most), most)
}

func (t *LayoutTerm) lends(begin int64) bool { return t.Opens <= begin && begin < t.Until }

// NewLayoutSchedule returns the schedule of a process that starts at now, for a region, or "" for a coordinator that is
// none. The layouts are those of a file. It returns an error if none of them applies yet.
//
// margin is the time within which all processes read a file that has changed. A process that reads a layout later than that
// before its from opens no pool under it until the margin has passed, since others may still use the former one. So does one that
// starts within the margin of a from.
func NewLayoutSchedule(region string, margin time.Duration, layouts []*Layout, now int64) (*LayoutSchedule, error) {
	s := &LayoutSchedule{region: region, margin: margin}
	for _, l := range layouts {
		from, err := l.begins()
		if err != nil {
			return nil, err
		}
		opens := from
		if read := now + int64(margin); len(s.known) > 0 && from < read && from > now-int64(margin) {
			opens = read
		}
		s.known = append(s.known, knownLayout{l, from, opens, true})
	}
	if first := &s.known[0]; first.from > now {
		return nil, fmt.Errorf("the first layout, of epoch %d, begins at %s: keep the one before it in the file until the windows that began under it "+
			"have ended", first.Epoch, first.From)
	}
	s.plan()
	return s, nil
}

// Update returns the schedule after the file was read again at now, and the epochs of layouts that are new and too late:
// windows that begin before now and the margin have no pool under them. It returns an error, and s remains in use, if the
// file contradicts s.
func (s *LayoutSchedule) Update(layouts []*Layout, now int64) (next *LayoutSchedule, late []uint32, err error) {
	newest := s.Newest()
	if len(layouts) == 0 || layouts[len(layouts)-1].Epoch < newest.Epoch {
		return nil, nil, fmt.Errorf("the layout of epoch %d is missing, and in use: to withdraw it, add another one with a higher epoch", newest.Epoch)
	}
	if layouts[0].Epoch > newest.Epoch {
		return nil, nil, fmt.Errorf("the layout of epoch %d is missing: keep it before the next one until the windows that began under it have ended",
			newest.Epoch)
	}
	next = &LayoutSchedule{region: s.region, margin: s.margin, known: slices.Clone(s.known)}
	for i := range next.known {
		next.known[i].listed = false
	}
	for _, l := range layouts {
		i := slices.IndexFunc(next.known, func(k knownLayout) bool { return k.Epoch == l.Epoch })
		switch {
		case i >= 0 && !reflect.DeepEqual(next.known[i].Layout, l):
			return nil, nil, fmt.Errorf("the layout of epoch %d has changed, and is in use: give the changed one a higher epoch and a from, after this one", l.Epoch)
		case i >= 0:
			next.known[i].listed = true
			continue
		case l.Epoch < newest.Epoch:
			return nil, nil, fmt.Errorf("the layout of epoch %d is new: want an epoch above %d", l.Epoch, newest.Epoch)
		}
		from, err := l.begins()
		if err != nil {
			return nil, nil, err
		}
		k := knownLayout{l, from, from, true}
		if opens := now + int64(s.margin); from < opens {
			k.opens, late = opens, append(late, l.Epoch)
		}
		next.known = append(next.known, k)
	}
	next.plan()
	return next, late, nil
}

// plan computes the phases.
func (s *LayoutSchedule) plan() {
	until := int64(math.MaxInt64)
	for i := len(s.known) - 1; i >= 0; i-- {
		k := &s.known[i]
		p := &LayoutPhase{Layout: k.Layout, Term: LayoutTerm{k.from, until, k.opens}, Lends: k.Coordinates(s.region), coordinator: AuthorityID(k.Coordinator)}
		if k.Coordinator == SpreadCoordinator {
			p.homes = NewHomes(k.Layout)
		}
		divided := []*Layout{k.Layout} // the newest first
		for j := i - 1; j >= 0 && k.listed; j-- {
			if s.known[j].listed {
				divided = append(divided, s.known[j].Layout)
			}
		}
		p.split = newTransition(s.region, divided)
		for j := range s.known {
			for _, name := range s.known[j].Names() {
				if !k.Coordinates(name) {
					p.idle = append(p.idle, AuthorityID(name))
				}
			}
		}
		s.phases = append(s.phases, p)
		until = min(until, k.from)
	}
	slices.Reverse(s.phases)
}

// At returns the phase of windows that begin at that time, or nil if no layout is known that applied so early.
func (s *LayoutSchedule) At(begin int64) *LayoutPhase {
	for i := len(s.phases) - 1; i >= 0; i-- {
		if p := s.phases[i]; p.Term.From <= begin {
			return p
		}
	}
	return nil
}

// Newest returns the layout with the highest epoch. It may not apply yet.
func (s *LayoutSchedule) Newest() *Layout { return s.known[len(s.known)-1].Layout }

// Phases returns the phases by their epochs. They must not be changed.
func (s *LayoutSchedule) Phases() []*LayoutPhase { return s.phases }

// TermOf implements TermOf.
func (s *LayoutSchedule) TermOf(epoch uint32) (t LayoutTerm, ok bool) {
	for _, p := range s.phases {
		if p.Layout.Epoch == epoch {
			return p.Term, true
		}
	}
	return t, false
}

// Regions returns the names of the regions of all layouts.
func (s *LayoutSchedule) Regions() (names []string) {
	for i := range s.known {
		for _, name := range s.known[i].Names() {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// Opened reports whether pools of windows that begin at that time are lent.
func (p *LayoutPhase) Opened(begin int64) bool { return p.Term.lends(begin) }

// AuthorityOf returns the AuthorityID of the coordinator of key, of a rule with that authority. It returns 0 if the rule
// names a region that does not coordinate.
func (p *LayoutPhase) AuthorityOf(named uint32, key Key) uint32 {
	if named == DefaultAuthority {
		named = p.coordinator
	}
	switch {
	case named == spreadAuthority && p.homes != nil:
		return p.homes.Of(key)
	case named == spreadAuthority, slices.Contains(p.idle, named):
		return 0
	}
	return named
}

// Budget returns how a limit is divided, of whose slices the given percentage are floors.
func (p *LayoutPhase) Budget(n uint32, percent uint8) Budget {
	if h := p.Layout.Holders; h > 0 {
		return Budget{Pool: n, Slice: n / uint32(h)}
	}
	return p.split.budget(n, percent)
}

// Parts returns about how many parts the slack of mechanism approximate has.
func (p *LayoutPhase) Parts() int { return max(1, int(p.Layout.Holders), len(p.Layout.Regions)) }
