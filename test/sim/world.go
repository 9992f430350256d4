// Package sim runs a whole cluster in one goroutine, by the real core, in a time of its own.
//
// A seed expands to Options. A World has members, each an owner.Node with a clock of its own, driven as peer drives it;
// a network that delays, loses, repeats and cuts; a gossip that converges; clients that ask; and faults. The oracle sees
// every decision and every answer and holds them against the bounds that follow from this run's own faults. The same
// seed gives the same run, to the last message.
package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/ring"
)

const (
	maxSlots = 12 // of most seeds
	epoch    = int64(1_700_000_000e9)
	warming  = 3 * time.Second  // from the start to the first question
	settling = 10 * time.Second // from the last fault to the liveness phase
)

// World is one run.
type World struct {
	o      Options
	bug    Bug
	rnd    *rand.Rand
	agenda agenda
	now    int64
	events int
	rings  *Rings
	stats  *Stats

	slots   []slot
	cut     [][]bool // of the direction from, to
	kept    [][]held
	keys    []*key
	rules   [][]rule // by version, by key
	asked   uint64
	decrees []hotkey.Route
	planned int64 // when the safety phase began
	calm    bool  // the safety phase is over: no loss, no faults
	oracle  oracle
	hash    uint64
	verbose bool
	lines   []string
	failure string
}

// slot is a name that a member may run under.
type slot struct {
	id    ring.ID
	now   *member // nil: nobody runs
	boots int
}

// Rings remembers rings by their members, because building one takes longer than all else that a change does. It
// serves one goroutine.
type Rings struct{ made map[string]*ring.Ring }

// of is the ring of boots by slot; every call gives another pointer, as adopting a ring does.
func (c *Rings) of(boots []int) *ring.Ring {
	packed := make([]byte, len(boots))
	for i, b := range boots {
		packed[i] = byte(b)
	}
	if c.made == nil || len(c.made) > 800 {
		c.made = map[string]*ring.Ring{}
	}
	r := c.made[string(packed)]
	if r == nil {
		var members []ring.Member
		for i, b := range boots {
			if b > 0 {
				members = append(members, ring.Member{ID: slotID(i), BootID: inst(i, b), Incarnation: 1, Weight: weight(i)})
			}
		}
		r = ring.New(members)
		c.made[string(packed)] = r
	}
	again := *r
	return &again
}

func slotID(i int) ring.ID { return ring.ID("n" + letters[i:i+1]) }

// letters name slots.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// inst is the instance of a boot of a slot; instances are odd.
func inst(i, boot int) uint64 { return uint64(i+1)<<16 | uint64(boot)<<1 | 1 }

func weight(i int) uint32 { return 1 + uint32(i/6)%2 }

// Result is what a run came to.
type Result struct {
	Options   Options
	Hash      uint64 // of the trace
	Decisions int
	Events    int
	Failure   string   // the law that was broken; empty: none
	Trace     []string // of verbose runs
}

// Run runs the world of o.
func Run(o Options, bug Bug, rings *Rings, stats *Stats, verbose bool) Result {
	w := create(o, bug, rings, stats, verbose)
	w.planned = w.now
	w.plan()
	w.run(o.Length + o.Leases.Lull)
	w.heal()
	w.run(settling)
	w.probe()
	w.oracle.finish()
	return Result{o, w.hash, int(w.asked), w.events, w.failure, w.lines}
}

// create makes the world of o, up to the first question.
func create(o Options, bug Bug, rings *Rings, stats *Stats, verbose bool) *World {
	w := &World{
		o: o, bug: bug, rnd: rand.New(rand.NewPCG(o.Seed, 1)), now: epoch, rings: rings, stats: stats, verbose: verbose,
		slots: make([]slot, o.Slots), kept: make([][]held, o.Slots), hash: 14695981039346656037,
	}
	w.now += w.rnd.Int64N(3600e9)
	w.unlink()
	w.oracle.init(w)
	if o.OneOwner {
		stats.count("keys: one owner")
	}
	if o.Alike {
		stats.count("keys: alike")
	}
	w.invent()
	for i := range w.slots {
		w.slots[i].id = slotID(i)
	}
	for i := range o.Members {
		w.boot(i, true)
	}
	w.calm = true // who starts together meets in any case
	w.run(warming)
	w.calm = false
	return w
}

// fail notes that a law is broken; the run ends.
func (w *World) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
		w.trace("FAILED: %s", w.failure)
	}
}

// note mixes what happens into the hash of the run.
func (w *World) note(xs ...uint64) {
	w.hash = (w.hash ^ uint64(w.now)) * 1099511628211
	for _, x := range xs {
		w.hash = (w.hash ^ x) * 1099511628211
		w.hash ^= w.hash >> 29
	}
}

// trace keeps a line of the run, when anybody wants to read it.
func (w *World) trace(format string, args ...any) {
	if !w.verbose {
		return
	}
	at := float64(w.now-epoch) / 1e9
	w.lines = append(w.lines, fmt.Sprintf("%11.4f  ", at)+fmt.Sprintf(format, args...))
}

// chance is true with probability p; it draws only when that is open.
func (w *World) chance(p float64) bool { return p > 0 && w.rnd.Float64() < p }

// upto is a random duration below d.
func (w *World) upto(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(w.rnd.Int64N(int64(d)))
}

// unlink ends all cuts.
func (w *World) unlink() {
	w.cut = make([][]bool, len(w.slots))
	for i := range w.cut {
		w.cut[i] = make([]bool, len(w.slots))
	}
}

// running are the members that run, paused ones too.
func (w *World) running() []*member {
	var ms []*member
	for i := range w.slots {
		if m := w.slots[i].now; m != nil {
			ms = append(ms, m)
		}
	}
	return ms
}

// parts are the slots that reach each other both ways, over others if need be; a paused or absent member is in none.
func (w *World) parts() (part []int, n int) {
	part = make([]int, len(w.slots))
	for i := range part {
		part[i] = -1
	}
	var visit func(i, n int)
	visit = func(i, n int) {
		part[i] = n
		for j := range w.slots {
			if m := w.slots[j].now; part[j] < 0 && m != nil && !m.paused && !w.cut[i][j] && !w.cut[j][i] {
				visit(j, n)
			}
		}
	}
	for i := range w.slots {
		if m := w.slots[i].now; part[i] < 0 && m != nil && !m.paused {
			visit(i, n)
			n++
		}
	}
	return part, n
}

func names(r *ring.Ring) string {
	var b strings.Builder
	for i := range r.Len() {
		m := r.At(i)
		fmt.Fprintf(&b, " %s.%d", m.ID, m.BootID>>1&31)
	}
	return fmt.Sprintf("%04x[%s]", r.Fingerprint()>>48, strings.TrimSpace(b.String()))
}

func standingText(s handoff.Membership) string {
	var b strings.Builder
	for _, p := range s.Peers {
		fmt.Fprintf(&b, " %s.%d:%d", p.ID, p.BootID>>1&31, p.State)
	}
	return fmt.Sprintf("n_ref %d leaving %v peers%s left %v", s.NRef, s.Leaving, b.String(), s.Left)
}
