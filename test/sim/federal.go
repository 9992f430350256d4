package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/owner"
)

const (
	// returnTime is the time from the last fault until each region uses its coordinator again and has returned its escrows.
	returnTime = 14 * time.Second
)

// federal is a world of several regions, each of which is a world of its own with a clock, a network and an oracle of
// its own, and of their coordinators. It runs the events of all of them in the order of the true time.
type federal struct {
	o       options
	bug     bug
	rnd     *rand.Rand
	now     int64  // true time
	agenda  agenda // events of the coordinators and of their links
	regions []*world
	homes   []*home
	rules   []federatedRule // by key, in addition to the rules of the regions
	books   federatedBooks
	layouts layoutChange
	healed  bool
	events  int
	hash    uint64
	stats   *summary
	verbose bool
	lines   []string
	failure string
}

// federatedMember contains what the simulator knows of a member's calls to coordinators.
type federatedMember struct {
	links   map[uint32]*callRecord
	rests   poolRests
	unspent map[owner.Key]poolUse          // of the escrows, after the newest decision
	spent   map[owner.Key]map[int64]uint64 // of floors, by a deliberate bug
}

// callRecord describes a member's calls to one coordinator since the last reply.
type callRecord struct {
	unanswered []sentRequest
	failed     bool
}

// sentRequest is a request without a reply so far.
type sentRequest struct {
	key owner.Key
	seq uint64
	at  int64
}

// mayBeAway reports whether the coordinator may count as away: that needs an error, or three requests without a reply.
func (c *callRecord) mayBeAway() bool { return c.failed || len(c.unanswered) >= 3 }

// replied records a reply. Requests that were sent long before it do not count any more.
func (c *callRecord) replied(now int64, gs []federation.PoolGrant) {
	c.failed = false
	c.unanswered = slices.DeleteFunc(c.unanswered, func(r sentRequest) bool {
		return now-r.at > int64(12*time.Second) || slices.ContainsFunc(gs, func(g federation.PoolGrant) bool {
			return g.Key == r.key && g.Seq == r.seq
		})
	})
}

func regionName(i int) string { return fmt.Sprintf("region-%d", i) }
func homeName(i int) string   { return fmt.Sprintf("home-%d", i) }

// runFederal runs the world of several regions of o.
func (r runner) runFederal(o options, bug bug) runResult {
	f := r.newFederal(o, bug)
	f.run(warmUp)
	for _, w := range f.regions {
		w.safetySince, w.healed = w.now, false
		w.schedule()
	}
	f.schedule()
	f.run(o.Length)
	f.heal()
	f.run(settleTime + returnTime)
	f.probe()
	f.finish()
	res := runResult{Options: o, Events: f.events, Failure: f.failure, Trace: f.lines, Hash: f.hash}
	for _, w := range f.regions {
		w.end()
		res.Decisions, res.Events = res.Decisions+int(w.requests), res.Events+w.events
		res.Hash = (res.Hash ^ w.hash) * 1099511628211
	}
	return res
}

// newFederal creates the world of o up to the start of the first members.
func (r runner) newFederal(o options, bug bug) *federal {
	f := &federal{
		o: o, bug: bug, rnd: rand.New(rand.NewPCG(o.Seed, 0xfede)), now: epoch, stats: r.stats, verbose: r.verbose, hash: 14695981039346656037,
	}
	f.now += f.rnd.Int64N(3600e9)
	f.books.init(f)
	f.layouts.init(f)
	for i := range o.Federation.Coordinators {
		f.homes = append(f.homes, newHome(f, i))
	}
	sum := 0
	for _, n := range o.Federation.Shares {
		sum += n
	}
	for i := range o.Federation.Regions {
		p := o
		p.Seed, p.Members = o.Seed<<3|uint64(i), o.Federation.Sizes[i]
		p.Slots, p.Requests = p.Members+2, o.Requests*o.Federation.Shares[i]/sum
		w := r.emptyWorld(p, bug)
		w.federal, w.region, w.offset, w.expected, w.healed = f, i, f.clockOffset(), p.Members, true
		w.now = f.now + w.offset
		w.unblockLinks()
		w.oracle.init(w)
		f.regions = append(f.regions, w)
	}
	keys, rules := f.federatedRules()
	for _, w := range f.regions {
		w.keys, w.rules = keys, [][]rule{rules}
		for i := range w.slots {
			w.slots[i].id = slotID(i)
		}
		w.makeVolumes()
		for i := range w.o.Members {
			w.boot(i, true)
		}
	}
	return f
}

// clockOffset returns how far a region's or coordinator's clock is off.
func (f *federal) clockOffset() int64 {
	return int64((2*f.rnd.Float64() - 1) * f.o.Federation.Offset * 1e9)
}

// setFederation sets what a request for key k has of its federation.
func (w *world) setFederation(q *owner.Request, k int) {
	if w.federal == nil {
		return
	}
	x := &w.federal.rules[k]
	q.Federation, q.LocalCap = &x.terms, x.localCap
}

