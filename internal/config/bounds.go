package config

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// Partition is what the parts of a cluster that a cut divides may admit. The names are those of --partition.
type Partition string

// The partition policies.
const (
	PartShare     Partition = "share"     // each part its members' share of the limit
	PartAvailable Partition = "available" // each part the whole limit
	PartQuorum    Partition = "quorum"    // the part of more than half the members the whole limit, others nothing
)

// Conditions is what a bound depends on beside the rule.
type Conditions struct {
	Members   int // N, at least 1
	Partition Partition
	Rate      float64 // hits a second that one key may get; 0: unknown
}

// Times that the bounds are made of.
const (
	confirmed = 1500 * time.Millisecond // an owner that nobody confirms any more goes on for so long
	inFlight  = 12 * time.Millisecond   // a question is answered within it
)

// Term is a part of a bound that depends on the traffic: Rate times For, at most Most.
type Term struct {
	For  time.Duration
	Most uint64
}

// Bound says how far an event may take what one key admits in one window from what the rule says.
type Bound struct {
	Event     string
	Over      uint64 // hits beyond the limit, at most
	OverIs    string // its formula
	Traffic   *Term  // on top of Over; nil: none, or in Over, since the rate is known
	Under     uint64 // hits of the limit that may be refused, at most
	UnderIs   string
	UnderTime string // how long; empty when Under is 0
}

// RuleBounds are all bounds of one rule, in hits of one key in one window. A bucket's window is any time of that length.
type RuleBounds struct {
	Rule      *RuleSpec
	Limit     uint64 // L
	Depth     uint64 // b, of buckets; else 0
	Unacked   uint64 // U: charges that are answered before a second member has them
	Tolerated int    // f: members that an owner with the whole limit may miss
	Share     uint64 // the least share of a member
	Phi       uint64 // charges made under shares that the owner does not know, at most
	Open      uint64 // what all members admit under fail_open in a window without the owner; 0 of other policies
	Skew      uint64 // S: hits by which clocks may differ, when a counter moves; 0 of fixed windows
	Lent      uint64 // hits that may be out at holders of leases at once; 0 of what is never lent
	Drift     uint64 // E: hits that all members together may admit before the owner knows of them; 0 but with approximate
	Bounds    []Bound
}

// Bounds computes what r promises in a cluster. An unlimited rule promises nothing: all is zero.
func (r *RuleSpec) Bounds(c Conditions) RuleBounds {
	b := RuleBounds{Rule: r}
	if r.Unlimited {
		return b
	}
	c.Members = max(1, c.Members)
	n := uint64(c.Members)
	b.Limit = uint64(r.Limit.Limit)
	if c.Members >= 3 {
		b.Tolerated = 1
	}
	if n > 1 && !r.Extension.Strict {
		b.Unacked = r.Limit.Unreplicated()
	}
	b.Share, b.Phi = b.Limit/n, shares(b.Limit, n)
	if r.Limit.Algorithm.Bucket() {
		b.Depth = uint64(r.Limit.Depth())
		b.Share += min(b.Depth, max(1, b.Depth/n))
		b.Phi += max(shares(b.Depth, n), min(b.Depth*(n-1), n-1))
	}
	if r.Limit.Algorithm != limit.FixedWindow && n > 1 {
		b.Skew = min(r.most(), uint64(math.Ceil(float64(b.Limit)*float64(limit.ClockTolerance)/float64(r.Limit.Window))))
	}
	if n > 1 {
		b.Lent, b.Drift = r.lent(1), r.drift()
	}
	w := boundsWriter{RuleBounds: &b, cluster: c, most: r.most(), least: b.Share, all: "L"}
	if b.Depth > 0 {
		w.all = "(b + L)"
	}
	switch {
	case r.Extension.Degraded == policy.FailClosed:
		w.least = 0 // without a snapshot it refuses all
	case r.Extension.Degraded == policy.FailOpen && n > 1:
		b.Open = r.open(n)
		if r.Extension.LocalCap > 0 {
			w.least = min(w.least, b.Open/n)
		}
	}
	w.write()
	return b
}

// shares is the most that all members but one get when limit is shared over n.
func shares(limit, n uint64) uint64 { return (n-1)*(limit/n) + min(n-1, limit%n) }

// slice is how long what a bucket lends is good for.
const slice = 100 * time.Millisecond

