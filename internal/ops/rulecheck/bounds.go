package rulecheck

import (
	"math"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
)

// Conditions are what bounds depend on in addition to the rule.
type Conditions struct {
	Members   int              `json:"members"` // N, at least 1
	Partition policy.Partition `json:"policy"`
	Rate      float64          `json:"rate,omitempty"` // hits per second that one key may get; 0 if unknown
	Outage    time.Duration    `json:"-"`              // length of an outage of the owner; 0: none is considered

	// DataWindow is the members' --data-window; 0: they have no --data.
	DataWindow time.Duration `json:"-"`

	Detection membership.Detection `json:"-"` // of the members

	Quota QuotaConditions `json:"-"`

	Regions *FederationConditions `json:"regions,omitempty"` // nil: of rules with federation, nothing is known but the text
}

// RuleBounds are the bounds of one rule, in hits of one key in one window. The window of a bucket is any time of that
// length. Fields are only ever added.
type RuleBounds struct {
	Rule        string `json:"rule"`
	File        string `json:"file"`
	Line        int    `json:"line"`
	Unlimited   bool   `json:"unlimited,omitempty"` // then all that follows is 0
	Algorithm   string `json:"algorithm"`
	Window      string `json:"window"`
	Strict      bool   `json:"strict"`
	Degraded    string `json:"degraded"`
	Partition   string `json:"partition,omitempty"` // the rule's policy, or else that of the members
	Limit       uint64 `json:"L"`
	Depth       uint64 `json:"b,omitempty"` // b, of buckets; otherwise 0
	Unacked     uint64 `json:"U"`           // U: charges that are acknowledged before the successor has them
	Tolerated   int    `json:"f"`           // f: members that an owner with the complete limit may miss
	Share       uint64 `json:"share"`       // the smallest share of a member
	Phi         uint64 `json:"phi"`         // charges under local shares that the owner has not counted, at most
	Open        uint64 `json:"open"`        // what all members admit under fail_open in a window without owner
	Skew        uint64 `json:"S"`           // S: hits admitted when a counter moves and clocks differ; 0 for fixed windows
	Mechanism   string `json:"mechanism"`
	Lent        uint64 `json:"lent"`                  // hits that may be on loan to leaseholders at once; 0 if the rule never lends
	Drift       uint64 `json:"E"`                     // E: hits that members may admit before the owner counts them; 0 unless approximate
	Unknown     uint64 `json:"E_unknown,omitempty"`   // E of the keys of unknown callers, if the rule distinguishes them
	Envoys      uint64 `json:"M,omitempty"`           // M, of rules with mechanism: quota
	Connections uint64 `json:"connections,omitempty"` // of callers to one Envoy, of the same
	// Unwritten is U of the rows of the journal: hits of one key that no disk has yet, or with durability: strict, hits
	// that members have reserved ahead. It is 0 unless the rule is in the members' journals.
	Unwritten    uint64  `json:"U_journal,omitempty"`
	NotInJournal string  `json:"not_in_journal,omitempty"` // why; empty: it is, or members have no --data
	Bounds       []Bound `json:"bounds"`

	Federation *RegionBounds `json:"federation,omitempty"` // nil unless several regions share the limit

	Outage *OutageCost `json:"outage,omitempty"` // nil without Conditions.Outage, and for a single member

	Spec *config.RuleSpec `json:"-"`
}

// Bound states how many hits an event can add to the limit of one key in one window, or withhold from it.
type Bound struct {
	Event        string   `json:"event"`
	Over         uint64   `json:"over"` // hits above the limit, at most
	OverFormula  string   `json:"over_is"`
	Traffic      *Traffic `json:"over_traffic,omitempty"` // added to Over; nil if none, or if Over includes it
	Under        uint64   `json:"under"`                  // hits within the limit that may be refused, at most
	UnderFormula string   `json:"under_is"`
	UnderTime    string   `json:"under_time,omitempty"` // how long; empty if Under is 0
}

// Traffic is the part of a bound that depends on the rate of hits: rate times Seconds, at most Most.
type Traffic struct {
	Seconds float64 `json:"seconds"`
	Most    uint64  `json:"most"`
}

// Duration returns the time for which traffic is admitted.
func (t *Traffic) Duration() time.Duration {
	return time.Duration(math.Round(t.Seconds * float64(time.Second)))
}

