// Package sim simulates a cluster in one goroutine: the real core, with a virtual clock and network.
//
// A seed expands to Options. A world has members, each an owner.Node with a clock of its own, driven as package peer
// drives it; a network that delays, loses, repeats and blocks messages; gossip that converges; clients that send
// requests; and faults. The oracle observes every decision and every reply, and compares them with the bounds that
// follow from the faults of this run. The same seed produces the same run, down to the last message.
package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

const (
	maxSlots   = 12 // of most seeds
	epoch      = int64(1_700_000_000e9)
	warmUp     = 3 * time.Second  // from the start to the first request
	settleTime = 10 * time.Second // from the last fault to the liveness phase
)

// world is the state of one run.
type world struct {
	o      options
	bug    bug
	rnd    *rand.Rand
	agenda agenda
	now    int64
	events int
	rings  *ringCache
	stats  *summary

	slots        []slot
	blocked      [][]bool // by sender and receiver
	held         [][]heldMessage
	keys         []*key
	rules        [][]rule // by version and key
	requests     uint64
	manualRoutes []hotkey.Route
	safetySince  int64 // when the safety phase began
	healed       bool  // the safety phase is over: no loss and no faults
	oracle       oracle
	quota        *quotaWorld
	federal      *federal // of which this cluster is a region; nil: none
	region       int
	offset       int64 // of this region's time
	hash         uint64
	verbose      bool
	lines        []string
	failure      string

	volumes       []*volume
	stopping      bool      // all members stop in good order
	coldStart     bool      // all members have ended, and none trusts its ring since then
	ringChangedAt int64     // when a member last adopted a ring
	over          bool      // the run has ended
	expected      int       // members that start together
	lastVolumes   []*volume // of the members that have last ended together
	planned       []int     // the slots in which members start after a restart of all
}

// slot is a name under which members run.
type slot struct {
	id    ring.ID
	now   *member // nil: none is running
	boots int

	volume *volume
}

// ringCache caches rings by their members and parameters, because building a ring takes longer than everything else in a change. It
// is not safe for concurrent use.
type ringCache struct{ made map[string]*ring.Ring }

// ringOf returns the ring of the given boots by slot. Each call returns another pointer, as adopting a ring does.
func (w *world) ringOf(boots []int) *ring.Ring { return w.rings.of(boots, w.o.Ring, w.o.Zones) }

func (c *ringCache) of(boots []int, p ring.Parameters, zones int) *ring.Ring {
	packed := make([]byte, len(boots))
	for i, b := range boots {
		packed[i] = byte(b)
	}
	if p.Envoy {
		packed = append(packed, p.String()...)
	}
	packed = append(packed, byte(zones))
	if c.made == nil || len(c.made) > 800 {
		c.made = map[string]*ring.Ring{}
	}
	r := c.made[string(packed)]
	if r == nil {
		var members []ring.Member
		for i, b := range boots {
			if b > 0 {
				members = append(members,
					ring.Member{ID: slotID(i), BootID: inst(i, b), Incarnation: 1, Weight: weight(i), Zone: zoneOf(i, zones)})
			}
		}
		r = p.New(members)
		c.made[string(packed)] = r
	}
	again := *r
	return &again
}

func slotID(i int) ring.ID { return ring.ID("n" + letters[i:i+1]) }

// letters has a letter for each slot.
const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// inst returns the boot ID of a boot of a slot. Boot IDs are odd.
func inst(i, boot int) uint64 { return uint64(i+1)<<16 | uint64(boot)<<1 | 1 }

func weight(i int) uint32 { return 1 + uint32(i/6)%2 }

// runResult is the result of one run.
type runResult struct {
	Options   options
	Hash      uint64 // of all events
	Decisions int
	Events    int
	Failure   string   // the violated law; empty if there is none
	Trace     []string // of verbose runs
}

// runner has what runs share.
type runner struct {
	rings   *ringCache
	stats   *summary // of the runs so far
	verbose bool     // keep traces
}

// newRunner returns a runner without any runs.
func newRunner(verbose bool) runner { return runner{&ringCache{}, newSummary(), verbose} }