// run advances the clocks of all regions by d, or until a law is violated.
func (f *federal) run(d time.Duration) {
	end := f.now + int64(d)
	for f.failure == "" {
		at, next := end+1, -1
		if h := f.agenda.heap; len(h) > 0 && h[0].at < at {
			at, next = h[0].at, len(f.regions)
		}
		for i, w := range f.regions {
			if h := w.agenda.heap; len(h) > 0 && h[0].at-w.offset < at {
				at, next = h[0].at-w.offset, i
			}
		}
		if next < 0 {
			break
		}
		f.setNow(at)
		if next < len(f.regions) {
			f.regions[next].step()
			if f.failure == "" {
				f.failure = f.regions[next].failure
			}
			continue
		}
		f.events++
		f.agenda.pop().fn()
	}
	if f.failure == "" {
		f.setNow(end)
	}
}

func (f *federal) setNow(t int64) {
	f.now = t
	for _, w := range f.regions {
		w.now = t + w.offset
	}
}

// after runs fn in d.
func (f *federal) after(d time.Duration, fn func()) { f.agenda.push(f.now+int64(max(0, d)), nil, fn) }

// until ends a fault in d, unless all faults have ended before.
func (f *federal) until(d time.Duration, end func()) {
	f.after(d, func() {
		if !f.healed {
			end()
		}
	})
}

func (f *federal) fail(format string, args ...any) {
	if f.failure == "" {
		f.failure = fmt.Sprintf(format, args...)
		f.trace("FAILED: %s", f.failure)
	}
}

func (f *federal) trace(format string, args ...any) {
	if f.verbose {
		f.lines = append(f.lines, fmt.Sprintf("%11.4f  ", float64(f.now-epoch)/1e9)+fmt.Sprintf(format, args...))
	}
}

func (f *federal) chance(p float64) bool { return p > 0 && f.rnd.Float64() < p }

func (f *federal) randomBelow(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(f.rnd.Int64N(int64(d)))
}

func (f *federal) mixHash(xs ...uint64) {
	f.hash = (f.hash ^ uint64(f.now)) * 1099511628211
	for _, x := range xs {
		f.hash = (f.hash ^ x) * 1099511628211
		f.hash ^= f.hash >> 29
	}
}

// schedule schedules the faults of coordinators and their links, and restarts of complete regions.
func (f *federal) schedule() {
	some := func(n int, fn func()) {
		for range n {
			f.after(f.randomBelow(f.o.Length*8/10), fn)
		}
	}
	p := &f.o.Federation
	some(p.Cuts, func() { f.cut(true) })
	some(p.OneWay, func() { f.cut(false) })
	some(p.Slows, f.slow)
	some(p.Downs, func() { f.anyHome().stop() })
	some(p.Failovers, func() { f.anyHome().failOver() })
	some(p.Empties, func() { f.anyHome().empty() })
	some(p.Loses, func() { f.anyHome().forget() })
	some(p.Restarts, f.restartRegion)
	f.layouts.schedule()
	if p.Offset > 0.125 {
		f.books.begin(eventFarClocks)
	} else if p.Offset > 0 {
		f.books.begin(eventClocks)
	}
}

func (f *federal) anyHome() *home { return f.homes[f.rnd.IntN(len(f.homes))] }

// cut blocks the link of a region to a coordinator for a while, in both directions or one.
func (f *federal) cut(both bool) {
	l := &f.anyHome().links[f.rnd.IntN(len(f.regions))]
	what, to := eventCut, f.rnd.IntN(2) == 0
	if !both {
		what = eventOneWay
	}
	set := func(n int) {
		if both || to {
			l.toCut += n
		}
		if both || !to {
			l.fromCut += n
		}
	}
	set(1)
	f.books.begin(what)
	f.until(200*time.Millisecond+f.randomBelow(12*time.Second), func() {
		set(-1)
		f.books.end(what)
	})
}

// slow delays the messages of a link for a while.
func (f *federal) slow() {
	l := &f.anyHome().links[f.rnd.IntN(len(f.regions))]
	d := 200*time.Millisecond + f.randomBelow(3*time.Second)
	l.slow += d
	f.books.begin(eventSlow)
	f.until(f.randomBelow(8*time.Second), func() {
		l.slow -= d
		f.books.end(eventSlow)
	})
}

// restartRegion crashes all members of a region at once. They start again a little later.
func (f *federal) restartRegion() {
	w := f.regions[f.rnd.IntN(len(f.regions))]
	f.trace("%s restarts", regionName(w.region))
	f.stats.count("fault: a region restarts")
	for _, m := range w.running() {
		slot := m.slot
		w.crash(m)
		w.after(500*time.Millisecond+f.randomBelow(3*time.Second), nil, func() {
			if w.slots[slot].now == nil {
				w.boot(slot, false)
			}
		})
	}
}

// heal ends all faults.
func (f *federal) heal() {
	f.healed = true
	for _, h := range f.homes {
		h.heal()
	}
	for _, w := range f.regions {
		w.heal()
		if len(w.running()) == 0 {
			w.boot(0, false)
		}
	}
}

// ruleOf returns the index of the rule of key k, and its settings.
func (f *federal) ruleOf(k owner.Key) (int, *federatedRule) {
	for i := range f.rules {
		if f.regions[0].rules[0][i].digest == k {
			return i, &f.rules[i]
		}
	}
	return -1, nil
}
