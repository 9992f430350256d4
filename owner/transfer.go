package owner

import (
	"sync"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

const (
	chunkKeys  = 256
	chunkSlots = 2048       // slots of a table that are read for one Chunk
	lockSlots  = 256        // of these, under one lock
	holdScan   = int64(5e9) // a table is not swept for so long after a scan has read it
)

// scans holds the progress of the transfers.
type scans struct {
	mu sync.Mutex
	to map[ring.ID]*transferScan
}

// transferScan is the progress of one transfer.
type transferScan struct {
	sync.Mutex // one Pull at a time; locked before the Node's serial and any shard's mu
	transfer   handoff.Transfer
	filter     transferFilter
	chunks     uint32
	shard      int
	cursor     counter.Cursor // in this shard
	claimShard int            // the shard of the next claims
	claim      uint32         // in this shard
	sketchPart int            // the next part of the sketches
	pieces     []*protocol.SketchPart
}

// nextPiece returns the next piece of the sketches for transfer c, after all counters, or nil if none is left.
// Sketches are sent only with ownership: a replica holds no more of a key than the owner's table.
func (n *Node) nextPiece(now int64, c *transferScan) *protocol.SketchPart {
	if c.transfer.SuccessorCopy || c.transfer.Prefetch {
		return nil
	}
	for ; len(c.pieces) == 0 && c.sketchPart < counter.Shards; c.sketchPart++ {
		c.pieces = n.counters.Sketches.Export(c.sketchPart, now)
	}
	if len(c.pieces) == 0 {
		return nil
	}
	o := c.pieces[0]
	c.pieces = c.pieces[1:]
	return o
}

// receivers returns the members to which counters are to be sent. serial is locked.
func (n *Node) receivers() (ids []ring.ID) {
	for _, t := range n.serial.transfers {
		ids = append(ids, t.To)
	}
	return ids
}

// transfer returns the transfer to a member, if there is one.
func (n *Node) transfer(to ring.ID) (handoff.Transfer, bool) {
	n.serial.Lock()
	defer n.serial.Unlock()
	for _, t := range n.serial.transfers {
		if t.To == to {
			return t, true
		}
	}
	return handoff.Transfer{}, false
}

// Pull returns the next message of the transfer to a member, or false if there is none now. The message's counters use
// buf and the slots in it.
func (n *Node) Pull(now int64, to ring.ID, buf []protocol.CounterRecord) (protocol.Message, bool) {
	t, ok := n.transfer(to)
	if !ok {
		n.scans.mu.Lock()
		delete(n.scans.to, to)
		n.scans.mu.Unlock()
		return protocol.Message{}, false
	}
	c := n.scan(to)
	c.Lock()
	defer c.Unlock()
	if !sameTransfer(&c.transfer, &t) {
		c.transfer, c.filter = t, newTransferFilter(&t, n.options.Self)
		c.chunks, c.shard, c.cursor, c.sketchPart, c.pieces = 0, 0, counter.Cursor{}, 0, nil
		c.claimShard, c.claim = 0, 0
	}
	msg := protocol.Message{
		Kind: protocol.Chunk, Ring: t.Ring.Fingerprint(), Seq: t.Seq, Sent: t.StartedAt, ChunkIndex: c.chunks,
	}
	switch {
	case t.SuccessorCopy:
		msg.Flags = protocol.SuccessorCopy
	case t.Prefetch:
		msg.Flags = protocol.Prefetch
	}
	if msg.Counters = n.fillClaims(c, buf[:0]); len(msg.Counters) > 0 {
		c.chunks++
		return msg, true
	}
	if msg.Counters = n.fill(now, c, buf[:0]); len(msg.Counters) > 0 || c.shard < counter.Shards {
		c.chunks++
		return msg, true
	}
	if msg.Sketch = n.nextPiece(now, c); msg.Sketch != nil {
		c.chunks++
		return msg, true
	}
	return n.endChunks(now, c)
}

// sameTransfer reports whether a, which may be empty, is the same transfer as b.
func sameTransfer(a, b *handoff.Transfer) bool {
	return a.StartedAt == b.StartedAt && a.SuccessorCopy == b.SuccessorCopy && a.To == b.To &&
		a.Ring.Fingerprint() == b.Ring.Fingerprint()
}

// endChunks ends the chunks of a transfer.
func (n *Node) endChunks(now int64, c *transferScan) (protocol.Message, bool) {
	n.serial.Lock()
	defer n.serial.Unlock()
	m := n.serial.machine
	defer func() { n.serial.transfers = m.Transfers() }()
	return m.Finish(now, c.transfer, c.chunks)
}

// scan returns the progress of the transfer to a member.
func (n *Node) scan(to ring.ID) *transferScan {
	n.scans.mu.Lock()
	defer n.scans.mu.Unlock()
	c := n.scans.to[to]
	if c == nil {
		c = &transferScan{}
		if n.scans.to == nil {
			n.scans.to = map[ring.ID]*transferScan{}
		}
		n.scans.to[to] = c
	}
	return c
}

// fill appends the next counters of transfer c to buf.
func (n *Node) fill(now int64, c *transferScan, buf []protocol.CounterRecord) []protocol.CounterRecord {
	bytes := 0
	for slots := 0; slots < chunkSlots && c.shard < counter.Shards; slots += lockSlots {
		had := len(buf)
		if had >= chunkKeys || bytes >= protocol.MaxBytes {
			break
		}
		s := &n.shards[c.shard]
		s.mu.Lock()
		buf = c.read(n, s, s.clock(now), buf)
		s.mu.Unlock()
		for i := had; i < len(buf); i++ {
			bytes += buf[i].Size()
		}
	}
	return buf
}

// claimSlots is the number of records of claims that are read under one lock: at most about 60 KB of them are sent.
const claimSlots = 1024

// fillClaims appends the next claims of transfer c to buf. They come before the counters: a receiver that has a claim's
// hits given back also knows that the claim is settled. The keys that the transfer moves are not decided here any more,
// so their claims do not change.
func (n *Node) fillClaims(c *transferScan, buf []protocol.CounterRecord) []protocol.CounterRecord {
	for len(buf) == 0 && c.claimShard < counter.Shards {
		s := &n.shards[c.claimShard]
		end := false
		s.mu.Lock()
		buf, c.claim, end = s.counters.ScanClaims(c.claim, claimSlots, func(x *claim.Claim) (selected, moves bool) {
			if selected = c.filter.includes(x.RingPos); selected && c.filter.away {
				e := s.counters.Find(x.Key)
				moves = s.view.Ownership(x.RingPos, e.OwnedEpoch(x.RingPos)).State != handoff.OwnedHere
			}
			return selected, moves
		}, buf)
		s.mu.Unlock()
		if end {
			c.claimShard, c.claim = c.claimShard+1, 0
		}
	}
	return buf
}

// read appends the counters in the next slots of shard s to buf.
func (c *transferScan) read(n *Node, s *shard, now int64, buf []protocol.CounterRecord) []protocol.CounterRecord {
	t, bytes := &s.counters.Owned, 0
	end := t.Scan(&c.cursor, lockSlots, now+holdScan, func(e *counter.Owned) bool {
		if !c.filter.includes(e.RingPos()) {
			return true
		}
		away := c.filter.away && s.view.Ownership(e.RingPos(), e.Epoch()).State != handoff.OwnedHere
		decidedHere := e.Complete()
		if away {
			e.SetIncomplete()
		}
		if e.Expired(now) {
			return true
		}
		if away {
			if decidedHere {
				s.auditTransfer(now, e, c.transfer.To)
			}
			t.Disown(e)
			n.chargeLostOnRelease(s, now, e, &c.transfer)
		}
		buf = extendCounters(buf)
		s.counters.Export(e, &buf[len(buf)-1])
		bytes += buf[len(buf)-1].Size()
		return len(buf) < chunkKeys && bytes < protocol.MaxBytes/2
	})
	if end {
		c.shard++
	}
	return buf
}

// extendCounters adds a record to buf that keeps the slots of its earlier use.
func extendCounters(buf []protocol.CounterRecord) []protocol.CounterRecord {
	if len(buf) < cap(buf) {
		return buf[:len(buf)+1]
	}
	return append(buf, protocol.CounterRecord{})
}

// transferFilter selects the keys of a transfer.
type transferFilter struct {
	ring, before       *ring.Ring
	to, toBefore, self int
	copies             bool // the keys are replicated to their successor, and their zone replicas
	away               bool // their ownership goes with them
}

func newTransferFilter(t *handoff.Transfer, self ring.ID) transferFilter {
	p := transferFilter{
		ring: t.Ring, to: t.Ring.Index(t.To), self: t.Ring.Index(self),
		copies: t.SuccessorCopy, away: !t.SuccessorCopy && !t.Prefetch, before: t.DeliveredFor,
	}
	if t.SuccessorCopy {
		p.before = t.CopiedFor
	}
	if p.before != nil {
		p.toBefore = p.before.Index(t.To)
	}
	return p
}

// includes reports whether the transfer contains the key at ringPos.
func (p *transferFilter) includes(ringPos uint64) bool {
	if p.to < 0 {
		return false
	}
	if !p.copies {
		return p.ring.Owner(ringPos) == p.to && (p.before == nil || p.before.Owner(ringPos) != p.toBefore || p.toBefore < 0)
	}
	// A member that leaves replicates to the successors, too: the new owner may fail before it has done so.
	if p.self >= 0 && p.ring.Owner(ringPos) != p.self || !replicatesTo(p.ring, ringPos, p.to) {
		return false
	}
	return p.before == nil || p.toBefore < 0 ||
		p.before.Owner(ringPos) != p.toBefore && !replicatesTo(p.before, ringPos, p.toBefore)
}

// replicatesTo reports whether the owner of the key at ringPos replicates it to member i of r.
func replicatesTo(r *ring.Ring, ringPos uint64, i int) bool {
	return r.Successor(ringPos) == i || r.ZoneReplica(ringPos) == i
}
