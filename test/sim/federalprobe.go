package sim

import (
	"time"

	"github.com/keyward/keyward/owner"
)

// probe is the liveness phase: each region's members agree about the owner of each key, the coordinators are in use,
// and all escrows are returned.
func (f *federal) probe() {
	if f.failure != "" {
		return
	}
	f.checkReturned()
	// A region without requests does not try a coordinator that was away: the first request does that needs it, because
	// nothing is left of what came from an earlier owner of the key.
	f.sendProbes()
	f.sendProbes()
	probes := f.sendProbes()
	for _, w := range f.regions {
		if f.failure == "" {
			f.probed(w, probes[w])
		}
	}
}

// sendProbes sends a request for each key to each member, and returns them when they are decided.
func (f *federal) sendProbes() map[*world][]*request {
	probes := map[*world][]*request{}
	for _, w := range f.regions {
		w.oracle.probing = true
		for k := range w.keys {
			r := &w.rules[0][k]
			for _, m := range w.running() {
				q := &request{from: m, sentAt: w.now, deadline: w.now + int64(3*time.Second)}
				q.req = owner.Request{Key: r.digest, RingPos: r.owner, Rule: r.limit, Hits: 1, Waiter: q}
				w.setFederation(&q.req, k)
				probes[w] = append(probes[w], q)
				w.after(time.Duration(q.deadline-w.now), m, q.expire)
				w.after(0, m, q.decide)
			}
		}
	}
	f.run(3500 * time.Millisecond)
	return probes
}

// probed checks the decisions of the liveness phase.
func (f *federal) probed(w *world, probes []*request) {
	by := map[owner.Key]*member{}
	for _, q := range probes {
		switch v := q.decision; {
		case v == nil:
			f.fail("F8: %s of %s does not answer for %04x", q.from.name(), regionName(w.region), q.req.Key[0]>>48)
		case v.result.Authority != owner.Full && v.result.Authority != owner.Escrow:
			if f.layouts.late() && (v.result.Authority == owner.Closed || v.result.Authority == owner.Open) {
				continue // processes that have read the layout late or never refuse each other, until windows have ended
			}
			if f.books.farClocks() {
				continue // requests wait from the end of a window by one clock to its end by the other
			}
			f.fail("F8: after all faults, %s of %s decides %04x with authority %d", v.by.name(), regionName(w.region), q.req.Key[0]>>48,
				v.result.Authority)
		case by[q.req.Key] != nil && by[q.req.Key] != v.by:
			f.fail("F8: %s and %s of %s both decide %04x", by[q.req.Key].name(), v.by.name(), regionName(w.region), q.req.Key[0]>>48)
		default:
			by[q.req.Key] = v.by
		}
	}
}

// checkReturned checks that, a while after the last request, no member has unspent hits, and none has requests that wait.
func (f *federal) checkReturned() {
	for _, w := range f.regions {
		for _, m := range w.running() {
			if m.node.FlushIn() < flushEvery+time.Millisecond {
				f.fail("F8: requests are still pending at %s of %s", m.name(), regionName(w.region))
			}
			for _, r := range w.rules[0] {
				if b, ok := m.node.EscrowBalance(r.digest); ok && b.Left > 0 {
					f.fail("F8: %s of %s still has %d of window %d of %04x", m.name(), regionName(w.region), b.Left, b.Window, r.digest[0]>>48)
				}
			}
		}
	}
}
