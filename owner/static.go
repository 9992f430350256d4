package owner

import (
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// maxDivisors is the number of changes of the ring or of N_ref that are recorded.
const maxDivisors = 8

// divisor is a ring and its N_ref, by which this member divided limits from since on.
type divisor struct {
	since int64
	ring  uint64 // fingerprint
	n     int
}

// divisorsAt returns the divisors of v, newest first, given those of the previous view, which v replaces at now.
func (v *view) divisorsAt(now int64, was []divisor) []divisor {
	d := divisor{now, v.Ring().Fingerprint(), v.NRef()}
	if len(was) > 0 && was[0].ring == d.ring && was[0].n == d.n {
		return was
	}
	return append([]divisor{d}, was[:min(len(was), maxDivisors-1)]...)
}

// decideStatic decides op, whose rule gives each member its share of the limit (mechanism: static), by this member's
// own count. No other member is asked or notified, whatever the state of the cluster.
func (n *Node) decideStatic(s *shard, op *shardOp, res *Result) {
	op.now, op.table = s.clock(op.now), counter.TableShare
	op.rule = s.localRule(op.Request.Rule, op.RingPos)
	res.Authority = Static
	s.chargeLocal(op, res)
}

// staticExcess returns how many of the hits that this member has admitted by op's static rule, in the window that ends
// at end, may exceed the limit: what is above the share that it had when the window began. A member that has started,
// or that has seen more changes than it records, since then had no share.
func (v *view) staticExcess(op *shardOp, end int64, admitted uint64) uint64 {
	r := op.Request.Rule
	start := startOf(r, end)
	for i, d := range v.divisors {
		switch {
		case d.since > start:
		case i == 0:
			return 0
		case r.Algorithm == limit.FixedWindow:
			return saturatingSub(admitted, uint64(r.Limit)/uint64(d.n))
		default:
			return admitted
		}
	}
	return admitted
}
