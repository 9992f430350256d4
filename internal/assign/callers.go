package assign

import (
	"cmp"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/assign/lots"
	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/owner"
)

// Callers of the rate limit service share limits with Envoys. Each member adds the demand of the calls that it has answered
// to those of Envoys, so the parts of the members leave callers their share.

// caller is the demand of the calls for one key.
type caller struct {
	request owner.Request
	rate    float64 // hits per second, admitted or not
	seenAt  int64
	note    lots.Note
	noting  bool
}

const (
	callsInterval = time.Second // over which calls are counted
	callsWeight   = 0.3         // of a new measurement
	// maxCallers is the most keys whose demand of calls is announced, those with the highest.
	maxCallers = 256
)

// callsDue reports whether the calls of an interval have to be measured. The clock may have been set back.
func (a *Assigner) callsDue(now int64) bool {
	return now < a.calledAt || now-a.calledAt >= int64(callsInterval)
}

// measureCalls brings the rates of calls up to date, and announces the demands.
func (a *Assigner) measureCalls(now int64) {
	elapsed := max(callsInterval, time.Duration(now-a.calledAt)).Seconds()
	a.calledAt = now
	a.calls(func(r *owner.Request, hits uint64) {
		c := a.callers[r.Key]
		if c == nil {
			c = new(caller)
			a.callers[r.Key] = c
		}
		c.request = *r
		c.see(now, float64(hits)/elapsed)
	})
	var high []*caller
	for key, c := range a.callers {
		if c.seenAt != now {
			c.see(c.seenAt, 0)
		}
		switch d := c.demand(); {
		case d >= max(1, uint64(c.request.Rule.Limit)/quota.CallersPart): // less is kept for calls in any case
			high = append(high, c)
		case d == 0 && !c.noting && c.note.Lapsed(now):
			delete(a.callers, key)
		}
	}
	slices.SortFunc(high, func(x, y *caller) int { return cmp.Compare(y.demand(), x.demand()) })
	for _, c := range high[:min(len(high), maxCallers)] {
		if next := lots.NewNote(&c.request, c.demand(), now, newIdent()); c.stale(now, &next) {
			a.announceCalls(now, c, next)
		}
	}
}

// see adds a measurement.
func (c *caller) see(at int64, perSecond float64) {
	if c.rate += callsWeight * (perSecond - c.rate); c.rate < 0.1 {
		c.rate = 0
	}
	c.seenAt = at
}

// demand returns the hits that the calls need in a window.
func (c *caller) demand() uint64 { return uint64(c.rate * c.request.Rule.Window.Seconds()) }

// stale reports whether a member's note has to be made or extended.
func (c *caller) stale(now int64, next *lots.Note) bool {
	if c.noting {
		return false
	}
	most, least := max(c.note.Parts, next.Parts), min(c.note.Parts, next.Parts)
	return c.note.Lapsed(now) || now-c.note.At >= int64(quota.DemandAge) || most-least > most/5
}

// announceCalls makes or extends the hold of a demand of calls.
func (a *Assigner) announceCalls(now int64, c *caller, next lots.Note) {
	before, r := c.note.Current(now), c.request
	c.noting = true
	a.request(func() {
		kept, _ := a.exchangeNotes(r, before, next, lots.CallsRequest)
		a.mu.Lock()
		defer a.mu.Unlock()
		c.note, c.noting = kept, false
	})
}
