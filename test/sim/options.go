package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// options are the parameters of a run, which a seed expands to. Each seed enables a random subset of the faults, so
// that they occur in many combinations and also alone.
type options struct {
	Seed     uint64
	Members  int           // at the start
	Slots    int           // names; those beyond Members may join
	Keys     int           // each with one rule
	Length   time.Duration // of the safety phase
	Requests int           // sent in it
	Policy   policy.Partition
	Full     bool // lost state is admitted with the full limit again, not pro rata

	Algorithms []limit.Algorithm // that the rules use
	Skew       time.Duration     // of clocks, at most, in both directions
	Drift      float64           // of clocks, at most, in both directions
	Deadline   time.Duration     // of a request, at most
	Strict     float64           // fraction of the rules with strict durability
	Closed     float64           // fraction of the rules that fail closed
	Addends    bool              // some requests have more than one hit
	Refunds    bool
	Direct     float64       // fraction of the requests that go to the owner on a ring that may be out of date
	Stale      time.Duration // age of that ring, at most

	Delay   time.Duration // of a message, usually at most
	Reorder float64       // fraction of the messages that take up to a second
	Loss    float64       // of messages between members
	Double  float64       // fraction of the messages that arrive twice
	Breaks  float64       // fraction of the messages of a transfer after which its connection breaks
	Deaf    float64       // loss of gossip

	Leaves, Joins, Rolls int           // planned changes; a roll restarts every member
	Serial               bool          // planned changes wait for the ring to be complete
	Rules                int           // changes of rules
	Crashes, Pauses      int           // of members
	Cuts, OneWay         int           // of links
	Partitions           int           // of the cluster
	Steps                int           // of clocks, by more than a second
	Stills               int           // stops of machines with their clocks
	Decay                time.Duration // of N_ref

	MaxKeys int // counters that a member has room for; 0: enough for all keys
	Domains int // number of domains of the keys; 0: one

	// Keys chosen by an adversary that knows everything but the tables' seed.
	OneOwner bool // all keys have one owner while the members are those of the start
	Alike    bool // the keys' digests differ in a few bits only

	Detection [5]membership.Detection // of the members, by slot, in turn; 0: the default
	Ring      ring.Parameters

	Fair    bool // most rules divide their limits between tenants; see expandFair
	Choices bool // rules choose their policies; see expandChoices

	Zones int // in which members run; 0: none. One of them fails; see expandZones

	Leases leaseOptions

	Durable durableOptions

	Federation federationOptions

	Holds holdOptions

	Quota quotaOptions
}

// expandBase returns the options of a seed.
func expandBase(seed uint64) options {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	o := options{
		Seed: seed, Members: 3 + r.IntN(4), Keys: 3 + r.IntN(6), Length: time.Duration(10+r.IntN(10)) * time.Second,
		Requests: 1100 + r.IntN(400), Delay: time.Duration(1+r.IntN(8)) * time.Millisecond / 2, Decay: time.Minute,
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
		o.Policy = []policy.Partition{policy.PartAvailable, policy.PartQuorum}[r.IntN(2)]
	}
	maybe(0.2, func() { o.Full = true })
	o.addClockStops(rand.New(rand.NewPCG(seed, 0x57111)))
	if seed%16 == 2 { // none of the seeds in testdata
		o.chooseKeys(rand.New(rand.NewPCG(seed, 0xadce)))
	}
	return o
}

// expandFull returns the options of a seed with planned changes only, and with tables that are too small for their
// keys, of one domain or more.
func expandFull(seed uint64) options {
	o := expandBase(seed)
	r := rand.New(rand.NewPCG(seed, 0xf0117))
	o.Crashes, o.Pauses, o.Cuts, o.OneWay, o.Partitions, o.Steps, o.Stills, o.Decay = 0, 0, 0, 0, 0, 0, 0, time.Minute
	o.Keys, o.Domains = 12+r.IntN(40), 1+r.IntN(3)
	o.MaxKeys = 1 + r.IntN(o.Keys) // a member owns a fraction of the keys, so this ranges from almost none to all of them
	o.Requests += r.IntN(2000)
	if o.Leaves+o.Joins+o.Rolls == 0 {
		o.Rolls = 1
	}
	if seed%4 == 1 { // none of the seeds in testdata
		o.chooseKeys(rand.New(rand.NewPCG(seed, 0xadce)))
	}
	return o
}

