package owner

import (
	"math"
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/replica"
	"github.com/keyward/keyward/owner/internal/writeback"
	"github.com/keyward/keyward/ring"
)

// A claim gives back in two steps. First it is marked as settled, and another member confirms the mark. Then its hits
// are given back, and the caller gets the answer. A member that gets the key from its owner in between completes the
// second step. One that takes over from an owner that is lost does not know whether it was completed: perhaps a third
// member has a copy of the counter in which it was. So it gives back in the name of the lost owner. That is one number
// that only grows, and of two copies the larger one counts: hits come back once, and never more than once.

// mayGiveBack reports whether the hits of c may be given back: another member knows that c is settled, or there is none
// that could.
func (s *shard) mayGiveBack(c *claim.Claim) bool {
	return !s.view.copies || c.Tracked() && !c.Changed()
}

// mark marks c as settled. This member gives back amount hits of it.
func (n *Node) mark(s *shard, now int64, c *claim.Claim, amount uint32) {
	state := claim.Settled
	if amount > 0 {
		state = claim.Settling
	}
	s.counters.Claims.Settle(now, c, state, amount)
	c.SetGives(true)
	c.Caller = s.bootID
	n.changeClaim(s, c)
}

// giver returns the writer who gives back the hits of c: this member, or the owner that has marked it and was lost. It
// returns false if that is not known.
func (s *shard) giver(c *claim.Claim) (writer uint64, known bool) {
	if c.Gives() {
		return s.bootID, true
	}
	return c.Caller, c.Caller > limit.LostStateWriter && c.Caller < math.MaxUint64
}

// ownsClaims reports whether this member may decide the claims of the key at ringPos.
func (n *Node) ownsClaims(s *shard, now int64, key Key, ringPos uint64) bool {
	if extent, _, _ := n.authority(now, s.view, 0); extent == handoff.ExtentNone {
		return false
	}
	return s.view.Ownership(ringPos, s.counters.Find(key).OwnedEpoch(ringPos)).State == handoff.OwnedHere
}

// mayLapse reports whether c, which has ended, may lapse. If its hits come back then, this member must have the complete limit: two
// parts of a cluster may both own the key, and in one of them the hold may be settled while it lapses in the other. Later, the
// parts meet, or the members of the other part do not count any more.
func (n *Node) mayLapse(s *shard, now int64, c *claim.Claim) bool {
	if c.Flags()&claim.Releases == 0 {
		return true
	}
	extent, _, _ := n.authority(now, s.view, policy.Choose(policy.PartShare))
	return extent == handoff.ExtentFull
}

// giveBack gives back the hits of c, which is Settling, and completes its settlement.
func (n *Node) giveBack(s *shard, now int64, c *claim.Claim) {
	t, e := &s.counters.Claims, s.counters.Find(c.Key)
	if e == nil || s.counters.End(e, s.counters.Rule(e)) <= now {
		t.Settle(now, c, claim.Settled, 0)
		return
	}
	if writer, known := s.giver(c); known {
		n.refundClaim(s, now, e, c, writer)
	} else {
		s.counts.Holds.Lost += uint64(c.Amount)
	}
	t.Settle(now, c, claim.Settled, 0)
	n.changeClaim(s, c)
}