// BoundsOf returns what a rule guarantees in a cluster. An unlimited rule guarantees nothing: its bounds are 0.
func BoundsOf(r *config.RuleSpec, c Conditions) RuleBounds {
	x := &r.Extension
	b := RuleBounds{
		Rule: r.FullKey, File: r.File, Line: r.Line, Unlimited: r.Unlimited,
		Algorithm: r.Limit.Algorithm.String(), Window: r.Limit.Window.String(),
		Strict: x.Strict, Degraded: x.Degraded.String(), Mechanism: x.MechanismName(), Bounds: []Bound{}, Spec: r,
	}
	if r.Unlimited {
		return b
	}
	c.Members, c.Partition = max(1, c.Members), x.Partition.Or(c.Partition)
	b.Partition = c.Partition.String()
	b.quantities(r, uint64(c.Members))
	if c.DataWindow > 0 {
		b.NotInJournal = NotInJournal(r, c.DataWindow)
	}
	if x.Mechanism == policy.Static {
		b.Unacked, b.Tolerated, b.Phi, b.Open, b.Skew, b.Partition = 0, 0, 0, 0, 0, ""
	}
	w := eventTable{RuleBounds: &b, conditions: c, most: most(r), least: b.Share, all: "L"}
	if b.Depth > 0 {
		w.all = "(b + L)"
	}
	switch {
	case x.Mechanism == policy.Static:
	case x.Degraded == policy.FailClosed:
		w.least = 0 // without a replica or a reply it refuses everything
	case b.Open > 0 && x.LocalCap > 0:
		w.least = min(w.least, b.Open/uint64(c.Members))
	}
	if x.Federation != nil && c.Regions != nil {
		b.Federation = regionBounds(r, c.Regions.Weights)
		w.federated()
		if c.Outage > 0 && b.Federation.Pool > 0 {
			b.Outage = federatedOutage(r, c, b.Federation)
		}
		return b
	}
	w.write()
	if x.Quota != nil {
		w.quota()
	}
	if c.Outage > 0 && c.Members > 1 && x.Mechanism != policy.Static {
		b.Outage = outageOf(r, c)
	}
	return b
}

// quantities computes the symbols that the formulas consist of, for n members.
func (b *RuleBounds) quantities(r *config.RuleSpec, n uint64) {
	b.Limit = uint64(r.Limit.Limit)
	b.Share, b.Phi = b.Limit/n, shares(b.Limit, n)
	if r.Limit.Algorithm.Bucket() {
		b.Depth = uint64(r.Limit.Depth())
		b.Share += min(b.Depth, max(1, b.Depth/n))
		b.Phi += max(shares(b.Depth, n), min(b.Depth*(n-1), n-1))
	}
	if n == 1 {
		return
	}
	if n >= 3 {
		b.Tolerated = 1
	}
	if !r.Extension.Strict {
		b.Unacked = r.Limit.Unreplicated()
	}
	if r.Limit.Algorithm != limit.FixedWindow {
		b.Skew = min(most(r), uint64(math.Ceil(float64(b.Limit)*float64(limit.ClockTolerance)/float64(r.Limit.Window))))
	}
	if r.Extension.Degraded == policy.FailOpen {
		b.Open = open(r, n)
	}
	b.Lent, b.Drift, b.Unknown = lent(r, 1), drift(r), uint64(r.Extension.UnknownSlack())
}

// shares returns the most that all members but one get when limit is divided by n.
func shares(limit, n uint64) uint64 { return (n-1)*(limit/n) + min(n-1, limit%n) }

// bucketLease is how long a lease of a bucket lasts.
const bucketLease = 100 * time.Millisecond

// lent returns how many hits may be on loan at once when a key is leased to the given number of holders: 5 % of the
// limit. For a bucket these are the hits that flow in during two leases: the one on loan, and the one by which the
// owner reduces the bucket's depth meanwhile. It is 0 if the limit is too low to lend, or if such rules never lend.
func lent(r *config.RuleSpec, holders uint64) uint64 {
	switch {
	case r.Extension.Mechanism == policy.Approximate, r.Extension.Mechanism == policy.Static,
		r.Limit.Algorithm.Log():
		return 0
	case r.Limit.Algorithm.Bucket():
		depth := uint64(r.Limit.Depth())
		if depth < 2*holders {
			return 0
		}
		out := uint64(float64(r.Limit.Limit) * float64(bucketLease) / float64(r.Limit.Window))
		return 2 * min(depth/2, out)
	}
	if out := uint64(r.Limit.Limit) / 20; out >= holders {
		return out
	}
	return 0
}

// drift returns how many hits all members together may admit before the owner counts them: each of N floor(epsilon x L
// / N).
func drift(r *config.RuleSpec) uint64 {
	if r.Extension.Mechanism != policy.Approximate {
		return 0
	}
	return uint64(r.Extension.Lease.Slack)
}

// open returns how many hits n members admit in a window under fail_open. With a cap, a bucket is as deep as the cap.
// Without a cap each member has its share of the limit, and at least one hit.
func open(r *config.RuleSpec, n uint64) uint64 {
	deep := uint64(1)
	if r.Limit.Algorithm.Bucket() {
		deep = 2
	}
	switch {
	case r.Extension.LocalCap > 0:
		return n * deep * uint64(r.Extension.LocalCap)
	case r.Limit.Limit > 0 && uint64(r.Limit.Limit) < n:
		return max(most(r), n*deep)
	}
	return most(r)
}
