package owner

import (
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
)

// countInSketch decides h by the sketches, which count the keys that find no room in the table, and charges it, unless
// only a part of the limit has no room for it, or its algorithm charges no refused hits.
func (s *shard) countInSketch(op *shardOp, d *limit.Decision) {
	est := s.sketches.Estimate(op.ref())
	flat := *op
	flat.rule = op.flatRule()
	flat.decideTally(limit.Tally{Window: flat.rule.Index(op.now), Charged: limit.SaturatingAdd(est, op.elsewhere)}, d)
	if d.Over && (op.partial || op.rule.Algorithm == limit.InFlight) {
		op.uncharged = true // see keepsUncharged
		return
	}
	s.addToSketch(op, est)
}

// addToSketch charges h, whose key has estimate est.
func (s *shard) addToSketch(op *shardOp, est uint64) {
	s.sketches.Add(op.ref(), op.Hits)
	if est == 0 {
		s.counts.OverflowKeys++
	}
	s.counts.OverflowCharges++
}

// moveToSketch makes the sketches count what st holds of h's key, which finds no room in the table. The key may be
// refused too early, but its count is not lost.
func (s *shard) moveToSketch(op *shardOp, st *limit.State) {
	s.counts.OverflowKeys++
	s.sketches.Keep(op.ref(), st)
}

// completeEntry makes e contain what sketches have counted of its key, because this member decides the key from now on
// and others may have counted it in sketches. If there is no room, the sketches count all that is known of the key, and
// completeEntry returns nil.
func (s *shard) completeEntry(op *shardOp, e *counter.Owned) *counter.Owned {
	if s.counters.Complete(op.ref(), e, &s.state) {
		return e
	}
	s.moveToSketch(op, &s.state)
	s.counters.Owned.Remove(op.hash, op.Key)
	return nil
}

// exportSketch adds to c, which has no slots, what sketches have counted of its key.
func (s *shard) exportSketch(hash uint64, now int64, c *protocol.CounterRecord) {
	if !s.sketches.Live() || c.Rule.Validate() != nil {
		return
	}
	op := shardOp{
		Request: &Request{Key: c.Key, RingPos: c.RingPos, Domain: c.Domain, Rule: c.Rule},
		now:     now, hash: hash, table: counter.TableOwned, rule: c.Rule,
	}
	if s.sketches.AddTo(op.ref(), &c.State, s.bootID) {
		c.ExpiresAt = c.Rule.Expires(&c.State)
	}
}
