package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
)

// Options are what a seed expands to. Each seed enables a random part of them, so that faults meet in many combinations
// and also stay apart.
type Options struct {
	Seed      uint64
	Members   int           // at the start
	Slots     int           // names that there are; those beyond Members may join
	Keys      int           // and each has one rule
	Length    time.Duration // of the safety phase
	Questions int           // asked in it
	Policy    handoff.PartitionPolicy
	Full      bool // lost state is forgiven: the full limit again, not pro rata

	Algorithms []limit.Algorithm // which the rules choose from
	Skew       time.Duration     // of clocks, at most, either way
	Drift      float64           // of clocks, at most, either way
	Deadline   time.Duration     // of a question, at most
	Strict     float64           // part of the rules with strict durability
	Addends    bool              // questions of more than one hit
	Refunds    bool
	Direct     float64       // part of the questions that go to the owner by a ring that may be old
	Stale      time.Duration // how old, at most

	Delay   time.Duration // of a message, usually at most
	Reorder float64       // part of the messages that take up to a second
	Loss    float64       // of messages between members
	Double  float64       // part of the messages that come twice
	Breaks  float64       // part of the messages of a transfer after which its connection is gone
	Deaf    float64       // loss of gossip

	Leaves, Joins, Rolls int           // planned changes; a roll restarts every member
	Serial               bool          // planned changes wait for the ring to be complete
	Rules                int           // changes of rules
	Crashes, Pauses      int           // of members
	Cuts, OneWay         int           // of links
	Partitions           int           // of the cluster
	Steps                int           // of clocks, by more than a second
	Stills               int           // of machines, with their clocks
	Decay                time.Duration // of N_ref

	MaxKeys int // counters that a member has room for; 0: for all
	Domains int // that the keys belong to in turn; 0: one

	// Key sets of an adversary who knows everything but the tables' seed.
	OneOwner bool // all keys have one owner, as long as the members are those of the start
	Alike    bool // the digests of keys differ in a few bits

	Leases leaseOptions
}

// expandBase is the set of options of a seed.
func expandBase(seed uint64) Options {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	o := Options{
		Seed: seed, Members: 3 + r.IntN(4), Keys: 3 + r.IntN(6), Length: time.Duration(10+r.IntN(10)) * time.Second,
		Questions: 1100 + r.IntN(400), Delay: time.Duration(1+r.IntN(8)) * time.Millisecond / 2, Decay: time.Minute,
		Deadline: []time.Duration{12, 12, 50, 250, 1000}[r.IntN(5)] * time.Millisecond,
		Serial:   r.IntN(4) > 0,
	}
	if r.IntN(8) == 0 {
		o.Members = 7 + r.IntN(3)
	}
	o.Slots = min(o.Members+2, maxSlots)
	maybe := func(p float64, set func()) {
		if r.Float64() < p {
			set()
		}
	}
	all := []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog, limit.TokenBucket, limit.LeakyBucket}
	o.Algorithms = all[:1]
	maybe(0.5, func() { o.Algorithms = all })
	maybe(0.15, func() { o.Algorithms = all[3:] })
	maybe(0.5, func() { o.Skew = time.Duration(r.IntN(200)) * time.Millisecond })
	maybe(0.3, func() { o.Drift = r.Float64() * 2e-4 })
	maybe(0.3, func() { o.Strict = 0.5 })
	maybe(0.4, func() { o.Addends = true })
	maybe(0.3, func() { o.Refunds = true })
	maybe(0.4, func() { o.Direct, o.Stale = 0.8, time.Duration(r.IntN(5000))*time.Millisecond })
	maybe(0.6, func() { o.Leaves, o.Joins = r.IntN(3), r.IntN(3) })
	maybe(0.25, func() { o.Rolls = 1 })
	maybe(0.25, func() { o.Rules = 1 + r.IntN(4) })
	maybe(0.3, func() { o.Reorder = 0.02 + 0.1*r.Float64() })
	maybe(0.3, func() { o.Double = 0.1 })
	maybe(0.2, func() { o.Loss = 0.02 + 0.15*r.Float64() })
	maybe(0.25, func() { o.Breaks = 0.05 + 0.2*r.Float64() })
	maybe(0.3, func() { o.Deaf = 0.3 * r.Float64() })
	if r.IntN(3) > 0 {
		o.addFaults(r, maybe)
	}
	if r.IntN(4) == 0 {
		o.Policy = []handoff.PartitionPolicy{handoff.PolicyAvailable, handoff.PolicyQuorum}[r.IntN(2)]
	}
	maybe(0.2, func() { o.Full = true })
	o.addClockStops(rand.New(rand.NewPCG(seed, 0x57111)))
	if seed%16 == 2 { // none of those in testdata
		o.chooseKeys(rand.New(rand.NewPCG(seed, 0xadce)))
	}
	return o
}

