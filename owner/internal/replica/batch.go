package replica

import (
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

// usualBatch is the number of counters that a batch has room for at first.
const usualBatch = 64

// maxRecords is the number of records from which on a batch is full: there is room for the claims of one more key.
const maxRecords = protocol.MaxCounters - 8

// batch is a Replica message that is not confirmed.
type batch struct {
	to     ring.ID
	at     int64
	resent bool // to another member
	items  []Item
}

// gathering is a batch that is being filled for one member.
type gathering struct {
	to    ring.ID
	msg   protocol.Message
	items []Item
	slots []limit.Slot // of msg's counters, one after another
	bytes int
}

// full reports whether the batch has to be sent before more is added.
func (g *gathering) full() bool {
	return len(g.msg.Counters) >= maxRecords || g.bytes > protocol.MaxBytes
}

// add adds e, the counter of an item, to the batch, and the changes of its claims. An item that is not a part contains the
// key's other claims already.
func (g *gathering) add(b *Backlog, e *counter.Owned, it Item) {
	if g.items == nil && g.msg.Counters == nil {
		g.items, g.msg.Counters = make([]Item, 0, usualBatch), make([]protocol.CounterRecord, 0, usualBatch)
	}
	if cap(g.slots)-len(g.slots) < 4 {
		g.slots = make([]limit.Slot, 0, 2*usualBatch)
	}
	if b.counters.Claims.Len() > 0 {
		it.claims = b.counters.ChangedClaims(e.Key(), g.addRecord)
	}
	var c protocol.CounterRecord
	c.State.Slots = g.slots[len(g.slots):]
	b.counters.Export(e, &c)
	if n := len(g.slots) + len(c.State.Slots); n <= cap(g.slots) {
		g.slots = g.slots[:n]
		c.State.Slots = c.State.Slots[:len(c.State.Slots):len(c.State.Slots)]
	}
	g.addRecord(c)
	g.items = append(g.items, it)
}

// addRecord adds a record to the message.
func (g *gathering) addRecord(c protocol.CounterRecord) {
	g.bytes += c.Size()
	g.msg.Counters = append(g.msg.Counters, c)
}
