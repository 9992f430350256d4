package quota

import (
	"math"
	"time"
)

// share has the demand of the other sidecars for the key, and what the limit has room for.
type share struct {
	own, all float64 // the demand that was given last, and the sum of all sidecars' after that
	calls    float64 // the demand of calls
	callsAt  int64   // when calls was reported
	knownAt  int64   // when all was reported; 0: never
	givenAt  int64   // when own was given; 0: never
	left     [2]windowLeft
	retried  bool // an ask was refused, and repeated at once
}

// windowLeft is the room of a limit in a window, as the holder last reported it.
type windowLeft struct {
	window int64
	hits   uint64
	at     int64 // when; 0: never
}

const scarceBelow = 2 // 1/scarceBelow of the limit

// CallersPart is the part of a limit, 1/CallersPart, that is kept for calls in any case, which the holder decides.
const CallersPart = 50

// learnLeft records what the holder has reported.
func (a *allotment) learnLeft(now int64, g *AskResult) {
	known := &a.share.left[g.Window&1]
	refused := g.Hits == 0 && g.Left != LeftUnknown
	if g.Left != LeftUnknown {
		*known = windowLeft{g.Window, g.Left, now}
	}
	if retry := refused && !a.share.retried; retry { // what was known was out of date
		a.share.retried = true
		switch g.Window {
		case a.window:
			a.askedAt = 0
		case a.window + 1:
			a.nextAsked = 0
		}
		return
	}
	a.share.retried = false
}

// part returns the part of the limit that this sidecar may have charged at any time: by the demands, if they are known,
// and otherwise the same as each other sidecar.
func (a *allotment) part(now int64) float64 {
	if s := &a.share; s.known(now) {
		return a.portion(s.own)
	}
	return a.shareable() / a.ledger.members
}

// shareable returns how many hits of the limit are divided between sidecars and calls.
func (a *allotment) shareable() float64 { return float64(a.quota.Limit) * (1 - 1.0/CallersPart) }

// portion returns the part of the limit for one of the demands, which are known.
func (a *allotment) portion(demand float64) float64 {
	s := &a.share
	return a.shareable() * demand / (max(s.own, s.all) + s.calls)
}

// known reports whether the demands of all sidecars are known.
func (s *share) known(now int64) bool { return s.own > 0 && s.fresh(now) }

// fresh reports whether the sum of the demands was reported lately.
func (s *share) fresh(now int64) bool { return s.knownAt != 0 && now-s.knownAt < int64(DemandLife) }

// callers returns the part of the limit for calls, by their demand.
func (a *allotment) callers(now int64) float64 {
	if s := &a.share; s.known(now) {
		return a.portion(s.calls)
	}
	return 0
}

// most returns how many hits of a window may be asked for now. Each sidecar may have its part of the limit at any time.
// Parts that are not used are set free for the others at a steady rate until the window ends. So a sidecar whose Envoys
// get all requests, which come evenly, has enough for them at each time, and if the Envoys of all sidecars get many, each
// has its part. Hits for calls are charged when the calls come, also at a steady rate, so what is charged for others is first
// taken for calls.
func (a *allotment) most(now, window int64) uint64 {
	if !a.ledger.shared {
		return math.MaxUint64
	}
	limit, mine, ahead := float64(a.quota.Limit), float64(a.held), a.seconds(now)
	if window != a.window {
		mine, ahead = float64(a.next), a.quota.Window.Seconds()
	}
	left, part := limit-mine, a.part(now)
	if l := &a.share.left[window&1]; l.at != 0 && l.window == window && now-l.at < leftLife(part-mine > limit/100) {
		left = min(left, float64(l.hits))
	}
	calls, rest := a.callers(now), ahead/a.quota.Window.Seconds()
	others := max(0, limit-left-mine) // charged for them
	others -= min(others, calls*(1-rest))
	keep := calls*rest + max(0, (limit-part-calls)*rest-others)
	most := max(math.Ceil(part)-mine, left-keep)
	if a.roomy { // half of what the demands of the others and of calls leave
		most = max(most, (left-calls*rest-max(0, a.others(now)*rest-others))/2)
	}
	return uint64(max(0, min(left, most)))
}

