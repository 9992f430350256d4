package peer

import (
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
)

const (
	maxDoubts = 1024               // requests of one link
	doubtLife = int64(maxDeferral) // nanoseconds for which a late reply is expected
)

// doubt is a group that this member has decided from its local share, because the owner was silent until the deadline. If
// the owner replies after all that it has charged a request, the request is charged twice: see owner.Node.TakeBack.
type doubt struct {
	call *call           // holds its mu until the share has decided
	at   int64           // when it decided
	reqs []owner.Request // all of the group; those without hits are not given back
}

// doubt returns the doubt of group g, which ends with status, or nil if no request of it can be charged twice.
func (c *call) doubt(g *forwardGroup, status forwardStatus) *doubt {
	if status != forwardTimeout || c.set != nil || c.stopStatus != nil {
		return nil
	}
	d := &doubt{call: c, at: c.p.clock.at(c.now), reqs: make([]owner.Request, len(g.index))}
	any := false
	for n, i := range g.index {
		if q := &c.reqs[i]; owner.ChargesTwice(q) {
			d.reqs[n], any = *q, true
			d.reqs[n].Waiter, d.reqs[n].LeaseTerms = nil, nil
		}
	}
	if !any {
		return nil
	}
	return d
}

// addDoubt adds d, of the group with that id. It is called with l.mu held.
func (l *link) addDoubt(id uint64, d *doubt) {
	if l.doubted+len(d.reqs) > maxDoubts {
		for id, x := range l.doubts {
			if d.at-x.at > doubtLife {
				l.takeDoubt(id)
			}
		}
		if l.doubted+len(d.reqs) > maxDoubts {
			return
		}
	}
	if l.doubts == nil {
		l.doubts = map[uint64]*doubt{}
	}
	l.doubts[id] = d
	l.doubted += len(d.reqs)
}

// takeDoubt removes and returns the doubt of the group with that id, or nil. It is called with l.mu held.
func (l *link) takeDoubt(id uint64) *doubt {
	d := l.doubts[id]
	if d != nil {
		delete(l.doubts, id)
		l.doubted -= len(d.reqs)
	}
	return d
}

// settle processes the late reply to d's group. It is called without locks.
func (d *doubt) settle(h replyHead, records *wire.Reader) error {
	if h.outcome != groupServed {
		return nil
	}
	if h.count != len(d.reqs) {
		return errCount
	}
	d.call.mu.Lock() // until the share has decided
	p := d.call.p
	d.call.mu.Unlock()
	now := p.clock.now()
	for i := range d.reqs {
		var r owner.Result
		if err := parseResult(nextRecord(records), &r); err != nil {
			return err
		}
		if q := &d.reqs[i]; q.Hits > 0 && r.Kind == owner.Decided && r.Authority == owner.Full && !r.Over {
			p.o.Node.TakeBack(now, d.at, q)
		}
	}
	p.decisionMade()
	return nil
}
