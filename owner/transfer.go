package owner

import (
	"sync"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

const (
	chunkKeys  = 256
	chunkSlots = 2048 // of a table, looked at for one Chunk
	lockSlots  = 256  // of them under one lock
	holdScan   = int64(5e9)
)

// scans are the transfers under way.
type scans struct {
	mu sync.Mutex
	to map[ring.ID]*transferScan
}

// transferScan is how far one transfer has come.
type transferScan struct {
	sync.Mutex // one Pull at a time; taken before the Node's serial and any shard's mu
	transfer   handoff.Transfer
	chunks     uint32
	shard      int
	cursor     counter.Cursor // in this shard
	sketchPart int            // next of the sketches' parts
	pieces     []*handoff.SketchPart
}

// overflow is the next piece of the sketches for transfer c, after all counters; nil when there is none left. They go along with tokens only: a
// copy would know of no key more than the owner's table says.
func (n *Node) overflow(now int64, c *transferScan) *handoff.SketchPart {
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

// Transfers are the members that Pull has something for.
func (n *Node) Transfers() []ring.ID {
	n.serial.Lock()
	defer n.serial.Unlock()
	var ids []ring.ID
	for _, t := range n.serial.transfers {
		ids = append(ids, t.To)
	}
	return ids
}

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

// Pull is the next message of the transfer to a member; false when there is none for now. It uses buf, and the slots in
// it, for the message's counters.
func (n *Node) Pull(now int64, to ring.ID, buf []handoff.CounterRecord) (handoff.Message, bool) {
	t, ok := n.transfer(to)
	if !ok {
		n.scans.mu.Lock()
		delete(n.scans.to, to)
		n.scans.mu.Unlock()
		return handoff.Message{}, false
	}
	c := n.scan(to)
	c.Lock()
	defer c.Unlock()
	if c.transfer.StartedAt != t.StartedAt || c.transfer.SuccessorCopy != t.SuccessorCopy || c.transfer.To != t.To || c.transfer.Ring.Fingerprint() != t.Ring.Fingerprint() {
		c.transfer, c.chunks, c.shard, c.cursor, c.sketchPart, c.pieces = t, 0, 0, counter.Cursor{}, 0, nil
	}
	msg := handoff.Message{Kind: handoff.Chunk, Ring: t.Ring.Fingerprint(), Seq: t.Seq, Sent: t.StartedAt, ChunkIndex: c.chunks}
	switch {
	case t.SuccessorCopy:
		msg.Flags = handoff.SuccessorCopy
	case t.Prefetch:
		msg.Flags = handoff.Prefetch
	}
	if msg.Counters = n.fill(now, c, buf[:0]); len(msg.Counters) > 0 || c.shard < counter.Shards {
		c.chunks++
		return msg, true
	}
	if msg.Sketch = n.overflow(now, c); msg.Sketch != nil {
		c.chunks++
		return msg, true
	}
	return n.finish(now, c)
}

// finish ends the chunks of a transfer.
func (n *Node) finish(now int64, c *transferScan) (handoff.Message, bool) {
	n.serial.Lock()
	defer n.serial.Unlock()
	m := n.serial.machine
	defer func() { n.serial.transfers = m.Transfers() }()
	return m.Finish(now, c.transfer, c.chunks)
}

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
func (n *Node) fill(now int64, c *transferScan, buf []handoff.CounterRecord) []handoff.CounterRecord {
	p := newTransferFilter(&c.transfer, n.options.Self)
	bytes := 0
	for looked := 0; looked < chunkSlots && c.shard < counter.Shards && len(buf) < chunkKeys && bytes < maxBytes; looked += lockSlots {
		had := len(buf)
		s := &n.shards[c.shard]
		s.mu.Lock()
		buf = c.read(n, s, s.clock(now), p, buf)
		s.mu.Unlock()
		for i := had; i < len(buf); i++ {
			bytes += sizeOf(&buf[i])
		}
	}
	return buf
}

// read appends counters from the next slots of shard s. Entries only ever move from the old array to the new one, so
// reading the old one first misses none; when they have moved otherwise, the shard is read from its beginning.
func (c *transferScan) read(n *Node, s *shard, now int64, p transferFilter, buf []handoff.CounterRecord) []handoff.CounterRecord {
	t, bytes := &s.counters.Owned, 0
	end := t.Scan(&c.cursor, lockSlots, now+holdScan, func(e *counter.Owned) bool {
		if !p.includes(e.RingPos()) {
			return true
		}
		away := p.away && s.view.Ownership(e.RingPos(), e.Epoch()).State != handoff.OwnedHere
		if away {
			e.SetIncomplete()
		}
		if e.Expired(now) {
			return true
		}
		if away {
			t.Disown(e)
			n.chargeLostOnRelease(s, now, e, &c.transfer)
		}
		buf = extendCounters(buf)
		s.exportTo(e, &buf[len(buf)-1])
		bytes += sizeOf(&buf[len(buf)-1])
		return len(buf) < chunkKeys && bytes < maxBytes/2
	})
	if end {
		c.shard++
	}
	return buf
}

// extendCounters makes buf one longer, and keeps what slots the new one has from earlier use.
func extendCounters(buf []handoff.CounterRecord) []handoff.CounterRecord {
	if len(buf) < cap(buf) {
		return buf[:len(buf)+1]
	}
	return append(buf, handoff.CounterRecord{})
}

// transferFilter says which keys a transfer is about.
type transferFilter struct {
	ring, before       *ring.Ring
	to, toBefore, self int
	extra, away        bool
}

func newTransferFilter(t *handoff.Transfer, self ring.ID) transferFilter {
	p := transferFilter{ring: t.Ring, to: t.Ring.Index(t.To), self: t.Ring.Index(self), extra: t.SuccessorCopy, away: !t.SuccessorCopy && !t.Prefetch, before: t.DeliveredFor}
	if t.SuccessorCopy {
		p.before = t.CopiedFor
	}
	if p.before != nil {
		p.toBefore = p.before.Index(t.To)
	}
	return p
}

func (p *transferFilter) includes(owner uint64) bool {
	if p.to < 0 {
		return false
	}
	if !p.extra {
		return p.ring.Owner(owner) == p.to && (p.before == nil || p.before.Owner(owner) != p.toBefore || p.toBefore < 0)
	}
	// Who leaves tells the heirs, too: the new owner may be lost before it has told them.
	if p.self >= 0 && p.ring.Owner(owner) != p.self || p.ring.Successor(owner) != p.to {
		return false
	}
	return p.before == nil || p.toBefore < 0 || p.before.Owner(owner) != p.toBefore && p.before.Successor(owner) != p.toBefore
}
