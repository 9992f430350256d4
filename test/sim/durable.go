package sim

import (
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/internal/policy"
)

// durableOptions are the options of journals and of the faults that they are for.
type durableOptions struct {
	On       bool
	Window   time.Duration // owner.Options.DataWindow
	Memory   float64       // fraction of the rules with durability: memory
	Volumes  int           // on which the members' journals are; at least one
	Sync     time.Duration // in which the disk makes records durable, at most
	Crashes  int           // of all members at once
	Stops    int           // of all members in good order
	Power    float64       // fraction of the crashes that are losses of power
	Renames  bool          // members start again with other names and numbers, and volumes are swapped
	Lost     float64       // fraction of the crashes of all members in which volumes are lost
	Flips    float64       // fraction of the crashes of all members in which bits flip
	Late     float64       // fraction of the starts that are so late that the others do not wait
	Stalls   int           // of volumes, for seconds
	Failures int           // of volumes: errors, no space, read-only; also just before a crash
	Again    float64       // fraction of the crashes of all members after which they crash while they start
	Knocks   float64       // fraction of the requests that go to members that may not be ready
}

// expandDurable returns the options of a seed whose members have journals, and in which all members crash, or stop, and
// start again. In every eighth seed, links, clocks and machines fail as well.
func expandDurable(seed uint64) options {
	o := expandBase(seed)
	r := rand.New(rand.NewPCG(seed, 0xd15c))
	maybe := func(p float64, set func()) {
		if r.Float64() < p {
			set()
		}
	}
	if seed%8 != 0 {
		o.Pauses, o.Cuts, o.OneWay, o.Partitions, o.Steps, o.Stills, o.Decay = 0, 0, 0, 0, 0, 0, time.Minute
		o.Policy, o.Crashes = policy.PartShare, 0
		maybe(0.3, func() { o.Crashes = 1 + r.IntN(2) })
	}
	if r.IntN(3) > 0 { // most seeds have only the faults that journals are for
		o.Leaves, o.Joins, o.Rolls, o.Rules = 0, 0, 0, 0
	}
	if r.IntN(2) == 0 {
		o.Loss, o.Reorder, o.Double, o.Breaks, o.Deaf = 0, 0, 0, 0, 0
	}
	o.OneOwner, o.Alike = false, false
	o.Members = min(o.Members, 6)
	o.Slots = o.Members + 3
	o.Strict = []float64{0, 0.3, 0.6, 1}[r.IntN(4)]
	o.Keys, o.Length = 2+r.IntN(5), 24*time.Second
	o.Requests += 500
	d := &o.Durable
	d.On, d.Crashes, d.Volumes = true, 1, o.Slots
	d.Window = []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, 10 * time.Minute}[r.IntN(4)]
	d.Sync = []time.Duration{time.Millisecond, 4 * time.Millisecond, 30 * time.Millisecond}[r.IntN(3)]
	d.Power = []float64{0, 0.5, 1}[r.IntN(3)]
	d.Knocks = 0.1
	maybe(0.3, func() { d.Memory = 0.2 })
	maybe(0.25, func() { d.Volumes = 1 + r.IntN(2) })
	maybe(0.3, func() { d.Crashes++ })
	maybe(0.25, func() { d.Stops, d.Crashes = 1, d.Crashes-r.IntN(2) })
	maybe(0.4, func() { d.Renames = true })
	maybe(0.3, func() { d.Lost = 0.7 })
	maybe(0.15, func() { d.Flips = 0.7 })
	maybe(0.1, func() { d.Late = 0.3 })
	maybe(0.1, func() { d.Stalls = 1 + r.IntN(2) })
	maybe(0.3, func() { d.Failures = 1 + r.IntN(2) })
	maybe(0.2, func() { d.Again = 0.7 })
	return o
}

// durableWindow returns a window of a rule: most are in the journal, and outlive the run.
func (w *world) durableWindow() time.Duration {
	d := w.o.Durable.Window
	return []time.Duration{2 * time.Second, d / 2, d, 2 * d, 6 * d, 60 * d}[w.rnd.IntN(6)]
}

// durableAmount returns a limit of a rule. Of most, U is more than one hit.
func (w *world) durableAmount() uint32 {
	n := []uint32{1, 10, 60, 150, 300, 300, 600, 1000, 2000}[w.rnd.IntN(9)]
	if w.o.Addends {
		n *= 4
	}
	return n
}

// sharp reports whether no fault of links, clocks and machines weakens the bounds of this run.
func (o *options) sharp() bool {
	return o.Durable.On && o.Pauses+o.Cuts+o.OneWay+o.Partitions+o.Steps+o.Stills+o.Zones == 0
}
