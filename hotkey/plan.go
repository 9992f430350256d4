package hotkey

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/keyward/keyward/ring"
)

// MaxRoutes is the maximum number of routes in a cluster.
const MaxRoutes = 100

const (
	capTrial    = int64(5 * time.Second) // time after which a cap that is not enough is followed by sub-keys
	incumbent   = 1.25                   // how much hotter a key must be to replace another one among the routes
	routeFields = 64                     // maximum bytes of an encoded route in addition to its strings and sub-keys
	subFields   = 4                      // bytes of an encoded sub-key in addition to its member, nearly always
)

// HotCounter is the input of a Planner for one hot counter.
type HotCounter struct {
	Domain string
	Name   string  // readable descriptor
	Owner  string  // owner string; a counter without one has no route
	Hash   uint64  // Envoy's hash of Owner; 0 if unknown
	Rate   float64 // requests per second
	Limit  uint32  // of the rule, in Window nanoseconds
	Window int64

	Entries    []RouteEntry // its descriptor; nil if unknown
	SubKeys    uint8        // of the rule; 0 means defaultSubKeys
	Dedicated  bool         // the rule uses one other member instead of sub-keys
	Uncapped   bool         // the rule refuses no request
	Splittable bool         // other members can decide from leases: the algorithm supports them, and the limit is large enough
	Since      int64        // Unix nanoseconds
	Quota      bool         // the rule has Envoys spend the limit of hot keys
	Allow      bool         // see Route.Allow
}

// wellOverLimit reports whether more than half of the requests are certainly refused, however few hits each has.
func (h *HotCounter) wellOverLimit() bool { return h.demand() > 2*float64(h.Limit) }

// demand returns the requests per window.
func (h *HotCounter) demand() float64 { return h.Rate * float64(h.Window) / float64(time.Second) }

// subject identifies the requests that share a route.
type subject struct{ domain, owner string }

// claim is the last result for a subject: the member's own route, or another member's route that it would continue.
type claim struct {
	Route
	cappedSince int64   // since when the cap applies
	cappedRate  float64 // rate when the cap started
	quotaUntil  int64   // until when a Quota is kept although the key is not hot
	quotaWindow int64   // of the rule, nanoseconds
}

// Planner computes the routes of one member's hot keys. Several counters with the same owner string share a route; the
// one with the loosest limit for its demand determines it. The steps for each subject are:
//
//	cap        from a demand above twice the limit until it falls below the limit, Envoy refuses requests while
//	           the limit is certainly exceeded
//	dedicated  if the rule requires it, all requests go to one member that does not own the key
//	spread     otherwise they go to sub-keys on several members
//
// A key whose rule has Quota has that step instead. It lasts at least two windows, because the owner then sees the key's
// demand only once in a window, by the hits that are charged for Envoys.
//
// The last two need a key that members can decide from leases; otherwise they would only forward requests to its owner
// from another member. If there is a cap, they start when it has applied for 5 s and the rate is still above half of
// what it was. They then remain until the key is no longer hot. A key with none of these steps has no route.
//
// A placement is kept where possible, even if this member becomes the owner of the key. Manual routes override all
// others. If another member has a newer route for a subject, this member makes none. A cluster has at most max routes:
// a member adds its hottest ones to the older ones of other members.
//
// A Planner has no clock and is not safe for concurrent use.
type Planner struct {
	self   ring.ID
	max    int
	claims map[subject]claim
}

// NewPlanner returns the planner of member self. max 0 means MaxRoutes.
func NewPlanner(self ring.ID, max int) *Planner {
	if max <= 0 {
		max = MaxRoutes
	}
	return &Planner{self: self, max: max, claims: map[subject]claim{}}
}

