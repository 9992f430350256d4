package owner

import (
	"slices"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/owner/internal/counter"
)

// maxMoves is the most moved escrows of one key that are stored until their windows end.
const maxMoves = 8

// passOn moves what escrow x of key has left to the key's owner, or gives it back if there is none. With reclaim, it is
// always given back: the coordinator lends it again when the next owner's escrow asks, wherever it is.
func (n *Node) passOn(s *shard, key Key, x *escrow, now int64, o handoff.Ownership, fx *Ready) {
	if x.count != nil || x.Escrow.Reclaimed() || o.State != handoff.OwnedElsewhere || o.Member == "" {
		if r, ok := x.Release(now); ok {
			n.addPoolRequest(s, key, x, r, fx)
		}
		return
	}
	for m, ok := x.Escrow.Move(now); ok; m, ok = x.Escrow.Move(now) {
		s.counts.MovedOut += m.Hits
		fx.SendNotice(o.Member, lease.Notice{
			Key: key, Kind: lease.Move, Window: m.Window, Left: time.Duration(m.EndsAt - now), EndsAt: m.EndsAt,
			Limit: uint32(m.Hits), Boot: m.Boot,
		})
	}
}

// acceptMove stores what an earlier owner of a key had left of its escrow, for the next request. The same message may
// arrive again, also after the key's escrow has moved on.
func (n *Node) acceptMove(s *shard, now int64, m *lease.Notice) {
	ms := s.escrows.moves[m.Key]
	if len(s.escrows.moves) >= maxEscrows/counter.Shards || len(ms) >= maxMoves ||
		slices.ContainsFunc(ms, func(o federation.EscrowMove) bool {
			return o.Boot == m.Boot && o.Window == m.Window && o.Hits == uint64(m.Limit)
		}) {
		return
	}
	if s.escrows.moves == nil {
		s.escrows.moves = map[Key][]federation.EscrowMove{}
	}
	x := federation.EscrowMove{Boot: m.Boot, Window: m.Window, Hits: uint64(m.Limit), EndsAt: m.EndsAt}
	s.escrows.moves[m.Key] = append(s.escrows.moves[m.Key], x.Arrived(now, m.Left))
}

// takeMoves adds what earlier owners of q's key had to its escrow. What was added stays stored until its window ends.
func (n *Node) takeMoves(s *shard, q *poolOp) {
	ms := s.escrows.moves[q.Key]
	for i, m := range ms {
		if m.Taken {
			continue
		}
		ms[i].Taken = true
		q.escrow.Offer(q.now, q.Request.Rule, q.settings(), 0)
		if q.escrow.Escrow.AcceptMove(q.now, m) {
			s.counts.MovedIn += m.Hits
		}
	}
}

// dropMoves drops moved hits whose windows have ended.
func (s *shard) dropMoves(now int64) {
	for key, ms := range s.escrows.moves {
		if slices.IndexFunc(ms, func(m federation.EscrowMove) bool { return now < m.EndsAt }) < 0 {
			delete(s.escrows.moves, key)
		}
	}
}