// run runs the world of o.
func (r runner) run(o options, bug bug) runResult {
	if o.Federation.Regions > 0 {
		return r.runFederal(o, bug)
	}
	w := r.newWorld(o, bug)
	w.safetySince = w.now
	w.schedule()
	w.startQuota()
	w.run(o.Length + o.Leases.Lull)
	w.heal()
	w.run(o.slowed(settleTime))
	if o.Holds.On && slices.ContainsFunc(w.running(), (*member).missesMembers) { // holds that give back lapse when the others do not count any more
		w.run(o.Decay)
	}
	w.probe()
	w.oracle.finish()
	w.end()
	return runResult{o, w.hash, int(w.requests), w.events, w.failure, w.lines}
}

// newWorld creates the world of o and runs it up to the first request.
func (r runner) newWorld(o options, bug bug) *world {
	w := r.emptyWorld(o, bug)
	w.now += w.rnd.Int64N(3600e9)
	w.expected = o.Members
	w.unblockLinks()
	w.oracle.init(w)
	if o.OneOwner {
		w.stats.count("keys: one owner")
	}
	if o.Alike {
		w.stats.count("keys: alike")
	}
	w.makeKeys()
	for i := range w.slots {
		w.slots[i].id = slotID(i)
	}
	w.makeVolumes()
	for i := range o.Members {
		w.boot(i, true)
	}
	w.healed = true // members that start together meet in any case
	w.run(o.slowed(warmUp))
	w.healed = false
	return w
}

// emptyWorld returns the world of o without keys and members.
func (r runner) emptyWorld(o options, bug bug) *world {
	return &world{
		o: o, bug: bug, rnd: rand.New(rand.NewPCG(o.Seed, 1)), now: epoch, rings: r.rings, stats: r.stats, verbose: r.verbose,
		slots: make([]slot, o.Slots), held: make([][]heldMessage, o.Slots), hash: 14695981039346656037,
	}
}

// end ends what still waits for disks.
func (w *world) end() {
	w.over = true
	for _, m := range w.running() {
		m.kill()
	}
}

// fail records a violated law and ends the run.
func (w *world) fail(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf(format, args...)
		w.trace("FAILED: %s", w.failure)
	}
}

// mixHash adds an event to the hash of the run.
func (w *world) mixHash(xs ...uint64) {
	w.hash = (w.hash ^ uint64(w.now)) * 1099511628211
	for _, x := range xs {
		w.hash = (w.hash ^ x) * 1099511628211
		w.hash ^= w.hash >> 29
	}
}

// trace adds a line to the trace of a verbose run.
func (w *world) trace(format string, args ...any) {
	if !w.verbose {
		return
	}
	if w.federal != nil {
		w.federal.trace(regionName(w.region)+": "+format, args...)
		return
	}
	at := float64(w.now-epoch) / 1e9
	w.lines = append(w.lines, fmt.Sprintf("%11.4f  ", at)+fmt.Sprintf(format, args...))
}

// chance returns true with probability p. It draws a random number only if p is above 0.
func (w *world) chance(p float64) bool { return p > 0 && w.rnd.Float64() < p }

// randomBelow returns a random duration below d.
func (w *world) randomBelow(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(w.rnd.Int64N(int64(d)))
}

// unblockLinks removes all blocks of links.
func (w *world) unblockLinks() {
	w.blocked = make([][]bool, len(w.slots))
	for i := range w.blocked {
		w.blocked[i] = make([]bool, len(w.slots))
	}
}

// running returns the running members, including the paused ones.
func (w *world) running() []*member {
	var ms []*member
	for i := range w.slots {
		if m := w.slots[i].now; m != nil {
			ms = append(ms, m)
		}
	}
	return ms
}

// parts numbers the sets of slots that reach each other in both directions, directly or through others. A paused or
// absent member has part -1.
func (w *world) parts() (part []int, n int) {
	part = make([]int, len(w.slots))
	for i := range part {
		part[i] = -1
	}
	var visit func(i, n int)
	visit = func(i, n int) {
		part[i] = n
		for j := range w.slots {
			if m := w.slots[j].now; part[j] < 0 && m != nil && !m.paused && !w.blocked[i][j] && !w.blocked[j][i] {
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

func viewText(v *membership.View) string {
	var b strings.Builder
	for p := range v.Peers() {
		fmt.Fprintf(&b, " %s.%d:%d", p.ID, p.BootID>>1&31, p.State)
	}
	return fmt.Sprintf("n_ref %d leaving %v peers%s left %v", v.NRef, v.Leaving(), b.String(), v.Left)
}
