// Package leasetest holds implementations of lease.Grantor to its conditions.
package leasetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// Harness is a Grantor under test, with nothing counted or lent yet.
type Harness interface {
	lease.Grantor
	// Charge asks the grantor itself for hits on the key that r names, as a question that needs no lease; 0 hits show the
	// count that stands.
	Charge(now int64, r *lease.GrantRequest, hits uint64) limit.Decision
}

// Start is the time that the tests begin at: the first instant of a minute.
const Start = 1_800_000_000 * int64(time.Second)

// rule is what the tests lend: at most 50 hits may be out.
var rule = limit.Rule{Window: time.Minute, Limit: 1000}

// Run tests Grantors made by fresh: each test begins with a new one.
func Run(t *testing.T, fresh func() Harness) {
	for _, c := range []struct {
		name string
		run  func(*bench)
	}{
		{"charges before it answers", chargesFirst},
		{"answers a request once", answersOnce},
		{"credits what comes back once", creditsOnce},
		{"credits lost grants", creditsLost},
		{"keeps one lease a holder", oneLease},
		{"takes nothing back in another window", otherWindow},
		{"takes nothing back of another boot", otherBoot},
		{"takes nothing back of another grantor", otherGrantor},
		{"lends parts when little is left, and no more than the limit", partial},
		{"lends to fifty", fifty},
		{"follows a raised and a lowered limit", otherLimit},
		{"never lends a log", neverALog},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &bench{T: t, Harness: fresh(), now: Start, rule: rule}
			if !b.Healthy(b.now) {
				t.Fatal("not healthy")
			}
			c.run(b)
		})
	}
}

// bench is one test.
type bench struct {
	*testing.T
	Harness
	now  int64
	seq  uint64
	rule limit.Rule
}

// holder is what a holder says and has.
type holder struct {
	id         ring.ID
	inst       uint64
	window     int64
	have, left uint64
}

// request is h asking for more, newer than all before.
func (b *bench) request(h *holder) *lease.GrantRequest {
	b.seq++
	return &lease.GrantRequest{
		Key: [2]uint64{1, 2}, Owner: 3, Rule: b.rule, Always: true,
		Seq: b.seq, Window: h.window, Have: h.have, Left: h.left, Want: true, Demand: 1_000_000,
	}
}

// used is the count that stands.
func (b *bench) used() uint64 { return b.Charge(b.now, b.request(&holder{}), 0).Before }

// ask is h asking and getting the answer.
func (b *bench) ask(h *holder) lease.Grant {
	b.Helper()
	g, ok := b.Lease(b.now, h.id, h.inst, b.request(h))
	if !ok {
		b.Fatalf("%s is not answered", h.id)
	}
	h.take(g)
	return g
}

func (h *holder) take(g lease.Grant) {
	if g.Window != h.window {
		h.window, h.have, h.left = g.Window, 0, 0
	}
	h.left += g.Total - h.have
	h.have = g.Total
}

// giveBack is all that h has not spent coming back, wanting nothing.
func (b *bench) giveBack(h *holder) *lease.GrantRequest {
	h.have, h.left = h.have-h.left, 0
	r := b.request(h)
	r.Want = false
	return r
}

func (b *bench) want(what string, got, want uint64) {
	b.Helper()
	if got != want {
		b.Errorf("%s: %d, want %d", what, got, want)
	}
}

func chargesFirst(b *bench) {
	h := &holder{id: "a", inst: 1}
	b.Charge(b.now, b.request(h), 7)
	g := b.ask(h)
	if h.left == 0 || h.left > 50 {
		b.Fatalf("%d lent of 50", h.left)
	}
	b.want("used", b.used(), 7+h.left)
	b.want("used, in the grant", g.Used, 7+h.left)
	b.want("limit", uint64(g.Limit), 1000)
	if g.Left <= 0 || g.Left > time.Minute {
		b.Errorf("%v left of the window", g.Left)
	}
}

func answersOnce(b *bench) {
	h := &holder{id: "a", inst: 1}
	r := b.request(h)
	g, _ := b.Lease(b.now, h.id, h.inst, r)
	h.take(g)
	if again, ok := b.Lease(b.now, h.id, h.inst, r); ok && again.Total != g.Total {
		b.Errorf("the same request is answered with %d, then %d", g.Total, again.Total)
	}
	b.want("used", b.used(), h.left)
}

func creditsOnce(b *bench) {
	h := &holder{id: "a", inst: 1}
	b.ask(h)
	h.left -= 5
	back := b.giveBack(h)
	for range 3 {
		b.Lease(b.now, h.id, h.inst, back)
		b.want("used", b.used(), 5)
	}
	b.ask(h)
	used := b.used()
	b.Lease(b.now, h.id, h.inst, back) // late
	b.want("used after a late return", b.used(), used)
}

