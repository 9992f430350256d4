package sim

import "github.com/keyward/keyward/owner"

// checkChain checks that the decisions on a counter form one chain: each leads from one count to the next, and no
// count is left twice.
func (o *oracle) checkChain(a *account, x *span, q *request, v *decision) {
	x.balance[v.result.Before]++
	x.balance[v.result.After]--
	if q.req.Op != owner.Take {
		return
	}
	if other, twice := x.leftAt[v.result.Before]; twice && x.faults == 0 && !x.refunds && !o.clockFarOff(x) {
		o.w.fail("I3, I6: requests #%d and #%d on %04x were both decided at count %d, the second by %s", other, q.id,
			a.key[0]>>48, v.result.Before, v.by.name())
	}
	x.leftAt[v.result.Before] = q.id
}
