package owner

import (
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/owner/internal/counter"
)

// queueEscrow queues a request to the coordinator if one is due.
func (n *Node) queueEscrow(s *shard, q *poolOp) {
	x := q.escrow
	if x == nil || x.queued || !x.Due(q.now, q.left, q.link.roundTrip()) {
		return
	}
	n.queue(s, q.Key, x)
}

func (n *Node) queue(s *shard, key Key, x *escrow) {
	x.queued = true
	s.escrows.queued = append(s.escrows.queued, key)
	n.federation.dirty.Store(true)
	n.setDirty()
}

// flushEscrows adds the due requests to coordinators to fx.
func (n *Node) flushEscrows(now int64, fx *Ready) {
	if !n.federation.dirty.Swap(false) {
		return
	}
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		at := s.clock(now)
		for _, key := range s.escrows.queued {
			if x := s.escrows.keys[key]; x != nil {
				x.queued = false
				n.ask(s, at, key, x, fx)
			}
		}
		s.escrows.queued = s.escrows.queued[:0]
		s.mu.Unlock()
	}
}

// ask adds a request for the escrow of key to fx, unless the coordinator is away and not to be probed now.
func (n *Node) ask(s *shard, now int64, key Key, x *escrow, fx *Ready) {
	l := n.federation.link(x.authority)
	if l == nil {
		return
	}
	if x.Unanswered(now, l.roundTrip()) {
		l.do(func(l *federation.CoordinatorLink) bool { return l.Unanswered(now) })
	}
	if !l.do(func(l *federation.CoordinatorLink) bool { return l.Usable(now) }) {
		return
	}
	n.addPoolRequest(s, key, x, x.Request(now, l.roundTrip()), fx)
}

// addPoolRequest adds r, a request for the escrow x of key, to fx.
func (n *Node) addPoolRequest(s *shard, key Key, x *escrow, r federation.PoolRequest, fx *Ready) {
	s.escrows.seq = max(s.escrows.seq, r.Seq)
	r.Key, r.Epoch, r.Name = key, x.epoch, x.name
	fx.PoolRequests = append(fx.PoolRequests, CoordinatorRequest{x.authority, r})
}

// tickEscrows queues the requests that time makes due, and drops escrows that are not needed any more.
func (n *Node) tickEscrows(now int64, fx *Ready) {
	if n.federation.held.Load() == 0 {
		return
	}
	p := n.federation.place.Load()
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		at := s.clock(now)
		for _, key := range counter.SortedKeys(s.escrows.keys) {
			x := s.escrows.keys[key]
			if p.outdated(x, at) {
				n.dropEscrow(s, key) // nothing of its window is left
				n.decideCoordinated(s, at, key, x, fx)
				continue
			}
			n.dealWaiting(s, at, key, x, fx)
			switch l := p.links[x.authority]; {
			case x.queued:
			case x.Due(at, 0, l.roundTrip()):
				n.queue(s, key, x)
			case x.Expired(at):
				n.dropEscrow(s, key)
			}
		}
		s.mu.Unlock()
	}
	n.flushEscrows(now, fx)
	for id, l := range p.links {
		if l.isAway() {
			n.decideWaiting(now, id, fx)
		}
	}
}

func (n *Node) dropEscrow(s *shard, key Key) {
	if x := s.escrows.keys[key]; x.count == nil {
		n.federation.rows.Add(int64(-x.Escrow.TenantRows()))
	}
	delete(s.escrows.keys, key)
	n.federation.held.Add(-1)
}

// releaseEscrows moves the escrows of keys that this member does not own any more, after a new view, to the new owners, or
// gives them back. Requests that wait for them are to be sent to the new owner.
func (n *Node) releaseEscrows(s *shard, now int64, fx *Ready) {
	for _, key := range counter.SortedKeys(s.escrows.keys) {
		x := s.escrows.keys[key]
		o := s.view.Ownership(x.ringPos, s.counters.Find(key).OwnedEpoch(x.ringPos))
		if o.State == handoff.OwnedHere {
			continue
		}
		n.passOn(s, key, x, now, o, fx)
		n.dropEscrow(s, key)
		for _, w := range s.pending.takeCoordinator(key) {
			n.resolve(s, w, Result{Kind: Forward, Member: o.Member}, fx)
		}
	}
}

// StepFederation processes the replies of a coordinator to requests that were sent together, which came after took. None
// of them is as good as no reply. With failed, the coordinator could not be reached, or has reported an error.
func (n *Node) StepFederation(now int64, authority uint32, took time.Duration, gs []federation.PoolGrant, failed bool) (fx Ready) {
	n.serial.Lock()
	defer n.serial.Unlock()
	defer n.finish(&fx)
	l := n.federation.link(authority)
	if l == nil {
		return fx
	}
	if failed {
		l.do(func(l *federation.CoordinatorLink) bool { return l.Failed(now) })
		n.decideWaiting(now, authority, &fx)
		return fx
	}
	if len(gs) > 0 { // without a grant, the requests count as unanswered: the coordinator's members may not be able to lend
		l.do(func(l *federation.CoordinatorLink) bool { return l.Answered(took) })
	}
	for i := range gs {
		n.acceptPool(now, l, &gs[i], &fx)
	}
	n.flushEscrows(now, &fx)
	return fx
}

// acceptPool processes one reply, and decides the requests that waited for it.
func (n *Node) acceptPool(now int64, l *authorityLink, g *federation.PoolGrant, fx *Ready) {
	s, _ := n.shard(g.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.clock(now)
	p, x := n.federation.place.Load(), s.escrows.keys[g.Key]
	if x == nil || p.links[x.authority] != l || epochOf(p.phase(x.rule.End(g.Window-1))) != x.epoch {
		return // F7: a grant of another layout, which the coordinator did not know or has just begun
	}
	if x.Accept(at, g, l.roundTrip()) {
		n.decideCoordinated(s, at, g.Key, x, fx)
	}
}

// decideWaiting decides the requests that wait for a coordinator that is away.
func (n *Node) decideWaiting(now int64, authority uint32, fx *Ready) {
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		for _, key := range counter.SortedKeys(s.escrows.keys) {
			if x := s.escrows.keys[key]; x.authority == authority {
				n.decideCoordinated(s, s.clock(now), key, x, fx)
			}
		}
		s.mu.Unlock()
	}
}

// decideCoordinated decides again the requests for key that wait for the coordinator (F4).
func (n *Node) decideCoordinated(s *shard, now int64, key Key, x *escrow, fx *Ready) {
	x.TakeWaiting()
	for _, w := range s.pending.takeCoordinator(key) {
		res := Result{Kind: Forward}
		op := shardOp{Request: &w.request, now: now, hash: w.hash, part: w.part}
		s.pending.resumed = w
		n.decideFederated(s, &op, s.counters.Owned.Find(w.hash, key), &res)
		s.pending.resumed = nil
		if res.Kind != Pending {
			n.resolve(s, w, res, fx)
		}
	}
}