func creditsLost(b *bench) {
	h := &holder{id: "a", inst: 1}
	b.ask(h)
	h.left = 0
	spent := h.have
	for range 5 {
		b.Lease(b.now, h.id, h.inst, b.request(h)) // no answer arrives
	}
	b.ask(h)
	b.want("used", b.used(), h.have)
	if h.have == spent {
		b.Error("nothing more is lent")
	}
}

func oneLease(b *bench) {
	h := &holder{id: "a", inst: 1}
	b.ask(h)
	b.Lease(b.now, h.id, h.inst, b.request(h)) // lost
	b.Lease(b.now, h.id, h.inst, b.giveBack(h))
	b.want("used when all is back", b.used(), 0)
}

func otherWindow(b *bench) {
	h := &holder{id: "a", inst: 1}
	b.ask(h)
	old := *h
	b.now += int64(rule.Window)
	b.Charge(b.now, b.request(h), 100)
	b.Lease(b.now, h.id, h.inst, b.giveBack(h))
	b.want("used in the next window", b.used(), 100)
	h = &old
	if g := b.ask(h); g.Window <= old.window && g.Total > 0 && h.have != g.Total {
		b.Errorf("the balance goes on: %+v", g)
	}
	b.want("used with a lease of the next window", b.used(), 100+h.have)
	b.Lease(b.now, h.id, h.inst, b.giveBack(h))
	b.want("used when that is back", b.used(), 100)
}

func otherBoot(b *bench) {
	h := &holder{id: "a", inst: 1}
	b.ask(h)
	stranded := h.have
	next := &holder{id: "a", inst: 3}
	b.ask(next)
	b.want("used", b.used(), stranded+next.have)
	b.Lease(b.now, next.id, next.inst, b.giveBack(next))
	b.want("used when the boot's own is back", b.used(), stranded)
}

func otherGrantor(b *bench) {
	h := &holder{id: "a", inst: 1}
	g := b.ask(&holder{id: "b", inst: 1})
	lent := b.used()
	h.window, h.have, h.left = g.Window, 40, 40 // from whoever decided before
	b.ask(h)
	b.Lease(b.now, h.id, h.inst, b.giveBack(h))
	b.want("used", b.used(), lent)
}

func partial(b *bench) {
	h := &holder{id: "a", inst: 1}
	b.Charge(b.now, b.request(h), 960)
	last := false
	for range 100 {
		h.left = 0 // spent
		g := b.ask(h)
		last = last || g.Flags&lease.Last != 0
		if b.used() > 1000 {
			b.Fatalf("%d used", b.used())
		}
	}
	b.want("used", b.used(), 960+h.have)
	if !last || h.have == 0 {
		b.Errorf("%d lent of 40; told that these were the last: %v", h.have, last)
	}
	b.Charge(b.now, b.request(h), 1000-b.used())
	if g := b.ask(h); g.Flags&lease.Denied == 0 || g.Left <= 0 || g.Total != h.have {
		b.Errorf("at the limit: %+v", g)
	}
}

func fifty(b *bench) {
	var hs []*holder
	for i := range 50 {
		hs = append(hs, &holder{id: ring.ID(fmt.Sprint("h", i)), inst: 1})
	}
	for range 40 {
		out := uint64(0)
		for _, h := range hs {
			b.ask(h)
			out += h.left
		}
		if out > 50 || b.used() > 1000 {
			b.Fatalf("%d out of 50, %d used of 1000", out, b.used())
		}
		for _, h := range hs {
			h.left = 0
		}
	}
	sum := uint64(0)
	for _, h := range hs {
		sum += h.have
	}
	b.want("used", b.used(), sum)
	if sum < 900 {
		b.Errorf("only %d lent", sum)
	}
}

func otherLimit(b *bench) {
	h := &holder{id: "a", inst: 1}
	b.Charge(b.now, b.request(h), 1000)
	b.rule.Limit = 2000
	if b.ask(h); h.left == 0 {
		b.Error("nothing lent of a raised limit")
	}
	had := h.have
	h.left = 0
	b.rule.Limit = 500
	b.ask(h)
	b.want("lent of a lowered limit", h.have, had)
}

func neverALog(b *bench) {
	b.rule.Algorithm = limit.SlidingLog
	h := &holder{id: "a", inst: 1}
	if g, ok := b.Lease(b.now, h.id, h.inst, b.request(h)); ok && g.Total > 0 {
		b.Errorf("%+v", g)
	}
	b.want("used", b.used(), 0)
}
