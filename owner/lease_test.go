package owner

import (
	"fmt"
	"time"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/lending"
	"github.com/keyward/keyward/ring"
)

func many(n int) (ids []ring.ID) {
	for i := range n {
		ids = append(ids, ring.ID(fmt.Sprintf("m%02d", i)))
	}
	return ids
}

// leased returns a request of a rule that requires leases.
func leased(i int, lim uint32, window time.Duration) Request {
	req := ask(i, lim, window, 1)
	req.Mechanism = policy.ByLease
	return req
}

// tally counts the admitted hits, and how they were decided.
type tally struct {
	admitted, asked, local, fallback uint64
}

func (c *tally) count(req *Request) func(Result) {
	return func(res Result) {
		c.asked++
		if res.Path == Leased {
			c.local++
		}
		if res.Path == Fallback {
			c.fallback++
		}
		if !res.Over {
			c.admitted += req.Hits
		}
	}
}

// facts returns the sum of the lease statistics of all members.
func facts(w *network) (f lending.LeaseStats) {
	for id, n := range w.nodes {
		g := n.Stats(w.clock(id)).Lease
		f.Add(&g)
		f.Outstanding += g.Outstanding
	}
	return f
}
