package sim

import (
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// federationOptions are the parameters of a world of several regions. The other options are those of each region.
type federationOptions struct {
	Regions      int // 0: this is one cluster
	Weights      []uint32
	Sizes        []int   // members of each region at the start
	Shares       []int   // of the requests, by region
	Coordinators int     // each has a part of the keys
	Offset       float64 // seconds by which the clocks of regions and coordinators are off, at most, in both directions

	Delay, Jitter             time.Duration // of a message between a region and a coordinator, one way
	Loss, Double, Reorder     float64       // of these messages
	Timeouts                  bool          // a call without a reply fails after callTimeout
	Cuts, OneWay, Slows       int           // of links to a coordinator
	Downs                     int           // of a coordinator, for a while
	Failovers, Empties, Loses int           // of its store: without the newest writes, without any, without any and unaware of it
	Lag                       time.Duration // of the newest writes, at most
	Restarts                  int           // of all members of a region at once
	Calm                      bool          // nothing fails, and requests come steadily
	Change                    layoutOptions // of the layout
}

// callTimeout is the time after which a call to a coordinator fails.
const callTimeout = 3 * time.Second

// expandFederation returns the options of a seed with several regions. In half of the seeds, nothing fails within the
// regions, so that the rows of the table of outages occur alone, too.
func expandFederation(seed uint64) options {
	o := expandBase(seed)
	r := rand.New(rand.NewPCG(seed, 0xfede7a))
	o.Length = time.Duration(14+r.IntN(16)) * time.Second
	o.Requests, o.Keys, o.Members, o.Slots = 1200+r.IntN(1400), 1+r.IntN(4), 0, 0
	o.Skew, o.Full, o.Rules, o.Steps, o.Stills, o.Direct = min(o.Skew, 100*time.Millisecond), false, 0, 0, 0, 0
	o.OneOwner, o.Alike = false, false
	o.Algorithms = [][]limit.Algorithm{
		{limit.FixedWindow}, {limit.FixedWindow}, {limit.FixedWindow, limit.SlidingWindow}, {limit.SlidingWindow},
	}[r.IntN(4)]
	o.Refunds = o.Refunds && len(o.Algorithms) == 1 && o.Algorithms[0] == limit.FixedWindow
	if r.IntN(2) == 0 {
		o.quiet()
	}
	o.Federation.expand(r)
	if f := &o.Federation; r.IntN(6) == 0 {
		*f = federationOptions{
			Regions: f.Regions, Weights: f.Weights, Sizes: f.Sizes, Shares: f.Shares, Coordinators: f.Coordinators,
			Delay: f.Delay, Jitter: f.Jitter, Offset: min(f.Offset, 0.12), Calm: true,
		}
		o.quiet()
		o.Length, o.Requests, o.Deadline, o.Addends, o.Refunds = 30*time.Second, 3000, time.Second, false, false
	}
	o.Federation.Change.expand(&o.Federation, rand.New(rand.NewPCG(seed, 0x1a70)))
	return o
}

// quiet removes everything that fails or changes within a region.
func (o *options) quiet() {
	o.Leaves, o.Joins, o.Rolls, o.Crashes, o.Pauses, o.Cuts, o.OneWay, o.Partitions = 0, 0, 0, 0, 0, 0, 0, 0
	o.Loss, o.Reorder, o.Double, o.Breaks, o.Deaf, o.Decay, o.Policy = 0, 0, 0, 0, 0, time.Minute, policy.PartShare
}

// expand chooses regions, links and faults.
func (f *federationOptions) expand(r *rand.Rand) {
	f.Regions, f.Coordinators = 2+r.IntN(3), 1+r.IntN(2)
	for range f.Regions {
		f.Weights = append(f.Weights, []uint32{1, 1, 1, 2, 3}[r.IntN(5)])
		f.Sizes = append(f.Sizes, []int{1, 2, 3, 3, 4}[r.IntN(5)])
		f.Shares = append(f.Shares, []int{1, 1, 3, 10}[r.IntN(4)])
	}
	maybe := func(p float64, set func()) {
		if r.Float64() < p {
			set()
		}
	}
	f.Delay, f.Jitter = time.Duration(1+r.IntN(120))*time.Millisecond, time.Duration(r.IntN(40))*time.Millisecond
	maybe(0.6, func() { f.Offset = 0.01 + 0.11*r.Float64() })
	maybe(0.1, func() { f.Offset = 0.3 + 3*r.Float64() })
	maybe(0.3, func() { f.Loss = 0.02 + 0.2*r.Float64() })
	maybe(0.3, func() { f.Double = 0.2 })
	maybe(0.3, func() { f.Reorder = 0.02 + 0.2*r.Float64() })
	f.Timeouts = r.IntN(2) == 0
	maybe(0.4, func() { f.Cuts = 1 + r.IntN(3) })
	maybe(0.3, func() { f.OneWay = 1 + r.IntN(2) })
	maybe(0.3, func() { f.Slows = 1 + r.IntN(2) })
	maybe(0.25, func() { f.Downs = 1 + r.IntN(2) })
	maybe(0.25, func() { f.Failovers = 1 + r.IntN(2) })
	maybe(0.12, func() { f.Empties = 1 + r.IntN(2) })
	maybe(0.08, func() { f.Loses = 1 })
	f.Lag = time.Duration(1+r.IntN(2000)) * time.Millisecond
	maybe(0.12, func() { f.Restarts = 1 })
}

// federatedRule has what a rule of several regions sets in addition to rule.
type federatedRule struct {
	terms    federation.RuleTerms
	localCap uint32
	home     int // its coordinator
}

// federatedRules creates the rules that all regions have.
func (f *federal) federatedRules() (keys []*key, rules []rule) {
	w := f.regions[0] // names and digests do not depend on the region
	for i := range f.o.Keys {
		k, r := &key{name: w.keyName(i), weight: 1 + f.rnd.IntN(4)}, rule{strict: f.rnd.Float64() < f.o.Strict}
		r.limit.Algorithm = f.o.Algorithms[f.rnd.IntN(len(f.o.Algorithms))]
		r.limit.Window = []time.Duration{5, 10, 10, 15, 30}[f.rnd.IntN(5)] * time.Second
		r.limit.Limit = []uint32{3, 10, 40, 100, 400, 1500}[f.rnd.IntN(6)]
		if f.o.Federation.Calm {
			r.limit.Window, r.limit.Limit = 10*time.Second, []uint32{100, 200, 400, 1000}[f.rnd.IntN(4)]
		}
		if f.o.Addends {
			r.limit.Limit *= 4
		}
		r.name(k)
		x := federatedRule{home: i % f.o.Federation.Coordinators, localCap: 1 + f.rnd.Uint32N(20)}
		x.terms = federation.RuleTerms{
			Authority: federation.AuthorityID(homeName(x.home)),
			Floor:     []uint8{0, 5, 5, 20, 50, 100}[f.rnd.IntN(6)], Outage: federation.Outage(f.rnd.IntN(4)),
			Batch: []time.Duration{0, 0, 200 * time.Millisecond, 2 * time.Second}[f.rnd.IntN(4)],
		}
		if f.o.Federation.Calm {
			x.terms.Floor = []uint8{5, 20}[f.rnd.IntN(2)]
		}
		if f.o.Federation.Change.Moves {
			x.home, x.terms.Authority = 0, federation.DefaultAuthority
		}
		keys, rules, f.rules = append(keys, k), append(rules, r), append(f.rules, x)
	}
	return keys, rules
}
