package leasetest

import (
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// Counter is the least Grantor: one member's counters, with nobody to inherit them. It is made for reading and as the
// other side of holders' tests; it lends windows only. The zero Counter is empty.
type Counter struct {
	keys map[[2]uint64]*account
}

type account struct {
	count limit.State
	book  lease.Book
}

// writer is who charges.
const writer = 3

func (c *Counter) account(key [2]uint64) *account {
	if c.keys == nil {
		c.keys = map[[2]uint64]*account{}
	}
	a := c.keys[key]
	if a == nil {
		a = &account{}
		c.keys[key] = a
	}
	return a
}

// Healthy says that a Counter always decides.
func (c *Counter) Healthy(int64) bool { return true }

// Charge takes hits.
func (c *Counter) Charge(now int64, r *lease.GrantRequest, hits uint64) limit.Decision {
	return r.Rule.Take(&c.account(r.Key).count, now, writer, hits)
}

// Lease answers a request: credit what is back, size what is lent, charge it, note it, and only then answer.
func (c *Counter) Lease(now int64, holder ring.ID, inst uint64, r *lease.GrantRequest) (g lease.Grant, ok bool) {
	a := c.account(r.Key)
	window := r.Rule.Index(now)
	if r.Rule.Algorithm.Bucket() {
		return lease.Grant{}, false
	}
	credit, ok := a.book.Receive(now, holder, inst, r, window)
	if !ok {
		return lease.Grant{}, false
	}
	r.Rule.Refund(&a.count, now, writer, credit)
	n, last := a.book.Size(now, holder, r, r.Rule.Depth(), r.Rule.Used(&a.count, now))
	d := r.Rule.Take(&a.count, now, writer, n)
	g = lease.Grant{
		Key: r.Key, Seq: r.Seq, Window: window, Total: a.book.Grant(now, holder, window, n), Used: d.After,
		Limit: r.Rule.Depth(), Left: time.Duration(r.Rule.End(window) - now), Flags: lease.Hot,
	}
	if last {
		g.Flags |= lease.Last
	}
	if d.After >= uint64(r.Rule.Depth()) && n == 0 {
		g.Flags |= lease.Denied
	}
	return g, true
}