// expandFull is Expand for seeds with tables that are too small for their keys, of one domain or more, and planned changes alone.
func expandFull(seed uint64) Options {
	o := expandBase(seed)
	r := rand.New(rand.NewPCG(seed, 0xf0117))
	o.Crashes, o.Pauses, o.Cuts, o.OneWay, o.Partitions, o.Steps, o.Stills, o.Decay = 0, 0, 0, 0, 0, 0, 0, time.Minute
	o.Keys, o.Domains = 12+r.IntN(40), 1+r.IntN(3)
	o.MaxKeys = 1 + r.IntN(o.Keys) // a member owns a part of the keys, so that this is from nearly nothing to room for all
	o.Questions += r.IntN(2000)
	if o.Leaves+o.Joins+o.Rolls == 0 {
		o.Rolls = 1
	}
	if seed%4 == 1 { // none of those in testdata
		o.chooseKeys(rand.New(rand.NewPCG(seed, 0xadce)))
	}
	return o
}

// chooseKeys has an adversary choose the keys of some seeds.
func (o *Options) chooseKeys(r *rand.Rand) {
	o.OneOwner, o.Alike = r.IntN(2) == 0, r.IntN(2) == 0
}

// expandStill is Expand for seeds in which machines stop with their clocks and nothing else goes wrong, with few keys and small limits of
// long windows, and with callers that wait for late answers: what a member decides that has not noticed is above a limit at once.
func expandStill(seed uint64) Options {
	o := expandFull(seed)
	r := rand.New(rand.NewPCG(seed, 0x57112))
	o.Keys, o.Domains, o.MaxKeys, o.Questions = 1+r.IntN(2), 0, 0, 1100
	o.Members = 3 + r.IntN(2)
	o.Slots, o.Stills, o.Length, o.Deadline = o.Members, 1+r.IntN(2), 20*time.Second, time.Second
	o.Leaves, o.Joins, o.Rolls, o.Rules, o.Policy, o.Strict = 0, 0, 0, 0, handoff.PolicyShare, 0
	o.Loss, o.Reorder, o.Double, o.Breaks, o.Deaf, o.Addends, o.Refunds = 0, 0, 0, 0, 0, false, false
	return o
}

// addFaults enables what no plan foresees.
func (o *Options) addFaults(r *rand.Rand, maybe func(float64, func())) {
	maybe(0.4, func() { o.Crashes = 1 + r.IntN(2) })
	maybe(0.35, func() { o.Pauses = 1 + r.IntN(2) })
	maybe(0.3, func() { o.Cuts = 1 + r.IntN(2) })
	maybe(0.3, func() { o.OneWay = 1 + r.IntN(2) })
	maybe(0.3, func() { o.Partitions = 1 })
	maybe(0.1, func() { o.Steps = 1 })
	maybe(0.15, func() { o.Decay = time.Duration(4+r.IntN(5)) * time.Second })
}

// addClockStops stops machines in some of the runs that are disturbed. It draws from numbers of its own, so that all other options of a
// seed are as they were before.
func (o *Options) addClockStops(r *rand.Rand) {
	if !o.onlyPlanned() && r.IntN(3) == 0 {
		o.Stills = 1 + r.IntN(2)
	}
}

// onlyPlanned says that nothing happens which no plan foresees.
func (o Options) onlyPlanned() bool {
	return o.Crashes+o.Pauses+o.Cuts+o.OneWay+o.Partitions+o.Steps+o.Stills == 0
}

// plain has no methods.
type plain Options

func (o Options) String() string { return fmt.Sprintf("%+v", plain(o)) }