// Plan returns this member's routes from now on. hot are all its hot counters; others are the routes of all members,
// which may include its own. Call it once a second.
func (p *Planner) Plan(now int64, to Targets, hot []HotCounter, others []Route) []Route {
	to.Load = maps.Clone(to.Load)
	if to.Load == nil {
		to.Load = map[ring.ID]float64{}
	}
	elsewhere := p.bestOfOthers(others)
	said := map[subject]claim{}
	var routes []Route
	for _, h := range p.rank(p.withKept(now, hot)) {
		id := subject{h.Domain, h.Owner}
		had := p.claims[id]
		if o, ok := elsewhere[id]; ok && (o.Manual || had.Author != p.self || newer(&o, &had.Route)) {
			said[id] = claimFrom(&o)
			continue
		}
		c, ok := p.decide(now, to, &h, &had)
		if !ok || countBefore(elsewhere, &c.Route)+len(routes) >= p.max {
			continue
		}
		said[id] = c
		routes = append(routes, c.Route)
	}
	p.claims = said
	return routes
}

// withKept adds the keys to hot whose Quota is kept.
func (p *Planner) withKept(now int64, hot []HotCounter) []HotCounter {
	hot = slices.Clone(hot)
	for id, c := range p.claims {
		if c.Mode != Quota || c.Author != p.self || c.Manual || now >= c.quotaUntil ||
			slices.ContainsFunc(hot, func(h HotCounter) bool { return h.Domain == id.domain && h.Owner == id.owner }) {
			continue
		}
		hot = append(hot, HotCounter{
			Domain: c.Domain, Name: c.Name, Owner: c.Owner, Entries: c.Entries, Window: c.quotaWindow, Quota: true, Allow: c.Allow,
		})
	}
	return hot
}

// claimFrom returns what this member would continue when o ends: its step and placement, or only the placement of a
// manual route.
func claimFrom(o *Route) claim {
	if o.Manual {
		return claim{Route: Route{Subs: o.Subs}}
	}
	return claim{Route: *o}
}

// bestOfOthers returns the route that counts for each subject. A manual route with mode Auto removes the subject.
func (p *Planner) bestOfOthers(others []Route) map[subject]Route {
	best := map[subject]Route{}
	for _, o := range others {
		id := subject{o.Domain, o.Owner}
		if b, ok := best[id]; (o.Manual || o.Author != p.self) && (!ok || newer(&o, &b)) {
			best[id] = o
		}
	}
	maps.DeleteFunc(best, func(_ subject, o Route) bool { return o.Mode == Auto })
	return best
}

// newer reports whether a counts instead of b.
func newer(a, b *Route) bool {
	if a.Manual != b.Manual {
		return a.Manual
	}
	return cmp.Or(cmp.Compare(a.Version, b.Version), strings.Compare(string(b.Author), string(a.Author))) > 0
}

// countBefore returns the number of routes that have precedence over r.
func countBefore(routes map[subject]Route, r *Route) int {
	n := 0
	for _, o := range routes {
		if o.Mode != Never && (o.Manual || newer(r, &o)) {
			n++
		}
	}
	return n
}

// rank returns one counter for each owner string, the hottest first. Counters with a route rank higher than their rate.
func (p *Planner) rank(hot []HotCounter) []HotCounter {
	hot = slices.Clone(hot)
	slices.SortStableFunc(hot, func(a, b HotCounter) int {
		return cmp.Or(strings.Compare(a.Domain, b.Domain), strings.Compare(a.Owner, b.Owner),
			cmp.Compare(a.demand()*float64(b.Limit), b.demand()*float64(a.Limit)))
	})
	hot = slices.CompactFunc(hot, func(a, b HotCounter) bool { return a.Domain == b.Domain && a.Owner == b.Owner })
	slices.SortStableFunc(hot, func(a, b HotCounter) int { return cmp.Compare(p.rankRate(&b), p.rankRate(&a)) })
	return hot
}

func (p *Planner) rankRate(h *HotCounter) float64 {
	if c, ok := p.claims[subject{h.Domain, h.Owner}]; ok && c.Author == p.self {
		return h.Rate * incumbent
	}
	return h.Rate
}

