package owner

import (
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
)

// chargeLostState charges op's key, whose counter was lost at time at, for the hits that may have been lost with it. It
// returns the key's counter, which it adds if e is nil.
func (n *Node) chargeLostState(s *shard, op *shardOp, e *counter.Owned, at int64) *counter.Owned {
	r := op.Request.Rule
	if !n.options.ProRata {
		if op.charges() && r.Index(at) == r.Index(op.now) {
			s.bounds[crashBound].push(op.now, r.End(r.Index(op.now)), uint64(r.Depth()))
		}
		return e
	}
	if e == nil {
		if r.End(r.Index(at)+1) <= op.now && counter.Windowed(r) {
			return nil
		}
		if e = s.insert(op, false); e == nil {
			return nil
		}
	}
	s.counters.Load(e, r, &s.state)
	r.ChargeLost(&s.state, at)
	r.Trim(&s.state, op.now)
	if until := e.Until(); s.counters.Store(e, r, &s.state) {
		e.Prolong(until)
	}
	return e
}

// dropAssumedLoss removes from e what was charged for lost state that turned out not to be lost: a member that was cut
// off assumed that others had failed.
func (s *shard) dropAssumedLoss(e *counter.Owned) {
	if !s.hasAssumedLoss(e) {
		return
	}
	r := s.counters.Rule(e)
	s.counters.Load(e, r, &s.state)
	r.DropLost(&s.state)
	s.counters.Store(e, r, &s.state) // it takes less room than before
}

// hasLostState reports whether e holds charges for lost state in window w.
func (s *shard) hasLostState(e *counter.Owned, w int64) bool {
	_, _, found := s.counters.Recorded(e, w, limit.LostStateWriter)
	return found
}

// hasAssumedLoss reports whether e holds charges for lost state.
func (s *shard) hasAssumedLoss(e *counter.Owned) bool {
	return s.counters.HasWriter(e, limit.LostStateWriter)
}

// chargeLostOnRelease charges e for lost state if its ownership is released, in transfer t, to a member that has not
// recorded the loss.
func (n *Node) chargeLostOnRelease(s *shard, now int64, e *counter.Owned, t *handoff.Transfer) {
	if _, lost := s.view.Lost(e.RingPos()); !lost {
		return
	}
	reply, _ := s.view.Reply(e.RingPos(), e.OwnedEpoch(e.RingPos()), t.To, t.Ring.Fingerprint())
	if reply == protocol.KeyGiven {
		n.chargeLostEntry(s, now, e)
	}
}

// chargeLostEntry is chargeLostState for a counter that no request is for.
func (n *Node) chargeLostEntry(s *shard, now int64, e *counter.Owned) {
	if at, lost := s.view.Lost(e.RingPos()); lost {
		r := s.counters.Rule(e)
		req := Request{Key: e.Key(), RingPos: e.RingPos(), Rule: r}
		n.chargeLostState(s, &shardOp{Request: &req, now: now, table: counter.TableOwned, rule: r}, e, at)
	}
}