// chooseKeys makes an adversary choose the keys of some seeds.
func (o *options) chooseKeys(r *rand.Rand) {
	o.OneOwner, o.Alike = r.IntN(2) == 0, r.IntN(2) == 0
}

// expandStill returns the options of a seed in which machines stop with their clocks and nothing else fails. Keys are
// few, limits small, windows long, and callers wait for late replies, so that a member which has not noticed its stop
// exceeds a limit at once.
func expandStill(seed uint64) options {
	o := expandFull(seed)
	r := rand.New(rand.NewPCG(seed, 0x57112))
	o.Keys, o.Domains, o.MaxKeys, o.Requests = 1+r.IntN(2), 0, 0, 1100
	o.Members = 3 + r.IntN(2)
	o.Slots, o.Stills, o.Length, o.Deadline = o.Members, 1+r.IntN(2), 20*time.Second, time.Second
	o.Leaves, o.Joins, o.Rolls, o.Rules, o.Policy, o.Strict = 0, 0, 0, 0, policy.PartShare, 0
	o.Loss, o.Reorder, o.Double, o.Breaks, o.Deaf, o.Addends, o.Refunds = 0, 0, 0, 0, 0, false, false
	return o
}

// expandClosed returns the options of a seed with fail_closed rules and faults. In every other seed members crash and
// nothing else fails or changes.
func expandClosed(seed uint64) options {
	o := expandBase(seed)
	r := rand.New(rand.NewPCG(seed, 0xc105ed))
	o.Closed, o.Crashes = 0.7, max(o.Crashes, 1+r.IntN(2))
	if seed%2 == 0 {
		return o
	}
	o.Pauses, o.Cuts, o.OneWay, o.Partitions, o.Steps, o.Stills, o.Skew, o.Drift = 0, 0, 0, 0, 0, 0, 0, 0
	o.Leaves, o.Joins, o.Rolls, o.Rules, o.Refunds, o.Decay = 0, 0, 0, 0, false, time.Minute
	o.Loss, o.Reorder, o.Double, o.Breaks, o.Deaf = 0, 0, 0, 0, 0
	return o
}

// addFaults enables unplanned events.
func (o *options) addFaults(r *rand.Rand, maybe func(float64, func())) {
	maybe(0.4, func() { o.Crashes = 1 + r.IntN(2) })
	maybe(0.35, func() { o.Pauses = 1 + r.IntN(2) })
	maybe(0.3, func() { o.Cuts = 1 + r.IntN(2) })
	maybe(0.3, func() { o.OneWay = 1 + r.IntN(2) })
	maybe(0.3, func() { o.Partitions = 1 })
	maybe(0.1, func() { o.Steps = 1 })
	maybe(0.15, func() { o.Decay = time.Duration(4+r.IntN(5)) * time.Second })
}

// addClockStops enables stops of machines in some of the runs with faults. It uses random numbers of its own, so that
// all other options of a seed remain the same.
func (o *options) addClockStops(r *rand.Rand) {
	if !o.onlyPlanned() && r.IntN(3) == 0 {
		o.Stills = 1 + r.IntN(2)
	}
}

// onlyPlanned reports whether all changes are planned.
func (o options) onlyPlanned() bool {
	return o.Crashes+o.Pauses+o.Cuts+o.OneWay+o.Partitions+o.Steps+o.Stills+o.Zones+o.Durable.Crashes+o.Durable.Stops == 0
}

// plain is Options without methods.
type plain options

func (o options) String() string { return fmt.Sprintf("%+v", plain(o)) }