// decide returns this member's claim for h after had, or false if there is none.
func (p *Planner) decide(now int64, to Targets, h *HotCounter, had *claim) (claim, bool) {
	if h.Hash != 0 && h.Hash != ring.Hash(h.Owner) {
		return claim{}, false // no header has this value
	}
	c := claim{Route: Route{Domain: h.Domain, Owner: h.Owner, Author: p.self, Version: now}}
	if h.Quota {
		c.Mode, c.Allow, c.quotaWindow = Quota, h.Allow, h.Window
		if c.quotaUntil = had.quotaUntil; had.Mode != Quota {
			c.quotaUntil = now + 2*h.Window
		}
	} else if !h.Uncapped && (h.wellOverLimit() || had.Capped() && h.demand() >= float64(h.Limit)) {
		c.Mode, c.Limit, c.Window = Cap, h.Limit, h.Window
		c.cappedSince, c.cappedRate = had.cappedSince, had.cappedRate
		if had.cappedSince == 0 || !had.Capped() {
			c.cappedSince, c.cappedRate = now, h.Rate
		}
	}
	capFailed := now-c.cappedSince >= capTrial && h.Rate > c.cappedRate/2
	if !h.Quota && h.Splittable && to.Ring.Len() > 1 && (c.Mode == Auto || had.Mode > Cap || capFailed) {
		place(&c.Route, to, h, had)
	}
	c.fit(h.Name)
	c.fitEntries(h.Entries)
	if had.Author == p.self && same(&c.Route, &had.Route) {
		c.Version = had.Version
	} else if had.Author == p.self {
		c.Version = max(now, had.Version+1)
	}
	return c, c.Mode != Auto && c.Validate() == nil
}

// place adds sub-keys to route c. A new placement counts as load for the next one.
func place(c *Route, to Targets, h *HotCounter, had *claim) {
	n := int(h.SubKeys)
	if n == 0 {
		n = defaultSubKeys
	}
	if h.Dedicated {
		n = 1
	}
	subs := to.keepOrPlace(had.Subs, h.Owner, min(n, c.room(to.Ring)))
	if len(subs) == 0 || !h.Dedicated && len(subs) < 2 {
		return
	}
	if !slices.Equal(subs, had.Subs) {
		for _, s := range subs {
			to.Load[s.Member] += h.Rate / float64(len(subs))
		}
	}
	c.Mode, c.Subs = Spread, subs
	if h.Dedicated {
		c.Mode = Dedicated
	}
}

// room returns the number of sub-keys that fit into an encoded route with its other strings, without a name.
func (c *Route) room(r *ring.Ring) int {
	longest := 1
	for i := range r.Len() {
		longest = max(longest, len(r.At(i).ID))
	}
	free := maxRoute - routeFields - len(c.Domain) - len(c.Owner) - len(c.Author)
	return min(max(free, 0)/(longest+subFields), MaxSubKeys)
}

// fit sets the name of c, shortened to fit and without control characters.
func (c *Route) fit(name string) {
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, name) // also makes the name valid UTF-8
	end := max(min(len(name), maxText, maxRoute-c.size()-2), 0)
	for end > 0 && end < len(name) && !utf8.RuneStart(name[end]) {
		end--
	}
	c.Name = name[:end]
}

// fitEntries sets the descriptor of c if it fits and if Envoy can compare it.
func (c *Route) fitEntries(entries []RouteEntry) {
	c.Entries = slices.Clone(entries)
	if checkEntries(entries) != nil || c.size() > maxRoute {
		c.Entries = nil
	}
}

// same reports whether two routes for one subject by one member are equal except for their version.
func same(a, b *Route) bool {
	return a.Mode == b.Mode && a.Allow == b.Allow && a.Limit == b.Limit && a.Window == b.Window &&
		a.Name == b.Name && slices.Equal(a.Subs, b.Subs) && slices.Equal(a.Entries, b.Entries)
}
