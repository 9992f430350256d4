package owner

import (
	"slices"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/replica"
	"github.com/keyward/keyward/owner/internal/writeback"
	"github.com/keyward/keyward/ring"
)

// A claim gives back in two steps. First it is marked as settled, and another member confirms the mark. Then its hits
// are given back, and the caller gets the answer. A member that gets the key from its owner in between completes the
// second step. One that takes over from an owner that is lost does not: a third member may know that it was completed.

// mayGiveBack reports whether this member gives back the hits of c now: another member knows that c is settled, or there
// is none that could.
func (s *shard) mayGiveBack(c *claim.Claim) bool {
	return c.Gives() && (!s.view.copies || c.Tracked() && !c.Changed())
}

// giveUp completes the settlement of c, whose former owner may have given back its hits or not.
func (n *Node) giveUp(s *shard, now int64, c *claim.Claim) {
	s.counts.Holds.Lost += uint64(c.Amount)
	s.counters.Claims.Settle(now, c, claim.Settled, 0)
	n.changeClaim(s, c)
}

// ownsClaims reports whether this member may decide the claims of the key at ringPos.
func (n *Node) ownsClaims(s *shard, now int64, key Key, ringPos uint64) bool {
	if extent, _, _ := n.authority(now, s.view, 0); extent == handoff.ExtentNone {
		return false
	}
	return s.view.Ownership(ringPos, s.counters.Find(key).OwnedEpoch(ringPos)).State == handoff.OwnedHere
}

// giveBack gives back the hits of c, which is Settling, and completes its settlement.
func (n *Node) giveBack(s *shard, now int64, c *claim.Claim) {
	t, e := &s.counters.Claims, s.counters.Find(c.Key)
	if e == nil || s.counters.End(e, s.counters.Rule(e)) <= now {
		t.Settle(now, c, claim.Settled, 0)
		return
	}
	n.refundClaim(s, now, e, c)
	t.Settle(now, c, claim.Settled, 0)
	n.changeClaim(s, c)
}

// refundClaim gives back the hits of c to its counter e, and returns how many.
func (n *Node) refundClaim(s *shard, now int64, e *counter.Owned, c *claim.Claim) (back uint64) {
	t, r, st := &s.counters.Claims, s.counters.Rule(e), &s.state
	s.counters.Load(e, r, st)
	at, tat := c.At, st.TAT
	if r.Algorithm.Bucket() {
		at -= t.Given(c.Key)
	}
	back = r.GiveBack(st, now, s.bootID, at, uint64(c.Amount))
	r.Trim(st, now)
	switch {
	case back == 0:
	case !s.counters.Store(e, r, st):
		s.counts.Holds.Lost += back
		s.counts.RefundsDropped++
		back = 0
	default:
		s.counts.Holds.GivenBack += back
		if r.Algorithm.Bucket() {
			t.Give(c.Key, tat-st.TAT)
		}
		if n.journalsEntry(s, e) {
			n.trackUnwritten(s, e, r, &writeback.Hits{Now: now})
		}
	}
	return back
}

// confirmClaims processes a confirmation of the claims in it: those that are Settling give back, and the requests that
// settle them are decided.
func (n *Node) confirmClaims(s *shard, it *replica.Item, fx *Ready) {
	var settling []*claim.Claim
	if s.replicas.ConfirmClaims(it, func(c *claim.Claim) { settling = append(settling, c) }) {
		n.setDirty()
	}
	for _, c := range settling {
		if c.State() == claim.Settling && c.Gives() && n.ownsClaims(s, s.now, c.Key, c.RingPos) {
			n.giveBack(s, s.now, c)
		}
	}
	n.resolveSettles(s, it.Key, fx)
}

// resolveSettles decides the requests that settle claims of key, if these are settled, or if another member owns them.
func (n *Node) resolveSettles(s *shard, key Key, fx *Ready) {
	x := s.pending.keys[key]
	if x == nil || len(x.settles) == 0 {
		return
	}
	var away ring.ID
	elsewhere := false
	if o := s.view.Ownership(x.settles[0].request.RingPos, s.counters.Find(key).OwnedEpoch(x.settles[0].request.RingPos)); o.State != handoff.OwnedHere {
		away, elsewhere = o.Member, true
	}
	x.settles = slices.DeleteFunc(x.settles, func(w *pendingRequest) bool {
		c := s.counters.Claims.Find(w.request.Hold.ID)
		switch {
		case elsewhere:
			n.resolve(s, w, Result{Kind: Forward, Member: away}, fx)
		case c == nil || c.State() != claim.Settling:
			n.resolve(s, w, w.result, fx)
		default:
			return false
		}
		return true
	})
	s.pending.dropEmpty(key)
}

// sweepClaims lets open claims lapse, completes settlements that no request waits for, and drops copies that this member
// does not need any more: later, their owner may have forgotten that they are settled.
func (n *Node) sweepClaims(s *shard, now int64, fx *Ready) {
	var keys []Key
	s.counters.Claims.Sweep(now, claimSweep, func(c *claim.Claim) bool {
		if c.Flags()&claim.Set != 0 {
			return c.Ends() <= now // it stays charged
		}
		if !n.ownsClaims(s, now, c.Key, c.RingPos) {
			return s.isForeign(c.RingPos) || c.Ends()+int64(claim.MarkLife) <= now
		}
		switch open := c.State() == claim.Open; {
		case open && n.dead.isOfDead(c):
			n.releaseDead(s, now, c)
		case open && c.Ends() <= now:
			n.lapse(s, now, c)
		}
		if c.State() != claim.Open && !c.Tracked() { // from another member, before this one owned the key: the successor may lack it
			n.changeClaim(s, c)
		}
		if c.State() != claim.Settling {
			return false
		}
		switch {
		case !c.Gives() && !s.view.Steady():
			return false
		case !c.Gives():
			n.giveUp(s, now, c)
			return false
		}
		if s.mayGiveBack(c) || s.counters.Find(c.Key) == nil {
			n.giveBack(s, now, c)
		}
		if s.pending.keys[c.Key] != nil && !slices.Contains(keys, c.Key) {
			keys = append(keys, c.Key)
		}
		return false
	})
	for _, key := range keys {
		n.resolveSettles(s, key, fx)
	}
}

