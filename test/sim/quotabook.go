package sim

import (
	"time"

	"github.com/keyward/keyward/internal/assign/lots"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
)

// quotaBook is a member's ledger, driven as package assign drives it.
type quotaBook struct {
	m      *member
	ledger *quota.Ledger
	lots   []lots.HeldLot
	note   lots.Note
	noting bool
	asking int   // requests for hits without an answer
	ended  bool  // the member has left: it assigns nothing
	wakeAt int64 // by the member's clock
	open   map[quota.Stream]*quotaEnvoy
}

func newQuotaBook(m *member) *quotaBook {
	return &quotaBook{
		m: m, ledger: quota.NewLedger(quota.Options{Shared: true}), wakeAt: noTime, open: map[quota.Stream]*quotaEnvoy{},
	}
}

const noTime = int64(1) << 62

// drive does what is due, and schedules the rest.
func (b *quotaBook) drive() {
	m := b.m
	if b.ended {
		return
	}
	if m.view.Ring != nil { // a member that has just started has none
		b.ledger.SetMembers(m.view.Ring.Len())
	}
	for b.ledger.Next() <= m.clock() {
		work := b.ledger.Tick(m.clock())
		for _, r := range work.Responses {
			if e := b.open[r.Stream]; e != nil {
				e.respond(b, r)
			}
		}
		for _, h := range work.Asks {
			b.ask(h)
		}
		b.giveBack(work.Returns, func(r owner.Request) { m.askQuota(r, func(*decision) {}) })
		for _, d := range work.Demands {
			b.announce(d)
		}
	}
	if next := b.ledger.Next(); next < b.wakeAt && next < noTime {
		b.wakeAt = next
		m.w.after(time.Duration(next-m.clock()), m, func() {
			b.wakeAt = noTime
			b.drive()
		})
	}
}

// giveBack returns hits to the owner. It asks for each settlement.
func (b *quotaBook) giveBack(returns []quota.WindowHits, ask func(owner.Request)) {
	m := b.m
	for _, h := range returns {
		settlements, _ := lots.Return(&b.lots, m.w.quota.request, m.clock(), h)
		for _, s := range settlements {
			m.w.stats.count("quota: hits returned")
			ask(s.Request)
		}
	}
}

// finish gives back what no Envoy can spend, and the demand, as a member does that has left, and then calls done.
func (b *quotaBook) finish(done func()) {
	m := b.m
	if b.ended = true; b.asking > 0 || b.noting {
		m.w.after(10*time.Millisecond, m, func() { b.finish(done) })
		return
	}
	waits := 1
	answered := func(v *decision) {
		if waits--; waits == 0 {
			done()
		}
	}
	ask := func(r owner.Request) {
		waits++
		m.askQuota(r, answered)
	}
	returns := b.ledger.Finish(m.clock())
	for range returns {
		m.w.stats.count("quota: hits given back by a member that has left")
	}
	b.giveBack(returns, ask)
	if b.note.Current(m.clock()).At != 0 {
		ask(lots.DemandRequest(&m.w.quota.request, owner.Release, b.note))
	}
	answered(nil)
}

func (b *quotaBook) ident() claim.Ident {
	b.m.w.requests++
	return claim.Ident{b.m.w.requests, 0x407a}
}

// ask has the owner charge hits.
func (b *quotaBook) ask(h quota.WindowHits) {
	m, w := b.m, b.m.w
	g := quota.AskResult{WindowHits: quota.WindowHits{Key: h.Key, Window: h.Window}, Left: quota.LeftUnknown}
	q, l, ok := lots.Reserve(w.quota.request, h, m.clock(), b.ident())
	if !ok {
		b.ledger.Granted(m.clock(), g)
		return
	}
	b.asking++
	m.askQuota(q, func(v *decision) {
		b.asking--
		charged, release, left := lots.Charged(&q, &l, &v.result, m.clock())
		if release {
			w.stats.count("quota: charge released")
			m.askQuota(lots.Settle(w.quota.request, owner.Release, 0, l.ID), func(*decision) {})
		}
		if g.Left = left; charged || w.bug == bugUnchargedLot {
			w.stats.count("quota: charged")
			if w.elsewhere(v) {
				w.stats.count("quota: charged by a part of the cluster")
				w.quota.excess[l.Window] += l.Hits
			}
			g.Hits = l.Hits
			b.lots = append(b.lots, l)
		}
		b.ledger.Granted(m.clock(), g)
		b.drive()
	})
}

// announce gives the owner the member's demand.
func (b *quotaBook) announce(d quota.KeyDemand) {
	m, r := b.m, &b.m.w.quota.request
	if b.noting {
		return
	}
	b.noting = true
	before, next := b.note.Current(m.clock()), lots.NewNote(r, d.Hits, m.clock(), b.ident())
	make := func() {
		m.askQuota(lots.DemandRequest(r, owner.Reserve, next), func(v *decision) {
			all, kept, ended := uint64(0), before, next
			if !v.result.Over && v.result.Authority == owner.Full {
				all, kept, ended = lots.Demand(r, max(next.Parts, v.result.After-min(v.result.After, before.Parts))), next, before
			}
			b.noted(kept, all)
			if ended.At != 0 {
				m.askQuota(lots.DemandRequest(r, owner.Release, ended), func(*decision) {})
			}
		})
	}
	if before.At == 0 || !before.Near(&next) {
		make()
		return
	}
	m.askQuota(lots.DemandRequest(r, owner.Extend, before), func(v *decision) {
		if v.result.Over || v.result.Authority != owner.Full {
			make()
			return
		}
		before.At = next.At
		b.noted(before, lots.Demand(r, max(before.Parts, v.result.After)))
	})
}

func (b *quotaBook) noted(n lots.Note, all uint64) {
	b.note, b.noting = n, false
	o := &b.m.w.o.Quota
	b.ledger.CallsDemanded(b.m.clock(), quotaKey, uint64(o.Calls*float64(o.Limit)))
	b.ledger.Demanded(b.m.clock(), quotaKey, all)
	b.drive()
}
