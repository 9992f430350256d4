//go:build !race

package lease

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// The model has two members that can own a key with limit 3, two holders and two windows, built from the real Book,
// Holding and limit.State. A message may be delivered never, once or several times, at any later time, to the member
// that decides the key then. The holders' clocks differ by hours. The owner may crash; then the other member continues
// with what was replicated to it. Every reachable state is visited. Sizes and reasons for requests are arbitrary,
// because the bound must hold for all of them.
const (
	modelTick   = int64(time.Second)
	modelWindow = 2 // in ticks
	modelStart  = 1000 * modelWindow
)

var modelRule = limit.Rule{Window: modelWindow * time.Second, Limit: 3}

type ask struct {
	from            int8
	window          int64
	seq, have, left uint64
}

type lend struct {
	to         int8
	window     int64
	left       time.Duration
	seq, total uint64
}

// set is a set of messages by their numbers.
type set [8]uint64

func (s *set) add(n int) { s[n/64] |= 1 << (n % 64) }

func (s *set) drop(n int) { s[n/64] &^= 1 << (n % 64) }

func (s *set) each(visit func(n int)) {
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			visit(64*i + bits.TrailingZeros64(word))
		}
	}
}

// world is one state of the model.
type world struct {
	tick     int64
	owner    int8
	counters [2]limit.State
	books    [2]Book
	holders  [2]Holding
	asked    [2]int8 // number of requests sent
	asks     set     // in transit
	lends    set
	admitted [2]uint8 // by window
	own      [2]uint8 // the part decided by the owner itself
	crashes  int8
	moves    int8
	drops    int8
	late     uint8 // charges that a broken variant makes late
}

// model contains the numbers of events, and what is broken.
type model struct {
	requests            [2]int8 // of each holder
	moves, crashes, own int8
	drops               int8  // how often the first holder loses everything
	from, ticks         int64 // the windows change at 2
	sizes               []uint64

	chargeLate bool                                                 // C1: charged some time after it was sent
	unseen     bool                                                 // C5: sent before it is replicated
	keepBook   bool                                                 // C4: a Book that missed decisions
	carryOver  bool                                                 // C3: spent after the end of the window
	receive    func(l *HolderRecord, r *GrantRequest, window int64) // before Receive
	credit     func(l *HolderRecord, before HolderRecord)           // after Receive
	accept     func(h *Holding, g *Grant)                           // before Accept

	asks  map[ask]int
	lends map[lend]int
	askL  []ask
	lendL []lend
}

var modelIDs = [2]ring.ID{"h0", "h1"}

// skew is the offset of the holders' clocks.
var skew = [2]int64{-7 * int64(time.Hour), 3*int64(time.Hour) + 700*int64(time.Millisecond)}

func (w *world) now() int64            { return (modelStart + w.tick) * modelTick }
func (w *world) local(h int8) int64    { return w.now() + skew[h] }
func (w *world) window() int64         { return w.tick / modelWindow }
func (w *world) counter() *limit.State { return &w.counters[w.owner] }

func (w *world) clone() *world {
	c := *w
	for i := range c.counters {
		c.counters[i].Slots = slices.Clone(w.counters[i].Slots)
		c.books[i].records = slices.Clone(w.books[i].records)
	}
	return &c
}

