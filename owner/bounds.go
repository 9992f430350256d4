package owner

import (
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
)

// The bounds that a shard tracks.
const (
	movedBound = iota
	crashBound
	partitionBound
	shareBound
	closedBound
	reclaimBound
	restartBound
	outageBound
	openAdmitted
	boundKinds
)

// boundOf returns the bound of the hits admitted from a table of a degraded policy.
func boundOf(t counter.Table) int {
	if t == counter.TableOpen {
		return openAdmitted
	}
	return shareBound
}

// recordLocalBound records that this member has admitted hits of op's key from op's table, in the window that ends at
// end.
func (s *shard) recordLocalBound(op *shardOp, end int64, admitted uint64) {
	if op.Mechanism == policy.Static {
		admitted = s.view.staticExcess(op, end, admitted)
	}
	if admitted > 0 {
		s.bounds[boundOf(op.table)].push(op.now, end, admitted)
	}
}

// startOf returns the time since when charges have an effect on a counter of rule r that ends at end. Other algorithms
// than fixed windows count for up to two of them, and their ends are rounded up.
func startOf(r limit.Rule, end int64) int64 {
	if r.Algorithm == limit.FixedWindow {
		return end - r.End(0)
	}
	return end - 2*r.End(0) - counter.Unit
}

// recordBounds records how many hits of op's key other members may have admitted in the window that ends at end.
func (n *Node) recordBounds(s *shard, op *shardOp, end int64) {
	v, r := s.view, op.Request.Rule
	if at := n.journal.restarted.Load(); at > startOf(r, end) && n.journals(op.Request) {
		s.bounds[restartBound].push(op.now, end, n.restartExcess(op.Request))
	}
	if len(v.changes) == 0 && v.Ring().Len() >= v.NRef() {
		return
	}
	if missing := v.NRef() - v.Ring().Len(); missing > 0 && op.rule.Limit == r.Limit {
		// The missing members may use their part of the limit on a ring of their own.
		x := (uint64(r.Depth())*uint64(missing) + uint64(v.NRef()) - 1) / uint64(v.NRef())
		if op.Partition.Or(n.options.Policy) == policy.PartAvailable {
			x = uint64(r.Depth()) * uint64(missing)
		}
		s.bounds[partitionBound].push(op.now, end, x)
	}
	moved, crashed := v.affected(op.RingPos, startOf(r, end))
	if moved {
		s.bounds[movedBound].push(op.now, end, uint64(r.Depth()))
	}
	if crashed {
		s.bounds[crashBound].push(op.now, end, tolerance(op.Request))
	}
}

// recordOutageBound records that the counter of a region's floor has that many hits, of which those above the floor were
// admitted because the coordinator is away: other regions may have been lent the same hits.
func (s *shard) recordOutageBound(q *poolOp, charged uint64) {
	if over := saturatingSub(charged, uint64(q.budget.Floor)); over > 0 {
		r := q.Request.Rule
		end := r.End(r.Index(q.now))
		if r.Algorithm == limit.SlidingWindow { // it weighs in the next one, too
			end += int64(r.Window)
		}
		s.bounds[outageBound].push(q.now, end, over)
	}
}

// expiringMax is the maximum of amounts that each expire at their own time. It keeps the few that no other amount
// exceeds for longer. When there are too many, it joins two to one that is at least both.
type expiringMax [8]struct {
	end int64
	n   uint64
}

// push adds n until end.
func (m *expiringMax) push(now, end int64, n uint64) {
	least := 0
	for i := range m {
		x := &m[i]
		if x.end <= now || x.end <= end && x.n <= n {
			x.end, x.n = 0, 0
		}
		if x.n >= n && x.end >= end {
			return
		}
		if x.n < m[least].n {
			least = i
		}
	}
	x := &m[least]
	x.end, x.n = max(x.end, end), max(x.n, n)
}

// at returns the maximum at time now.
func (m *expiringMax) at(now int64) uint64 {
	n := uint64(0)
	for _, x := range m {
		if x.end > now {
			n = max(n, x.n)
		}
	}
	return n
}
