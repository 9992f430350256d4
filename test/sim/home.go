package sim

import (
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/owner"
)

// poolCoordinator is the side of a call that lends. It calls reply at once, later or not at all.
type poolCoordinator interface {
	serve(region int, rs []federation.PoolRequest, reply func(gs []federation.PoolGrant, failed bool))
}

// home is a coordinator with its links to the regions.
type home struct {
	f      *federal
	id     uint32 // its federation.AuthorityID
	index  int
	links  []wanLink // by region
	store  *poolStore
	serves poolCoordinator
	down   int
	silent bool // a coordinator that is down does not even refuse connections
}

// wanLink is a region's link to a coordinator.
type wanLink struct {
	toCut, fromCut int // faults that block it
	delay, slow    time.Duration
}

func newHome(f *federal, i int) *home {
	h := &home{f: f, id: federation.AuthorityID(homeName(i)), index: i}
	h.store = newPoolStore(h)
	h.serves = h.store
	for range f.o.Federation.Regions {
		h.links = append(h.links, wanLink{delay: f.randomBelow(f.o.Federation.Delay)})
	}
	return h
}

// wanDelay returns the time that a message takes one way.
func (h *home) wanDelay(l *wanLink) time.Duration {
	f := h.f
	d := 500*time.Microsecond + l.delay + l.slow + f.randomBelow(f.o.Federation.Jitter)
	if !f.healed && f.chance(f.o.Federation.Reorder) {
		d += f.randomBelow(2 * time.Second)
	}
	return d
}

// deliver runs fn after the delay of a message: usually once, but not if the message is lost.
func (h *home) deliver(l *wanLink, cut *int, fn func()) {
	f := h.f
	times := 1
	switch p := &f.o.Federation; {
	case f.healed:
	case f.chance(p.Loss):
		f.books.touch(eventLoss)
		times = 0
	case f.chance(p.Double):
		f.books.touch(eventDouble)
		times = 2
	}
	for range times {
		f.after(h.wanDelay(l), func() {
			if *cut == 0 {
				fn()
			}
		})
	}
}

// send sends m's requests to their coordinators, one call to each.
func (f *federal) send(m *member, rs []owner.CoordinatorRequest) {
	for _, h := range f.homes {
		var mine []federation.PoolRequest
		for i := range rs {
			if rs[i].Authority == h.id {
				mine = append(mine, rs[i].Request)
			}
		}
		if len(mine) > 0 {
			h.call(m, mine)
		}
	}
}

// call carries one call of m.
func (h *home) call(m *member, rs []federation.PoolRequest) {
	f, l, sentAt, done := h.f, &h.links[m.w.region], m.clock(), false
	record := m.federated.link(h.id)
	for i := range rs {
		f.stats.count("pool: request")
		m.federated.rests.sent(&rs[i])
		record.unanswered = append(record.unanswered, sentRequest{rs[i].Key, rs[i].Seq, sentAt})
		f.trace("%s of %s -> %s  %04x boot %x seq %d window %d have %d left %d tokens %d", m.name(), regionName(m.w.region), homeName(h.index),
			rs[i].Key[0]>>48, rs[i].Boot, rs[i].Seq, rs[i].Window, rs[i].Have, rs[i].Left, rs[i].Tokens)
	}
	finish := func(gs []federation.PoolGrant, failed bool) {
		if m.gone {
			return
		}
		done = true
		m.w.after(0, m, func() { m.receiveGrants(h, time.Duration(m.clock()-sentAt), gs, failed) })
	}
	if f.o.Federation.Timeouts {
		m.w.after(callTimeout, m, func() {
			if !done {
				finish(nil, true)
			}
		})
	}
	h.deliver(l, &l.toCut, func() {
		reply := func(gs []federation.PoolGrant, failed bool) {
			h.deliver(l, &l.fromCut, func() { finish(gs, failed) })
		}
		switch {
		case h.down == 0:
			h.serves.serve(m.w.region, rs, reply)
		case !h.silent:
			reply(nil, true)
		}
	})
}

// receiveGrants processes the reply to a call.
func (m *member) receiveGrants(h *home, took time.Duration, gs []federation.PoolGrant, failed bool) {
	f, record := m.w.federal, m.federated.link(h.id)
	if failed {
		record.failed = true
		m.beforeResumed()
	} else if len(gs) > 0 { // without a grant, the coordinator remains away if it was
		record.replied(m.clock(), gs)
	}
	for i := range gs {
		g := &gs[i]
		f.trace("%s -> %s of %s  %04x seq %d window %d total %d used %d/%d left %v", homeName(h.index), m.name(), regionName(m.w.region),
			g.Key[0]>>48, g.Seq, g.Window, g.Total, g.Used, g.Usable, g.Left)
		if k, _ := f.ruleOf(g.Key); g.Total > 0 && m.trustsPast(h, k, g.Window) {
			f.books.window(k, g.Window).trusting = true
		}
		m.sabotageGrant(g)
		m.federated.rests.update(g, took)
	}
	f.mixHash(uint64(m.w.region), uint64(m.slot), uint64(len(gs)))
	m.apply(m.node.StepFederation(m.clock(), h.id, took, gs, failed))
}

// link returns the record of the calls to a coordinator.
func (x *federatedMember) link(id uint32) *callRecord {
	if x.links == nil {
		*x = federatedMember{
			links: map[uint32]*callRecord{}, rests: poolRests{}, unspent: map[owner.Key]poolUse{},
			spent: map[owner.Key]map[int64]uint64{},
		}
	}
	if x.links[id] == nil {
		x.links[id] = &callRecord{}
	}
	return x.links[id]
}

// stop makes the coordinator unreachable for a while: it refuses connections, or does not answer.
func (h *home) stop() {
	h.down, h.silent = h.down+1, h.f.rnd.IntN(2) == 0
	h.f.books.begin(eventDown)
	h.f.until(200*time.Millisecond+h.f.randomBelow(10*time.Second), func() {
		h.down--
		h.f.books.end(eventDown)
	})
}

// heal ends all faults of the coordinator and its links.
func (h *home) heal() {
	h.down = 0
	for i := range h.links {
		h.links[i] = wanLink{delay: h.links[i].delay}
	}
}

// poolRests contains what was left of each pool by the newest reply that a member has accepted, at most.
type poolRests map[owner.Key]*poolRest

type poolRest struct {
	seq    uint64 // of the newest request
	window int64
	rest   uint64
}

func (p poolRests) sent(r *federation.PoolRequest) {
	if p[r.Key] == nil {
		p[r.Key] = &poolRest{}
	}
	p[r.Key].seq = r.Seq
}

// update processes a reply, which the member may have given up if it took long.
func (p poolRests) update(g *federation.PoolGrant, took time.Duration) {
	x, rest := p[g.Key], max(g.Usable, g.Used)-g.Used
	if x == nil || g.Seq != x.seq {
		return
	}
	if took >= 100*time.Millisecond && g.Window == x.window {
		rest = max(rest, x.rest)
	}
	x.window, x.rest = g.Window, rest
}