// isForeign reports whether this member is neither the owner of the key at ringPos nor holds replicas of it.
func (s *shard) isForeign(ringPos uint64) bool {
	v := s.view
	if !v.Steady() || v.Self() < 0 {
		return false
	}
	r := v.Ring()
	return r.Owner(ringPos) != v.Self() && r.Successor(ringPos) != v.Self() && r.ZoneReplica(ringPos) != v.Self()
}

// lapse settles c, which nothing has settled in time.
func (n *Node) lapse(s *shard, now int64, c *claim.Claim) {
	s.counts.Holds.Lapsed++
	if c.Flags()&claim.Releases != 0 {
		s.counters.Claims.Settle(now, c, claim.Settling, c.Amount)
		c.SetGives(true)
	} else {
		s.counters.Claims.Settle(now, c, claim.Settled, 0)
	}
	n.changeClaim(s, c)
}

// claimSweep is the least number of claims of a shard that a Tick visits.
const claimSweep = 64

// mergeClaims merges claims that another member has sent.
func (n *Node) mergeClaims(now int64, r *protocol.CounterRecord) {
	s, _ := n.shard(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.clock(now)
	given, bucket := int64(0), false
	if e := s.counters.Find(r.Key); e != nil && s.counters.Rule(e).Algorithm.Bucket() {
		given, bucket = s.counters.Claims.Given(r.Key), true
	}
	for i := range r.Claims {
		in := r.Claims[i]
		if in.Ends()+int64(claim.MarkLife) <= at || in.Made() > at+int64(claim.MarkLife) {
			n.serial.counts.refused++
			continue
		}
		in.At += given
		owned := s.view.Ownership(in.RingPos, s.counters.Find(in.Key).OwnedEpoch(in.RingPos)).State == handoff.OwnedHere
		if c := s.mergeClaim(at, &in, owned, bucket); c != nil && owned {
			n.changeClaim(s, c)
		}
	}
}

// mergeClaim merges in, a claim of another member, with this member's record of it. It returns the record if it has
// changed. owned reports whether this member owns the key, and bucket whether its counter is a bucket.
func (s *shard) mergeClaim(now int64, in *claim.Claim, owned, bucket bool) *claim.Claim {
	t := &s.counters.Claims
	own := t.Find(in.ID)
	switch {
	case own == nil:
		c := t.Add(in, true)
		if c == nil {
			s.counts.Holds.Dropped++
		}
		return c
	case own.Key != in.Key:
		return nil
	case own.State() == claim.Orphan && in.State() == claim.Open:
		return s.adopt(now, own, in, owned)
	case in.State() == claim.Orphan && own.State() == claim.Open:
		own.SetFlags(own.Flags() | in.Flags()&claim.Keeps)
		return s.adopt(now, own, own, owned)
	case own.State() == claim.Orphan || in.State() == claim.Orphan:
		return nil
	case in.Made() > own.Made():
		t.Remove(own)
		return t.Add(in, true)
	case in.Made() == own.Made() && in.State() > own.State():
		t.Settle(now, own, in.State(), in.Amount)
		own.SetGives(in.Gives())
		return own
	case in.Made() == own.Made() && in.State() == own.State() && in.Gives():
		own.SetGives(true)
		return own
	case in.Made() == own.Made() && in.State() == claim.Open && own.State() == claim.Open:
		return mergeOpen(own, in, bucket)
	}
	return nil
}

// mergeOpen merges two copies of an open claim. It returns own if it has changed. The later one of an extended claim has
// the longer TTL, and the later one of a bucket is that of which more hits of the bucket were given back.
func mergeOpen(own, in *claim.Claim, bucket bool) *claim.Claim {
	longer := in.TTL() > own.TTL()
	if !longer && !(bucket && in.At < own.At) {
		return nil
	}
	if longer {
		own.SetTTL(in.TTL())
	}
	if longer && !bucket || in.At < own.At {
		own.At = in.At
	}
	return own
}

// adopt makes own, of which a settlement came before the claim itself, the claim in, settled: its hits were charged
// again by the settlement, so all of them are given back, by the member that owns the key.
func (s *shard) adopt(now int64, own, in *claim.Claim, owned bool) *claim.Claim {
	keeps := own.Flags()&claim.Keeps != 0
	amount, at := in.Amount, in.At
	state := claim.Settling
	if keeps {
		state, amount = claim.Settled, 0
	}
	own.At = at
	s.counters.Claims.Settle(now, own, state, amount)
	own.SetGives(owned)
	return own
}

// HeldHits returns the number of key's open holds that this member knows, and their hits. It knows all of them if it
// owns the key.
func (n *Node) HeldHits(key Key) (holds, hits uint64) {
	s, _ := n.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.counters.Claims.Totals(key)
	return uint64(t.Open), t.Held
}
