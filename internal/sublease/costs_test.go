package sublease

import (
	"fmt"
	"testing"
	"time"
)

// costRig is a key whose requests have costs: its owner, and the holds of its lots that the owner has.
type costRig struct {
	*desk
	limit, charged, window uint64
	admitted, unreturned   uint64
	holds                  []costHold
}

type costHold struct {
	hits  uint64
	until int64
}

func newCostRig(t *testing.T, l Limit) *costRig {
	return &costRig{desk: newDesk(t, l), limit: uint64(l.Hits)}
}

// pass lets the time pass. The owner grants lots, and takes back what comes while its hold lives.
func (r *costRig) pass(after time.Duration) {
	for end := r.now + int64(after); r.now < end; {
		r.now = min(end, r.now+int64(TickInterval))
		if w := uint64(r.desk.limit.rule().Index(r.now)); w != r.window {
			r.window, r.charged, r.holds = w, 0, nil
		}
		for range 2 {
			w := r.Tick(r.now)
			for _, h := range w.Returns {
				if uint64(h.Window) == r.window {
					r.giveBack(h.Hits)
				}
			}
			for _, h := range append([]LotAsk(nil), w.Asks...) {
				got := h.KeyHits
				if r.charged+h.Hits > r.limit {
					got.Hits = 0
				}
				if got.Hits > 0 {
					r.charged += got.Hits
					r.holds = append(r.holds, costHold{got.Hits, r.now + int64(h.Life)})
				}
				r.Granted(r.now, Lot{KeyHits: got, Left: r.limit - min(r.limit, r.charged), Known: true})
			}
		}
	}
}

func (r *costRig) giveBack(hits uint64) {
	for i := len(r.holds) - 1; i >= 0 && hits > 0; i-- {
		h := &r.holds[i]
		if h.until > r.now {
			n := min(h.hits, hits)
			h.hits, hits, r.charged = h.hits-n, hits-n, r.charged-n
		}
	}
	r.unreturned += hits
}

// request makes a request, by a call without enough tokens.
func (r *costRig) request(cost uint32) {
	if r.tokens() >= cost {
		r.spend(cost)
		r.admitted += uint64(cost)
		return
	}
	if r.Interest(r.now, 1, print, cost) {
		r.Lease(r.now, 1, print, key, r.desk.limit)
	}
	if r.charged+uint64(cost) <= r.limit {
		r.admitted += uint64(cost)
	}
	r.charged += uint64(cost)
}

// TestCostsAboveLots makes requests with costs, for which lots may be too small, at 0.9 and 2 times the limit. Nearly as much is
// admitted as by calls alone, and lots come back while their holds live.
func TestCostsAboveLots(t *testing.T) {
	for _, c := range []struct {
		cost  uint32
		every time.Duration
	}{
		{1, 50 * time.Millisecond}, {10, time.Second}, {10, 200 * time.Millisecond}, {100, time.Second}, {100, 300 * time.Millisecond}, {1000, time.Second}, {1000, 100 * time.Millisecond},
		{30_000, time.Second}, {30_000, 200 * time.Millisecond},
	} {
		for _, load := range []float64{0.9, 2} {
			const window = time.Minute
			l := Limit{uint32(float64(c.cost) * float64(window) / float64(c.every) / load), window}
			if !l.Eligible() {
				continue
			}
			t.Run(fmt.Sprintf("%d hits each %v, %v times the limit", c.cost, c.every, load), func(t *testing.T) {
				r := newCostRig(t, l)
				r.pass(time.Millisecond)
				for range 5 * int(window/c.every) {
					r.request(c.cost)
					r.pass(c.every)
				}
				each := l.Hits / c.cost * c.cost // admitted by calls
				if load < 1 {
					each = c.cost * uint32(window/c.every)
				}
				part := float64(r.admitted) / (5 * float64(each))
				t.Logf("limit %d: %.3f of what calls admit; %d hits came back too late", l.Hits, part, r.unreturned)
				if part < 0.98 || r.unreturned > 100 {
					t.Errorf("%.3f of what calls admit, %d hits came back too late", part, r.unreturned)
				}
			})
		}
	}
}
