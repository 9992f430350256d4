package sim

import (
	"math/rand/v2"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// expandChoices returns the options of a seed whose rules choose how they are decided: their policies for partitions
// differ from the members', some are static, and partitions are frequent. Every other seed has leases.
func expandChoices(seed uint64) options {
	expand := expandBase
	if seed%2 == 0 {
		expand = expandLeases
	}
	o := expand(seed)
	r := rand.New(rand.NewPCG(seed, 0xc401ce))
	o.Choices = true
	o.Policy = policy.Partition(r.IntN(3))
	if !o.Leases.Calm && !o.Leases.Wide && r.IntN(2) == 0 {
		o.Partitions = 1 + r.IntN(2)
	}
	return o
}

// choose makes the choices of r: its policy for partitions and whether it is static, which later versions of the rule
// keep, and its watermarks.
func (w *world) choose(r *rule) {
	if !w.o.Choices {
		return
	}
	r.partition = policy.PartitionChoice(w.rnd.IntN(4))
	r.knobs.Partition = r.partition
	switch {
	case w.chance(0.25):
		r.by, r.strict = policy.Static, false
	case r.by == policy.Approximate:
		r.knobs.Watermark, r.knobs.LocalWatermark = uint8(w.rnd.IntN(3)*30), uint8(w.rnd.IntN(3)*40)
	}
}

// policyOf returns the policy for partitions of a's rule.
func (o *oracle) policyOf(a *account) policy.Partition { return a.partition.Or(o.w.o.Policy) }

// mayContinueAlone reports whether a part of the cluster may admit complete limits without a majority.
func (o *options) mayContinueAlone() bool { return o.Policy == policy.PartAvailable || o.Choices }

// divided records how the members that admit hits of one window by a static rule divide the limit.
type divided struct {
	ring  uint64 // fingerprint of the first member's ring
	nref  int
	known bool
	mixed bool // not all decisions were made by members of that ring, with that N_ref, and clearly in that window
	share map[*member]uint64
	most  uint64 // a member's share, at most
	sum   uint64
}

// decidedStatic checks a decision by a member's own share: no member admits more than its share, and together they
// admit no more than the limit while all of them use one ring.
func (o *oracle) decidedStatic(q *request, v *decision) {
	a := o.account(q)
	if q.req.Op != owner.Take || v.result.Over || q.req.Hits == 0 || a.rule.Algorithm != limit.FixedWindow {
		return
	}
	x := o.span(a, v)
	x.limit = max(x.limit, uint64(q.req.Rule.Limit))
	o.w.stats.count("static: admitted")
	d, r := &x.divided, v.by.view.Ring
	if r == nil || v.by.stepped || a.nearEdge(x, v.latest) {
		d.mixed = true
		return
	}
	n := max(1, v.by.view.NRef, r.Len())
	if !d.known {
		*d = divided{ring: r.Fingerprint(), nref: n, known: true, mixed: d.mixed, share: map[*member]uint64{}}
	}
	d.mixed = d.mixed || d.ring != r.Fingerprint() || d.nref != n || r.Index(slotID(v.by.slot)) < 0
	for other := range d.share { // an earlier boot on the same ring
		d.mixed = d.mixed || other != v.by && other.slot == v.by.slot
	}
	d.share[v.by] += q.req.Hits
	d.sum += q.req.Hits
	d.most = max(d.most, x.limit/uint64(n)+1)
	switch {
	case d.share[v.by] > d.most:
		o.w.fail("static: request #%d on %04x: %s has admitted %d in window %d, and a share of %d is %d", q.id,
			a.key[0]>>48, v.by.name(), d.share[v.by], x.index, x.limit, d.most)
	case !d.mixed && d.sum > x.limit:
		o.w.fail("static: request #%d on %04x: %d admitted in window %d, limit %d, by one ring of N_ref %d", q.id,
			a.key[0]>>48, d.sum, x.index, x.limit, n)
	}
	if !d.mixed && d.sum == x.limit {
		o.w.stats.count("static: windows used up")
	}
}

// nearEdge reports whether t is so close to an end of x that the decision may belong to another window.
func (a *account) nearEdge(x *span, t int64) bool {
	return t-a.rule.End(x.index-1) < int64(limit.ClockTolerance) || x.end-t < int64(limit.ClockTolerance)
}