// others returns the demand of the other sidecars, or the limit while it is not known.
func (a *allotment) others(now int64) float64 {
	s := &a.share
	switch {
	case !a.ledger.shared || a.ledger.members == 1:
		return 0
	case !s.fresh(now):
		return float64(a.quota.Limit)
	}
	return max(0, s.all-s.own)
}

// look determines whether there is room for leases of lines whose load pauses.
func (a *allotment) look(now int64) {
	a.roomy = a.others(now)+a.demand(now)+a.share.calls < roomyBelow*float64(a.quota.Limit)
	a.short = a.short && !a.roomy
}

// margin returns how many hits are asked for in addition to the need.
func (a *allotment) margin() float64 {
	if s := &a.share; a.ledger.shared && s.own > 0 {
		return min(s.own, float64(a.quota.Limit)) / 50
	}
	return float64(a.quota.Limit) / 50
}

// leftLife returns how long what the holder has reported is used. Later others may have returned hits, and a sidecar that
// lacks a part of what it should have asks again sooner.
func leftLife(lacks bool) int64 {
	if lacks {
		return int64(time.Second)
	}
	return int64(3 * time.Second)
}

// request asks for hits of a window, as many as the sidecar may have, and records when.
func (a *allotment) request(now, window int64, hits uint64, at *int64) {
	most := a.most(now, window)
	if least := min(hits, uint64(a.quota.Limit)/200); most < max(1, least) {
		return // it would cost more than it is worth
	}
	*at = now
	a.ledger.ask(WindowHits{Key: a.key, Window: window, Hits: min(hits, most)})
}

// demand returns the hits of a window that the lines need. Lines without a measured rate do not count.
// Lines whose load pauses count as one hit, so that the demands of the others are known when it comes back.
func (a *allotment) demand(now int64) (hits float64) {
	least := false
	for _, l := range a.lines {
		if l.rate.known && !l.idle() && !l.stream.stalled(now) {
			hits += l.rate.perSecond * a.quota.Window.Seconds()
		}
		least = least || l.peak > 0
	}
	if hits = math.Ceil(hits); least {
		hits = max(hits, 1)
	}
	return hits
}

// shareOut gives the demand, if it has changed or is old, and asks for what has become free.
func (a *allotment) shareOut(now int64) {
	if !a.ledger.shared {
		return
	}
	s, own := &a.share, a.demand(now)
	if now-s.callsAt >= int64(DemandLife) {
		s.calls = 0
	}
	changed := math.Abs(own-s.own) > s.own/5
	if age := now - s.givenAt; own > 0 && (s.givenAt == 0 || age >= int64(DemandAge) || changed && age >= int64(askAgain)) {
		s.givenAt, s.own = now, own
		a.ledger.demands = append(a.ledger.demands, KeyDemand{a.key, uint64(own)})
		a.ledger.due(math.MinInt64)
	}
	if a.short {
		a.ask(now)
	}
}

// demanded records the demand of all sidecars.
func (a *allotment) demanded(now int64, all float64) {
	s := &a.share
	if s.all = all; all == 0 {
		s.knownAt = 0
		return
	}
	if s.knownAt = now; a.short {
		a.ask(now)
	}
}

// scarce reports whether little was left of the limit in a window when the holder reported it last.
func (a *allotment) scarce(window int64) bool {
	l := &a.share.left[window&1]
	return a.ledger.shared && l.at != 0 && l.window == window && l.hits < uint64(a.quota.Limit)/scarceBelow
}

// contended reports whether the demand of all sidecars and of calls exceeds what there is.
func (a *allotment) contended(now int64) bool {
	s := &a.share
	return s.fresh(now) && s.all+s.calls > 0.95*float64(a.quota.Limit)
}