// lent is what may be out at once when a key is leased to so many holders: 5 % of the limit. Of a bucket it is what flows
// in during two slices, one that is out and one by which the owner makes the bucket less deep meanwhile. 0: too little
// to lend, or of a kind that is never lent.
func (r *RuleSpec) lent(holders uint64) uint64 {
	switch {
	case r.Extension.Mechanism == policy.Approximate, r.Limit.Algorithm == limit.SlidingLog:
		return 0
	case r.Limit.Algorithm.Bucket():
		depth := uint64(r.Limit.Depth())
		if depth < 2*holders {
			return 0
		}
		out := uint64(float64(r.Limit.Limit) * float64(slice) / float64(r.Limit.Window))
		return 2 * min(depth/2, out)
	}
	if out := uint64(r.Limit.Limit) / 20; out >= holders {
		return out
	}
	return 0
}

// drift is what all members together may admit unseen: of N each floor(epsilon x L / N).
func (r *RuleSpec) drift() uint64 {
	if r.Extension.Mechanism != policy.Approximate {
		return 0
	}
	return uint64(r.Extension.Lease.Slack)
}

// boundsWriter writes the table of one rule.
type boundsWriter struct {
	*RuleBounds
	cluster Conditions
	most    uint64 // what a window's time admits: L, and b on top of it for a bucket
	least   uint64 // what a member without the owner admits, at least
	all     string // symbol of most
}

func (w *boundsWriter) write() {
	w.add(Bound{Event: "nothing fails", OverIs: "0", UnderIs: "0"})
	w.add(w.over("join, leave, rolling restart", nil, part{"0", 0}))
	if w.Lent > 0 {
		w.lease()
	}
	if w.Drift > 0 {
		w.add(sum("a member that counts by itself restarts", part{"E/N", w.Drift / uint64(w.cluster.Members)}))
	}
	if w.cluster.Members > 1 {
		u := part{"U", w.Unacked}
		w.add(w.alone(w.over("the owner crashes", nil, w.away(u)...), "up to 6 s"))
		w.add(w.alone(w.over("the owner pauses, a one-way cut", w.traffic(inFlight), w.away(u)...), "up to 6 s"))
		w.add(w.alone(w.over("the owner's machine moves, its clocks stopped", w.traffic(confirmed), w.away(u)...), "up to 6 s"))
		w.addApart(w.partition())
		w.bothDie()
		w.add(w.alone(sum("a silent owner, asked by Envoy directly", w.away()...), "until Envoy hears that it is gone"))
		w.add(w.degraded())
	}
	w.restart()
}

// add lists b. What members have not told the owner yet comes on top of every event.
func (w *boundsWriter) add(b Bound) { w.drifted(b, part{"E", w.Drift}) }

// addApart lists an event after which two counts know nothing of each other; what drifts, drifts from both.
func (w *boundsWriter) addApart(b Bound) {
	w.drifted(b, part{"2 E", limit.SaturatingAdd(w.Drift, w.Drift)})
}

func (w *boundsWriter) drifted(b Bound, by part) {
	if w.Drift > 0 {
		all := sum("", part{b.OverIs, b.Over}, by)
		b.Over, b.OverIs = all.Over, all.OverIs
	}
	w.RuleBounds.Bounds = append(w.RuleBounds.Bounds, b)
}

// lease is what lending costs: never a hit too many while the owner takes back nothing but what a holder gives.
func (w *boundsWriter) lease() {
	until, over := "until the window ends", part{"0", 0}
	if w.Depth > 0 {
		until = "for 200 ms"
	} else if k := w.Rule.Extension.Lease; k != nil && k.Reclaim {
		until, over = "until ttl has passed", part{"lent", w.Lent}
	}
	held := Bound{Event: "a key is lent (mechanism lease, or hot)", OverIs: "0", Under: w.Lent, UnderIs: "lent", UnderTime: "while its holders have it"}
	gone := sum("a holder of a lent key dies, or its owner changes", over)
	gone.Under, gone.UnderIs, gone.UnderTime = w.Lent, "lent", until
	w.add(held)
	w.add(gone)
}

// part is one summand of a formula.
type part struct {
	is string
	n  uint64
}

// away adds to parts what is admitted without the owner.
func (w *boundsWriter) away(parts ...part) []part {
	parts = append(parts, part{"Phi", w.Phi})
	if w.Open > 0 {
		parts = append(parts, part{"open", w.Open})
	}
	return parts
}

// sum is a Bound of parts.
func sum(event string, parts ...part) Bound {
	b := Bound{Event: event, UnderIs: "0"}
	for _, p := range parts {
		b.Over = limit.SaturatingAdd(b.Over, p.n)
		switch {
		case b.OverIs == "" || b.OverIs == "0":
			b.OverIs = p.is
		default:
			b.OverIs += " + " + p.is
		}
	}
	return b
}

