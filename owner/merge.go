package owner

import (
	"slices"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/writeback"
	"github.com/keyward/keyward/ring"
)

const (
	ahead    = limit.ClockTolerance
	maxSlots = 4096 // of one counter
)

func bytesOf(m *protocol.Message) (n int) {
	for i := range m.Counters {
		n += m.Counters[i].Size()
	}
	return n
}

// merge merges counters that another member has sent.
func (n *Node) merge(now int64, cs []protocol.CounterRecord) {
	k := &n.serial.counts
	if len(cs) > protocol.MaxCounters {
		k.refused += uint64(len(cs))
		return
	}
	for i := range cs {
		c := &cs[i]
		if len(c.Claims) > 0 {
			n.mergeClaims(now, c)
		}
		if len(c.State.Slots) == 0 {
			continue
		}
		if c.Rule.Validate() != nil || len(c.State.Slots) > maxSlots {
			k.refused++
			continue
		}
		s, hash := n.shard(c.Key)
		s.mu.Lock()
		kept, refused := n.mergeOne(s, hash, s.clock(now), c)
		s.mu.Unlock()
		k.refused += uint64(refused)
		if kept {
			k.merged++
		} else {
			k.dropped++
		}
	}
}

// mergeReplicas merges replicas that member holder has sent. It passes on what is new to the key's owner by the ring if that
// is another member: holder decides the key until it can transfer it to that owner, to which this member may have
// transferred what it had before. If holder fails first, the owner would lack the charges that this member has confirmed
// in its place. Only news is passed on, so that no counter moves in a circle while members use different rings.
func (n *Node) mergeReplicas(now int64, holder ring.ID, cs []protocol.CounterRecord) {
	v := n.serial.view
	var before []protocol.CounterRecord
	for i := range cs[:min(len(cs), protocol.MaxCounters)] {
		o := v.Ring().Owner(cs[i].RingPos)
		if o >= 0 && o != v.Self() && v.Ring().At(o).ID != holder {
			before = append(before, n.record(cs[i].Key))
		}
	}
	n.merge(now, cs)
	before = slices.DeleteFunc(before, func(c protocol.CounterRecord) bool {
		after := n.record(c.Key)
		return after.State.TAT == c.State.TAT && slices.Equal(after.State.Slots, c.State.Slots)
	})
	n.deliver(before)
}

// record returns what this member has of a key that may belong to another one. Without a counter, it has only the key.
func (n *Node) record(key Key) protocol.CounterRecord {
	s, hash := n.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := protocol.CounterRecord{Key: key}
	if e := s.counters.Owned.Find(hash, key); e != nil {
		s.counters.Export(e, &c)
	}
	return c
}

// mergeOne merges one counter. kept is false if there was no room for it, so that the sketches count it. refused is the
// number of slots that were not merged.
func (n *Node) mergeOne(s *shard, hash uint64, now int64, c *protocol.CounterRecord) (kept bool, refused int) {
	r, in := c.Rule, &s.other
	in.TAT, in.Slots = c.State.TAT, append(in.Slots[:0], c.State.Slots...)
	refused = r.Clean(in, now)
	e, ok := s.mergeTarget(hash, now, c)
	if !ok {
		return true, refused + 1
	}
	op := shardOp{
		Request: &Request{Key: c.Key, RingPos: c.RingPos, Domain: c.Domain, Rule: r},
		now:     now, hash: hash, table: counter.TableOwned, rule: r,
	}
	if e != nil {
		e = s.completeIfOwned(&op, e)
	}
	s.state.TAT, s.state.Slots = 0, s.state.Slots[:0]
	if e != nil {
		s.counters.Load(e, r, &s.state)
	}
	dropped := false
	if _, lost := s.view.Lost(c.RingPos); !lost { // others may have charged for lost state by mistake
		r.DropLost(in)
		dropped = r.DropLost(&s.state)
	}
	if s.protectOwnSlots(in); len(in.Slots) == 0 && !dropped {
		return true, refused
	}
	if e == nil {
		if e = s.insert(&op, true); e != nil {
			e = s.completeIfOwned(&op, e)
		}
		if e == nil {
			s.moveToSketch(&op, in)
			return false, refused
		}
		s.counters.Load(e, r, &s.state)
	}
	used := r.Used(&s.state, now)
	r.Merge(&s.state, in)
	r.Trim(&s.state, now)
	added := saturatingSub(r.Used(&s.state, now), used)
	if !s.counters.Store(e, r, &s.state) {
		s.moveToSketch(&op, &s.state)
		s.counters.Owned.Remove(hash, c.Key)
		return false, refused
	}
	n.afterMerge(s, e, c)
	if n.journalsEntry(s, e) {
		n.trackUnwritten(s, e, r, &writeback.Hits{Now: now, N: added})
	}
	return true, refused
}

// mergeTarget returns the counter of c's key, or nil. ok is false if that counts in other windows or is at another ring
// position, on which members never disagree. Such a counter is reset if it has no effect any more.
func (s *shard) mergeTarget(hash uint64, now int64, c *protocol.CounterRecord) (e *counter.Owned, ok bool) {
	e = s.counters.Owned.Find(hash, c.Key)
	if e == nil || sameWindows(s.counters.Rule(e), c.Rule) && e.RingPos() == c.RingPos {
		return e, true
	}
	if s.counters.End(e, s.counters.Rule(e)) > now {
		return e, false
	}
	s.counters.Renew(e, c.Rule, now)
	e.Move(c.RingPos)
	return e, true
}

// completeIfOwned is completeEntry if this member decides op's key: what others send is added to what its sketches have
// counted.
func (s *shard) completeIfOwned(op *shardOp, e *counter.Owned) *counter.Owned {
	if e.Complete() || !s.sketches.Live() ||
		s.view.Ownership(op.RingPos, e.OwnedEpoch(op.RingPos)).State != handoff.OwnedHere {
		return e
	}
	return s.completeEntry(op, e)
}

// afterMerge updates e, into which c was merged: an owner replicates the merged counter, any other member adopts the
// rule.
func (n *Node) afterMerge(s *shard, e *counter.Owned, c *protocol.CounterRecord) {
	if s.view.Ownership(e.RingPos(), e.Epoch()).State == handoff.OwnedHere {
		if s.view.copies { // the successor needs it, too
			n.trackUnreplicated(s, e, c.Rule, 0)
		}
		return
	}
	e.SetLimit(c.Rule.Limit)
	s.counters.SetRule(e, c.Rule)
	s.counters.SetVolatile(e, c.Volatile)
}

// sameWindows reports whether two rules count in the same windows.
func sameWindows(a, b limit.Rule) bool { return a.Algorithm == b.Algorithm && a.Window == b.Window }

// protectOwnSlots limits in to what other members can know: the slots of this member never change by what others send.
// If s.state has no slot of this member, as after the counter was dropped, the slots of the others are used.
func (s *shard) protectOwnSlots(in *limit.State) {
	for _, writer := range [2]uint64{s.bootID, s.share()} {
		if !slices.ContainsFunc(s.state.Slots, func(f limit.Slot) bool { return f.Writer == writer }) {
			continue
		}
		kept := in.Slots[:0]
		for _, f := range in.Slots {
			if f.Writer == writer {
				i := slices.IndexFunc(s.state.Slots, func(g limit.Slot) bool { return g.Writer == writer && g.At == f.At })
				if i < 0 {
					continue
				}
				f.Charged, f.Refunded = min(f.Charged, s.state.Slots[i].Charged), min(f.Refunded, s.state.Slots[i].Refunded)
			}
			kept = append(kept, f)
		}
		in.Slots = kept
	}
}
