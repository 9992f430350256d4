package sim

import "slices"

// left records that a member has left: the members of its ring have all of its counters. If that is empty, what only it
// knew is lost, and if it was the last member, the next one starts a cluster with the full limit.
func (o *oracle) left(m *member) {
	alone, next := m.view.Ring.Len() == 0, (*member)(nil)
	for _, other := range o.w.running() {
		if other == m || other.view.Ring == nil {
			continue
		}
		if other.view.Ring.Len() > 0 {
			alone, next = false, other
			break
		}
		alone = alone && other.table[other.slot].state == joining
	}
	for _, a := range o.accountOrder {
		x := o.newest(a)
		if x != nil && (alone || m.view.Ring.Len() == 0 && x.knownOnlyTo(m)) {
			o.forgotten(a, x)
		}
	}
	if next != nil {
		o.current(func(a *account, x *span) {
			if x.last == m || x.successor == m {
				o.setSuccessors(a, x, next)
			}
		})
	}
}

// newest returns the newest window of a that still counts, or nil. Its holders have the whole counter.
func (o *oracle) newest(a *account) *span {
	for _, x := range slices.Backward(a.spans) {
		if a.counts(x, o.w.now) {
			return x
		}
	}
	return nil
}

// knownOnlyTo reports whether m has the counter of x and no other running member does.
func (x *span) knownOnlyTo(m *member) bool {
	holders := []*member{x.last, x.successor, x.spare}
	return slices.Contains(holders, m) && !slices.ContainsFunc(holders, func(p *member) bool { return p != nil && p != m && !p.gone })
}

// forgotten records that no member knows the counter of a anymore, nor what is in flight: it starts at 0. newest is its
// newest window that counts.
func (o *oracle) forgotten(a *account, newest *span) {
	o.w.stats.count("fault: counter forgotten")
	for _, x := range a.spans {
		if x == newest || x.open(o.w.now) {
			n := x.mayLose(o.w.now)
			x.allowance, x.forgotten = x.allowance+n, x.forgotten+n
			x.faults |= faultCrash // the counters start at 0
		}
	}
	for _, h := range a.holds {
		if h.byOwner { // the member whose share has admitted a hold may still report it
			h.low = 0
		}
	}
}

// setSuccessors records which members know x after a graceful leave, according to m's ring.
func (o *oracle) setSuccessors(a *account, x *span, m *member) {
	for v := len(o.w.rules) - 1; v >= 0; v-- {
		for _, r := range o.w.rules[v] {
			if r.digest != a.key {
				continue
			}
			x.last = o.w.slots[slotOf(m.view.Ring.At(m.view.Ring.Owner(r.owner)).ID)].now
			if x.spare = nil; o.w.o.Zones > 0 {
				if i := m.view.Ring.ZoneReplica(r.owner); i >= 0 {
					x.spare = o.w.slots[slotOf(m.view.Ring.At(i).ID)].now
				}
			}
			if i := m.view.Ring.Successor(r.owner); i >= 0 {
				x.successor = o.w.slots[slotOf(m.view.Ring.At(i).ID)].now
			}
			return
		}
	}
}