// over is the Bound of an event in which counters move, and clocks with them.
func (w *boundsWriter) over(event string, traffic *Term, parts ...part) Bound {
	if w.Skew > 0 {
		parts = append(parts, part{"S", w.Skew})
	}
	b := sum(event, parts...)
	b.Traffic = traffic
	if traffic == nil {
		return b
	}
	b.OverIs += fmt.Sprintf(" + rate x %v", traffic.For)
	if w.cluster.Rate > 0 {
		hits := min(float64(traffic.Most), math.Ceil(w.cluster.Rate*traffic.For.Seconds()))
		b.Over, b.Traffic = limit.SaturatingAdd(b.Over, uint64(hits)), nil
	}
	return b
}

func (w *boundsWriter) traffic(t time.Duration) *Term {
	if w.most == 0 {
		return nil
	}
	return &Term{t, w.most}
}

// alone fills in what is refused to a caller whose questions all come to one member, which answers without the owner.
func (w *boundsWriter) alone(b Bound, during string) Bound {
	b.Under = w.most - min(w.most, w.least)
	switch {
	case b.Under == 0:
		return b
	case w.least == 0:
		b.UnderIs = w.all
	case w.least < w.Share:
		b.UnderIs = w.all + " - open/N"
	default:
		b.UnderIs = w.all + " - share"
	}
	b.UnderTime = during
	return b
}

func (w *boundsWriter) partition() Bound {
	const until = "in the smaller part, until it heals"
	event := fmt.Sprintf("the cluster is cut in two (%s)", w.cluster.Partition)
	u := part{"U", w.Unacked}
	switch w.cluster.Partition {
	case PartAvailable:
		return w.over(event, nil, w.away(part{w.all, w.most})...)
	case PartQuorum:
		b := w.over(event, w.traffic(confirmed), w.away(u)...)
		if b.Under = w.most; b.Under > 0 {
			b.UnderIs, b.UnderTime = w.all, until
		}
		return b
	}
	missed := part{w.all + " x f/N", ceilShare(w.most, uint64(w.Tolerated), uint64(w.cluster.Members))}
	return w.alone(w.over(event, w.traffic(confirmed), w.away(missed, u)...), until)
}

// ceilShare is x * num / den, rounded up; num is below den.
func ceilShare(x, num, den uint64) uint64 {
	hi, lo := bits.Mul64(x, num)
	q, rest := bits.Div64(hi, lo, den)
	if rest > 0 {
		q++
	}
	return q
}

// bothDie is the loss of the owner and its heir, which only a third member can notice.
func (w *boundsWriter) bothDie() {
	if w.cluster.Members < 3 {
		return
	}
	const event = "owner and heir die together"
	if w.Depth > 0 {
		b := w.over(event, nil, w.away()...) // the bucket begins anew, and empty
		b.Under, b.UnderIs, b.UnderTime = w.Depth, "b", "until the bucket has filled again"
		w.addApart(b)
		return
	}
	b := w.over(event, nil, w.away(part{"L x left/W", w.Limit})...)
	if b.Under = w.Limit; b.Under > 0 {
		b.UnderIs, b.UnderTime = "L x gone/W", "until the window ends"
	}
	w.addApart(b)
}

// restart are the events after which nobody knows what was counted.
func (w *boundsWriter) restart() {
	again := part{"L", w.Limit}
	if w.Depth > 0 {
		again = part{"b", w.Depth}
	}
	w.addApart(Bound{Event: "all members restart", Over: again.n, OverIs: again.is, UnderIs: "0"})
	w.addApart(Bound{Event: "m clusters that never met (here 2)", Over: w.most, OverIs: "(m - 1) x " + w.all, UnderIs: "0"})
}

// degraded is each window in which the owner cannot be asked.
func (w *boundsWriter) degraded() Bound {
	event := fmt.Sprintf("each window without an owner (%s)", w.Rule.Extension.Degraded)
	if w.Open > 0 {
		return w.alone(sum(event, part{"open", w.Open}), "while there is none")
	}
	return w.alone(sum(event, part{"Phi", w.Phi}), "while there is none")
}

// open is what n members admit in a window under fail_open. A bucket with a cap is as deep as its cap. Without a cap each
// member has its share of the limit, and at least one hit.
func (r *RuleSpec) open(n uint64) uint64 {
	deep := uint64(1)
	if r.Limit.Algorithm.Bucket() {
		deep = 2
	}
	switch {
	case r.Extension.LocalCap > 0:
		return n * deep * uint64(r.Extension.LocalCap)
	case r.Limit.Limit > 0 && uint64(r.Limit.Limit) < n:
		return max(r.most(), n*deep)
	}
	return r.most()
}