// refundClaim gives back the hits of c to its counter e, as that writer, and returns how many.
func (n *Node) refundClaim(s *shard, now int64, e *counter.Owned, c *claim.Claim, writer uint64) (back uint64) {
	t, r, st := &s.counters.Claims, s.counters.Rule(e), &s.state
	s.counters.Load(e, r, st)
	at, tat := c.At, st.TAT
	if r.Algorithm.Bucket() {
		at -= t.Given(c.Key)
	}
	back = r.GiveBack(st, now, writer, at, uint64(c.Amount))
	r.Trim(st, now)
	switch {
	case back == 0:
	case !s.counters.Store(e, r, st):
		s.counts.Holds.Lost += back
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
		if c.State() == claim.Settling && n.ownsClaims(s, s.now, c.Key, c.RingPos) {
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
			unsent := c.Changed() && now-c.Made() < unsentFor // the owner is to get it
			return s.isForeign(c.RingPos) && !unsent || c.Ends()+int64(claim.MarkLife) <= now
		}
		switch open := c.State() == claim.Open; {
		case open && n.dead.isOfDead(c):
			n.releaseDead(s, now, c)
		case open && c.Ends() <= now && n.mayLapse(s, now, c):
			n.lapse(s, now, c)
		}
		if c.State() != claim.Open && !c.Tracked() { // from another member, before this one owned the key: the successor may lack it
			n.changeClaim(s, c)
		}
		if c.State() != claim.Settling {
			return false
		}
		if !c.Gives() && !s.view.Steady() { // the former owner may still say that this member gives
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
		n.mark(s, now, c, c.Amount)
	} else {
		n.mark(s, now, c, 0)
	}
}

// unsentFor is how long a member keeps a claim that it has made from its local share and that the owner has not confirmed.
const unsentFor = int64(5 * time.Second)

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
		if c := s.mergeClaim(at, &in, bucket); c != nil && owned {
			n.changeClaim(s, c)
		}
	}
}

// mergeClaim merges in, a claim of another member, with this member's record of it. It returns the record if it has
// changed. bucket reports whether the key's counter is a bucket.
func (s *shard) mergeClaim(now int64, in *claim.Claim, bucket bool) *claim.Claim {
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
		return s.meetOrphan(now, own, in)
	case in.State() == claim.Orphan && own.State() == claim.Open:
		return s.meetOrphan(now, own, in)
	case own.State() == claim.Orphan || in.State() == claim.Orphan:
		return nil
	case in.Made() > own.Made(), own.State() == claim.Open && chargedTwice(in, own):
		t.Remove(own)
		return t.Add(in, true)
	case in.Made() == own.Made() && in.State() > own.State():
		t.Settle(now, own, in.State(), in.Amount)
		own.SetGives(in.Gives())
		own.Caller = in.Caller
		return own
	case in.Made() == own.Made() && in.State() == own.State() && in.Gives():
		own.SetGives(true)
		return own
	case in.Made() == own.Made() && in.State() == claim.Open && own.State() == claim.Open:
		return s.mergeOpen(own, in, bucket)
	}
	return nil
}

// chargedTwice reports whether open is of the same request as settled, a claim that was made before it: the owner has
// charged the request, and a member's share, too, because the owner's answer came too late. The settlement is kept: the
// hits of the other charge stay charged, but a repeated settlement has no further effect. A claim that was made after the
// settlement is that of a new request with the same id.
func chargedTwice(settled, open *claim.Claim) bool {
	return settled.State() != claim.Open && settled.Made() < open.Made() && open.Made() < settled.Made()+int64(settled.TTL())
}

// mergeOpen merges two copies of an open claim. It returns own if it has changed. The later one of an extended claim has
// the longer TTL, and the later one of a bucket is that of which more hits of the bucket were given back.
func (s *shard) mergeOpen(own, in *claim.Claim, bucket bool) *claim.Claim {
	if own.Ended() {
		return nil
	}
	if in.Ended() {
		s.counters.Claims.End(own)
		return own
	}
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

// meetOrphan makes own, a claim or the mark of its settlement, of which in is the other one, a claim that has lapsed and
// is to be given back: its hits were charged again by the settlement. The owner of the key lets it lapse.
func (s *shard) meetOrphan(now int64, own, in *claim.Claim) *claim.Claim {
	t := &s.counters.Claims
	keeps := (own.Flags()|in.Flags())&claim.Keeps != 0
	if own.State() == claim.Orphan {
		x := *in
		t.Remove(own)
		if own = t.Add(&x, true); own == nil {
			s.counts.Holds.Dropped++
			return nil
		}
	}
	if keeps {
		t.Settle(now, own, claim.Settled, 0)
		return own
	}
	t.End(own)
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
