package peer

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

const (
	// maxSettles is the most settlements that are repeated at a time.
	maxSettles = 1 << 16
	// settleBatch is the most settlements in one call, and settleTime how long the call may take.
	settleBatch = 256
	settleTime  = time.Second
	// maxRetries is the most calls of a tick.
	maxRetries = 16
	// A settlement is sent again after half of the time for which it has failed, within these bounds, in nanoseconds.
	settleAfter  = int64(200 * time.Millisecond)
	settleWithin = int64(time.Second)
)

// settles repeats the settlements of claims that no owner has confirmed. A settlement that is lost leaves hits charged;
// one that comes twice has no further effect.
type settles struct {
	mu     sync.Mutex
	queue  []queuedSettle // the oldest first
	active int            // in calls that are not decided

	repeated, lost prometheus.Counter
}

// queuedSettle is a settlement to be sent again at due.
type queuedSettle struct {
	request owner.Request
	due     int64
}

func (s *settles) init(f promauto.Factory) {
	s.repeated = f.NewCounter(prometheus.CounterOpts{
		Name: "keyward_holds_settlements_repeated_total",
		Help: "Settlements of holds that no owner had confirmed in time, so that this member has sent them again.",
	})
	s.lost = f.NewCounter(prometheus.CounterOpts{
		Name: "keyward_holds_settlements_lost_total",
		Help: "Settlements of holds that no owner has confirmed within a minute, or for which there was no room. Their hits stay charged until the hold lapses.",
	})
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "keyward_holds_settlements_waiting",
		Help: "Settlements of holds that no owner has confirmed yet.",
	}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(len(s.queue) + s.active)
	})
}

// add queues q, a settlement that no owner has confirmed until now.
func (s *settles) add(now int64, q *owner.Request) {
	r := *q
	h := *q.Hold
	if h.Since == 0 {
		h.Since = now
	}
	r.Hold, r.Waiter = &h, nil
	s.mu.Lock()
	defer s.mu.Unlock()
	if now-h.Since > int64(claim.MarkLife) || h.Until > 0 && now > h.Until || len(s.queue)+s.active >= maxSettles {
		s.lost.Inc()
		return
	}
	s.queue = append(s.queue, queuedSettle{r, now + min(max(now-h.Since, settleAfter)/2, settleWithin)})
}

// take removes the oldest settlements that are due.
func (s *settles) take(now int64) *settling {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &settling{s: s}
	s.queue = slices.DeleteFunc(s.queue, func(q queuedSettle) bool {
		if q.due > now || len(c.reqs) >= settleBatch {
			return false
		}
		c.reqs = append(c.reqs, q.request)
		return true
	})
	if len(c.reqs) == 0 {
		return nil
	}
	c.results = make([]owner.Result, len(c.reqs))
	s.active += len(c.reqs)
	return c
}

// settling is one call with settlements that are repeated.
type settling struct {
	s       *settles
	reqs    []owner.Request
	results []owner.Result
}

// Decided implements completion. What was not decided has been queued again.
func (c *settling) Decided() {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.active -= len(c.reqs)
}

// repeatSettles sends settlements again that no owner has confirmed.
func (p *Peer) repeatSettles() {
	for range maxRetries {
		c := p.settles.take(p.clock.now())
		if c == nil {
			return
		}
		p.settles.repeated.Add(float64(len(c.reqs)))
		at := time.Now().Add(settleTime)
		if p.Begin(policy.Deadline{Silent: at, Alive: at}, false, c.reqs, c.results, c) {
			c.Decided()
		}
	}
}