// state describes everything that affects which events can follow.
func (w *world) state(b []byte) []byte {
	b = append(b, byte(w.tick), byte(w.owner), byte(w.asked[0]), byte(w.asked[1]), w.admitted[0], w.admitted[1],
		w.own[0], w.own[1], byte(w.crashes), byte(w.moves), byte(w.drops), w.late)
	put := func(vs ...uint64) {
		for _, v := range vs {
			b = binary.AppendUvarint(b, v)
		}
	}
	put(w.asks[:]...)
	put(w.lends[:]...)
	for i := range w.counters {
		put(uint64(len(w.counters[i].Slots)))
		for _, s := range w.counters[i].Slots {
			put(s.Writer, uint64(s.At), s.Charged, s.Refunded)
		}
		put(uint64(w.books[i].window), uint64(len(w.books[i].records)))
		for _, l := range w.books[i].records {
			put(uint64(l.Holder[1]), l.Seq, uint64(l.Window), l.Granted, l.lent)
			b = append(b, flag(l.exact))
		}
		h := &w.holders[i]
		put(uint64(h.window), h.have, h.left, h.seq, uint64(h.endsAt), uint64(h.sentAt))
		b = append(b, flag(h.inFlight))
	}
	return b
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// number interns messages: indistinguishable messages are one.
func number[M comparable](m M, known map[M]int, list *[]M) int {
	n, ok := known[m]
	if !ok {
		n = len(*list)
		known[m] = n
		*list = append(*list, m)
	}
	return n
}

// request makes holder i send a request, or return everything.
func (mo *model) request(w *world, i int8, back bool) *world {
	c := w.clone()
	h := &c.holders[i]
	h.coldSince = int64(flag(back))
	r := h.Request(c.local(i))
	h.coldSince = 0
	c.asked[i]++
	n := number(ask{from: i, window: r.Window, seq: r.Seq, have: r.Have, left: r.Left}, mo.asks, &mo.askL)
	c.asks.add(n)
	return c
}

// copy replicates the owner's counter to the other member.
func (w *world) copy() { modelRule.Merge(&w.counters[1-w.owner], w.counter()) }

// lease makes the owner reply to a, with every size that fits.
func (mo *model) lease(w *world, a ask) (out []*world) {
	for _, n := range mo.sizes {
		c := w.clone()
		b, s, now := &c.books[c.owner], c.counter(), c.now()
		r := GrantRequest{Rule: modelRule, Seq: a.seq, Window: a.window, Have: a.have, Left: a.left}
		window := modelRule.Index(now)
		i, known := b.find(modelIDs[a.from])
		var before HolderRecord
		if known {
			before = b.records[i]
			if mo.receive != nil {
				mo.receive(&b.records[i], &r, window)
			}
		}
		credit, ok := b.Receive(now, Holder{modelIDs[a.from], 1}, &r, window)
		if !ok {
			return append(out, c)
		}
		i, _ = b.find(modelIDs[a.from])
		if mo.credit != nil {
			mo.credit(&b.records[i], before)
		}
		modelRule.Refund(s, now, uint64(3+c.owner), credit)
		if n+modelRule.Used(s, now) > uint64(modelRule.Limit) {
			return out
		}
		b.records[i].allowed = n // whatever Size would return
		if mo.chargeLate {
			c.late += uint8(n)
		} else {
			modelRule.Take(s, now, uint64(3+c.owner), n)
		}
		g := lend{to: a.from, window: window, left: time.Duration(modelRule.End(window) - now), seq: a.seq}
		g.total = b.Grant(now, modelIDs[a.from], window, n)
		if !mo.unseen {
			c.copy()
		}
		c.lends.add(number(g, mo.lends, &mo.lendL))
		out = append(out, c)
	}
	return out
}

// take delivers a grant to its holder.
func (mo *model) take(w *world, l lend) *world {
	c := w.clone()
	h := &c.holders[l.to]
	g := Grant{Seq: l.seq, Window: l.window, Total: l.total, Limit: modelRule.Limit, Left: l.left, Flags: Hot}
	if mo.accept != nil {
		mo.accept(h, &g)
	}
	if h.Accept(c.local(l.to), &g) && mo.carryOver {
		h.endsAt, h.expiresAt = 1<<62, 1<<62
	}
	return c
}

// spend is a decision at holder i. It returns nil if the owner must decide.
func (mo *model) spend(w *world, i int8) *world {
	c := w.clone()
	h := &c.holders[i]
	if _, v := h.Decide(c.local(i), modelRule, 1); v != Admitted {
		return nil
	}
	c.admitted[c.window()]++
	return c
}

// move transfers the key to the other member: from the owner, or after a crash with what was replicated.
func (mo *model) move(w *world, crash bool) *world {
	c := w.clone()
	if crash {
		c.crashes++
		c.counters[c.owner], c.books[c.owner] = limit.State{}, Book{}
	} else {
		c.moves++
		c.copy()
	}
	if !mo.keepBook {
		c.books[c.owner] = Book{}
	}
	c.owner = 1 - c.owner
	if crash {
		c.copy()
	}
	return c
}

// direct is a decision by the owner itself, which admits only replicated hits.
func (w *world) direct() *world {
	c := w.clone()
	if modelRule.Take(c.counter(), c.now(), uint64(3+c.owner), 1).Over {
		return nil
	}
	c.copy()
	c.admitted[c.window()]++
	c.own[c.window()]++
	return c
}

// next visits the worlds one event later.
func (mo *model) next(w *world, visit func(*world)) {
	if w.tick+1 < mo.ticks {
		c := w.clone()
		c.tick++
		visit(c)
	}
	if w.late > 0 {
		c := w.clone()
		modelRule.Take(c.counter(), c.now(), uint64(3+c.owner), uint64(c.late))
		c.late = 0
		visit(c)
	}
	for i := range int8(2) {
		if w.asked[i] < mo.requests[i] {
			visit(mo.request(w, i, false))
			if w.holders[i].left > 0 {
				visit(mo.request(w, i, true))
			}
		}
		if c := mo.spend(w, i); c != nil {
			visit(c)
		}
	}
	w.asks.each(func(n int) {
		for _, c := range mo.lease(w, mo.askL[n]) {
			visit(c)
		}
	})
	w.lends.each(func(n int) { visit(mo.take(w, mo.lendL[n])) })
	if w.drops < mo.drops {
		c := w.clone()
		c.drops++
		c.holders[0].Drop(c.local(0))
		visit(c)
	}
	if w.moves < mo.moves {
		visit(mo.move(w, false))
	}
	if w.crashes < mo.crashes {
		visit(mo.move(w, true))
	}
	if w.own[w.window()] < uint8(mo.own) {
		if c := w.direct(); c != nil {
			visit(c)
		}
	}
}

// forget drops what can no longer have an effect: replies that no holder waits for, requests older than the newest one
// once the key cannot move, and windows that have ended.
func (mo *model) forget(w *world) {
	w.lends.each(func(n int) {
		l := mo.lendL[n]
		if h := &w.holders[l.to]; mo.accept == nil && (!h.inFlight || h.seq != l.seq) {
			w.lends.drop(n)
		}
	})
	w.asks.each(func(n int) {
		a := mo.askL[n]
		b := &w.books[w.owner]
		i, known := b.find(modelIDs[a.from])
		still := w.moves == mo.moves && w.crashes == mo.crashes
		if mo.receive == nil && known && still && a.seq <= b.records[i].Seq {
			w.asks.drop(n)
		}
	})
	for i := range w.counters {
		modelRule.Trim(&w.counters[i], w.now())
		h := &w.holders[i]
		if !mo.carryOver {
			h.expire(w.local(int8(i)))
		}
		if !h.inFlight {
			h.sentAt = 0
		}
	}
	if w.crashes == mo.crashes {
		w.counters[1-w.owner] = limit.State{} // it receives the counter before it owns the key
	}
	if w.window() > 0 {
		w.admitted[0], w.own[0] = 0, 0
	}
}
