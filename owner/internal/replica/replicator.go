package replica

import (
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

const (
	lockKeys   = 128                    // keys that one Gather takes from the queue
	maxFlight  = 64                     // batches whose time for a confirmation has not passed
	maxBatches = 4 * maxFlight          // batches, including those that were sent again
	batchAge   = int64(2 * time.Second) // after which a batch cannot be confirmed any more
)

// Replicator sends replicas of counters to other members.
type Replicator struct {
	resend  int64            // how long a member has to confirm a batch, in nanoseconds
	machine *handoff.Machine // for which members are live, and which of them are silent
	view    *handoff.OwnershipView
	copies  bool // see SetView

	next     uint64 // the number of the latest batch
	batches  map[uint64]*batch
	order    []uint64     // batches, the oldest first
	inFlight atomic.Int64 // batches that are not confirmed and not sent again
	misses   misses

	open   []*gathering // batches that Gather fills, one for each member
	missed gathering    // the batch that AddMissed fills
	out    []protocol.Outbound

	ranked, silent []int  // scratch
	done           []Item // scratch
}

// New returns a Replicator that sends to the peers of machine. A member has the time resend to confirm a batch before
// another member gets it.
func New(resend time.Duration, machine *handoff.Machine) *Replicator {
	return &Replicator{resend: int64(resend), machine: machine, batches: map[uint64]*batch{}, misses: misses{}}
}

// SetView sets the view that the shards use. copies reports whether another member of its ring can hold replicas.
func (r *Replicator) SetView(v *handoff.OwnershipView, copies bool) { r.view, r.copies = v, copies }

// InFlight reports whether a batch waits for its confirmation. It may be called without locks.
func (r *Replicator) InFlight() bool { return r.inFlight.Load() > 0 }

// HasRoom reports whether another batch may be sent.
func (r *Replicator) HasRoom() bool { return r.inFlight.Load() < maxFlight }

// Gather adds some of the keys that b has queued to batches, which Send returns. done names the charges that need no
// confirmation any more; it is valid until the next call. more reports whether Gather has to be called again, as soon
// as there is room.
func (r *Replicator) Gather(now int64, b *Backlog) (done []Item, more bool) {
	done = r.done[:0]
	deferred := 0
	for range lockKeys {
		if b.queue.Len() == deferred {
			break
		}
		if !r.HasRoom() {
			return done, true
		}
		e, u := b.next()
		if u == nil {
			continue
		}
		to, successor, zone := r.target(now, e, u.Attempts())
		it := Item{Key: e.Key(), seq: u.Seq(), upTo: u.Charged(), successor: successor, part: b.counters.HasClaims(e.Key())}
		if expired := e.Expired(now); expired || to == "" {
			if expired || !r.copies {
				done = append(done, it)
			}
			if expired || r.isAlone() {
				b.counters.DropUnreplicated(e)
			} else {
				b.queue.Push(it.Key) // until the next Tick
				deferred++
			}
			continue
		}
		u.SetUnqueued()
		g := r.gatheringFor(to)
		if g.add(b, e, it); g.full() {
			r.dispatch(now, g)
		}
		if zone != "" && zone != to {
			r.addZoneReplica(now, b, e, zone)
		}
	}
	r.done = done
	return done, deferred == 0 && b.queue.Len() > 0
}

// addZoneReplica adds e to the open batch for member to, which holds its zone replica.
func (r *Replicator) addZoneReplica(now int64, b *Backlog, e *counter.Owned, to ring.ID) {
	if r.machine.IsSilent(now, to) {
		r.misses.record(to, e.Key(), r.next+1)
		return
	}
	g := r.gatheringFor(to)
	if g.add(b, e, Item{Key: e.Key(), zone: true, part: b.counters.HasClaims(e.Key())}); g.full() {
		r.dispatch(now, g)
	}
}

// isAlone reports whether this member is in a ring without any other member that can hold a replica.
func (r *Replicator) isAlone() bool { return !r.copies && r.view.Ring().Len() > 0 && r.view.Joined() }

// gatheringFor returns the open batch for a member, which it adds if there is none.
func (r *Replicator) gatheringFor(to ring.ID) *gathering {
	for _, g := range r.open {
		if g.to == to {
			return g
		}
	}
	g := &gathering{to: to}
	r.open = append(r.open, g)
	return g
}

// dispatch makes g a message, and empties it.
func (r *Replicator) dispatch(now int64, g *gathering) {
	if len(g.msg.Counters) == 0 {
		return
	}
	r.next++
	r.batches[r.next] = &batch{to: g.to, at: now, items: g.items}
	r.order = append(r.order, r.next)
	r.inFlight.Add(1)
	g.msg.Kind, g.msg.Seq, g.msg.Ring = protocol.Replica, r.next, r.view.Ring().Fingerprint()
	r.out = append(r.out, protocol.Outbound{To: g.to, Msg: g.msg})
	*g = gathering{to: g.to}
}

// Send returns the messages of all batches that Gather and AddMissed have filled.
func (r *Replicator) Send(now int64) []protocol.Outbound {
	for _, g := range r.open {
		r.dispatch(now, g)
	}
	out := r.out
	r.open, r.out = nil, nil
	return out
}

// target returns the member that e is sent to: its owner, or its successor if this member is the owner. If that member
// does not confirm, the next ones in the ring's order follow. Charges from a local share are sent only to the owner.
// successor is the member that must get the replica in the end. zone is the first member outside this member's zone,
// which gets it, too; it is empty if that is the successor or there is none.
func (r *Replicator) target(now int64, e *counter.Owned, attempts int) (to, successor, zone ring.ID) {
	v, members := r.view, r.view.Ring()
	r.ranked = members.Order(e.RingPos(), r.ranked[:0])
	if len(r.ranked) == 0 {
		return "", "", ""
	}
	own := ""
	if v.Self() >= 0 {
		own = members.At(v.Self()).Zone
	}
	if v.Ownership(e.RingPos(), e.Epoch()).State != handoff.OwnedHere && r.ranked[0] != v.Self() {
		r.ranked = r.ranked[:1]
	}
	heard, silent := r.ranked[:0], r.silent[:0]
	for _, i := range r.ranked {
		m := members.At(i)
		id := m.ID
		if i == v.Self() || !r.machine.CanReceive(id) {
			continue
		}
		if successor == "" {
			successor = id
		}
		if zone == "" && own != "" && m.Zone != "" && m.Zone != own {
			zone = id
		}
		if r.machine.IsSilent(now, id) {
			silent = append(silent, i)
		} else {
			heard = append(heard, i)
		}
	}
	r.silent = silent
	switch {
	case len(heard) > 0:
		to = members.At(heard[attempts%len(heard)]).ID
	case len(silent) > 0:
		to = members.At(silent[attempts%len(silent)]).ID
	}
	if zone == successor {
		zone = ""
	}
	return to, successor, zone
}

// Unconfirmed returns the keys of batches that were not confirmed in time. The caller passes each to Requeue, so that
// it is sent to another member. Zone replicas are sent to the same member again.
func (r *Replicator) Unconfirmed(now int64) (items []Item) {
	kept := r.order[:0]
	for _, seq := range r.order {
		b := r.batches[seq]
		switch {
		case b == nil:
			continue
		case !b.resent && now-b.at >= r.resend:
			b.resent = true
			r.inFlight.Add(-1)
			r.machine.NoReply(now, b.to, b.at)
			items = r.appendUnconfirmed(items, seq)
		case now-b.at > batchAge:
			delete(r.batches, seq)
			continue
		}
		kept = append(kept, seq)
	}
	for len(kept) > maxBatches {
		if b := r.batches[kept[0]]; !b.resent {
			r.inFlight.Add(-1)
			items = r.appendUnconfirmed(items, kept[0])
		}
		delete(r.batches, kept[0])
		kept = kept[1:]
	}
	r.order = kept
	return items
}

// appendUnconfirmed appends the items of batch seq, which was not confirmed in time, without zone replicas. These are
// missed.
func (r *Replicator) appendUnconfirmed(items []Item, seq uint64) []Item {
	b := r.batches[seq]
	for _, it := range b.items {
		if it.zone {
			r.misses.record(b.to, it.Key, seq)
		} else {
			items = append(items, it)
		}
	}
	return items
}

// Confirm processes the confirmation of batch seq by member from. It returns what the batch contained, without zone
// replicas; the caller passes each to its Backlog's Confirm. The result is nil if no such batch waits for that member.
func (r *Replicator) Confirm(seq uint64, from ring.ID) []Item {
	b := r.batches[seq]
	if b == nil || b.to != from {
		return nil
	}
	delete(r.batches, seq)
	if !b.resent {
		r.inFlight.Add(-1)
	}
	items := b.items[:0]
	for _, it := range b.items {
		if !it.part {
			r.misses.clear(from, it.Key, seq)
		}
		if it.zone {
			continue
		}
		if it.successor != from {
			r.misses.record(it.successor, it.Key, seq)
		}
		items = append(items, it)
	}
	return items
}
