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

// MaxRoutes is how many routes there are at most in a cluster.
const MaxRoutes = 100

const (
	capTrial    = int64(5 * time.Second) // how long a cap is given to be enough
	incumbent   = 1.25                   // how much hotter a key must be to take another's place among the routes
	routeFields = 64                     // bytes of an encoded route beside its strings and sub-keys, at most
	subFields   = 4                      // bytes of an encoded sub-key beside its member, as good as always
)

// HotCounter is what a Planner is told of one hot counter.
type HotCounter struct {
	Domain string
	Name   string  // the descriptor, for people
	Owner  string  // owner string; without one there is no route
	Hash   uint64  // of Owner, as Envoy hashes; 0 is not known
	Rate   float64 // questions a second
	Limit  uint32  // of the rule, in Window nanoseconds
	Window int64

	SubKeys    uint8 // what the rule says; 0: defaultSubKeys
	Dedicated  bool  // the rule wants one overflow member instead of sub-keys
	Uncapped   bool  // the rule refuses nobody
	Splittable bool  // others can decide it from leases: the algorithm lends, and the limit is large enough for all
	Since      int64 // Unix nanoseconds
}

// wellOverLimit says that more than half of a counter's questions are refused for certain, however few hits each asks for.
func (h *HotCounter) wellOverLimit() bool { return h.demand() > 2*float64(h.Limit) }

// demand is questions a window.
func (h *HotCounter) demand() float64 { return h.Rate * float64(h.Window) / float64(time.Second) }

// subject is what there is one route for.
type subject struct{ domain, owner string }

// claim is what a Planner remembers of a subject: its own route, or another member's that it would go on with.
type claim struct {
	Route
	cappedSince int64   // since when
	cappedRate  float64 // when the cap was put on
}

// Planner turns one member's hot keys into its routes. Of several counters with the same owner string, which share a
// route, the one with the loosest limit speaks for all. The ladder's steps, for each:
//
//	cap        while the demand is above twice the limit, and then until it is below the limit, Envoy refuses what is
//	           certainly over
//	dedicated  if the rule says so, all requests go to one member that does not own the key
//	split      else to sub-keys on several members
//
// The last two need a key that members can decide from leases, or they would only ask its owner from elsewhere. Where there
// is a cap they wait: until it has been on for 5 s, and the rate is still above half of what it was. Once taken they
// stay until the key cools. A key with neither has no route.
//
// A placement stays as Settle says, also when the key's ownership moves to this member. What is said by hand counts before
// all; where another member says something newer, this one is silent. There are at most max routes in the cluster: the
// hottest of this member in the room that older ones leave.
//
// A Planner is not for concurrent use, and reads no clock.
type Planner struct {
	self   ring.ID
	max    int
	claims map[subject]claim
}

// NewPlanner makes the planner of member self. max 0 is MaxRoutes.
func NewPlanner(self ring.ID, max int) *Planner {
	if max <= 0 {
		max = MaxRoutes
	}
	return &Planner{self: self, max: max, claims: map[subject]claim{}}
}

// Plan says this member's routes from now on, given all its hot counters, the members' load in questions a second, and
// what all members say, itself perhaps among them. It is to be called once a second. hash is Envoy's.
func (p *Planner) Plan(now int64, r *ring.Ring, hash func(string) uint64, hot []HotCounter, load map[ring.ID]float64, others []Route) []Route {
	load = maps.Clone(load)
	if load == nil {
		load = map[ring.ID]float64{}
	}
	elsewhere := p.bestOfOthers(others)
	said := map[subject]claim{}
	var routes []Route
	for _, h := range p.rank(hot) {
		id := subject{h.Domain, h.Owner}
		had := p.claims[id]
		if o, ok := elsewhere[id]; ok && (o.Manual || had.Author != p.self || newer(&o, &had.Route)) {
			said[id] = claimFrom(&o)
			continue
		}
		c, ok := p.decide(now, r, hash, &h, &had, load)
		if !ok || countBefore(elsewhere, &c.Route)+len(routes) >= p.max {
			continue
		}
		said[id] = c
		routes = append(routes, c.Route)
	}
	p.claims = said
	return routes
}

// claimFrom is what to go on with when o ends: its step and its placement, or of one said by hand only the placement.
func claimFrom(o *Route) claim {
	if o.Manual {
		return claim{Route: Route{Subs: o.Subs}}
	}
	return claim{Route: *o}
}

// bestOfOthers finds which route of others counts for each subject; an order by hand to clear what was said by hand leaves none.
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

// newer says that a counts rather than b.
func newer(a, b *Route) bool {
	if a.Manual != b.Manual {
		return a.Manual
	}
	return cmp.Or(cmp.Compare(a.Version, b.Version), strings.Compare(string(b.Author), string(a.Author))) > 0
}

// countBefore counts the routes that have their place before r.
func countBefore(routes map[subject]Route, r *Route) int {
	n := 0
	for _, o := range routes {
		if o.Mode != Never && (o.Manual || newer(r, &o)) {
			n++
		}
	}
	return n
}

// rank gives one counter of each owner string, the hottest first, with some favour for those that have a route.
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

// decide is what this member says of h, having said had; false when that is nothing.
func (p *Planner) decide(now int64, r *ring.Ring, hash func(string) uint64, h *HotCounter, had *claim, load map[ring.ID]float64) (claim, bool) {
	if h.Hash != 0 && h.Hash != hash(h.Owner) {
		return claim{}, false // no header has this value
	}
	c := claim{Route: Route{Domain: h.Domain, Owner: h.Owner, Author: p.self, Version: now}}
	if !h.Uncapped && (h.wellOverLimit() || had.Capped() && h.demand() >= float64(h.Limit)) {
		c.Mode, c.Limit, c.Window = Cap, h.Limit, h.Window
		c.cappedSince, c.cappedRate = had.cappedSince, had.cappedRate
		if had.cappedSince == 0 || !had.Capped() {
			c.cappedSince, c.cappedRate = now, h.Rate
		}
	}
	if h.Splittable && r.Len() > 1 && (c.Mode == Auto || had.Mode > Cap || now-c.cappedSince >= capTrial && h.Rate > c.cappedRate/2) {
		p.place(&c.Route, r, hash, h, had, load)
	}
	c.fit(h.Name)
	if had.Author == p.self && same(&c.Route, &had.Route) {
		c.Version = had.Version
	} else if had.Author == p.self {
		c.Version = max(now, had.Version+1)
	}
	return c, c.Mode != Auto && c.Validate() == nil
}

// place gives route c sub-keys. A new placement counts as load for the next.
func (p *Planner) place(c *Route, r *ring.Ring, hash func(string) uint64, h *HotCounter, had *claim, load map[ring.ID]float64) {
	n := int(h.SubKeys)
	if n == 0 {
		n = defaultSubKeys
	}
	if h.Dedicated {
		n = 1
	}
	subs := keepOrPlace(had.Subs, r, hash, h.Owner, min(n, c.room(r)), load)
	if len(subs) == 0 || !h.Dedicated && len(subs) < 2 {
		return
	}
	if !slices.Equal(subs, had.Subs) {
		for _, s := range subs {
			load[s.Member] += h.Rate / float64(len(subs))
		}
	}
	c.Mode, c.Subs = Spread, subs
	if h.Dedicated {
		c.Mode = Dedicated
	}
}

// room is how many sub-keys fit into an encoded route besides the other strings, without a name.
func (c *Route) room(r *ring.Ring) int {
	longest := 1
	for i := range r.Len() {
		longest = max(longest, len(r.At(i).ID))
	}
	free := maxRoute - routeFields - len(c.Domain) - len(c.Owner) - len(c.Author)
	return min(max(free, 0)/(longest+subFields), MaxSubKeys)
}

// fit names c, as far as there is room, with nothing in the name that terminals act on.
func (c *Route) fit(name string) {
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, name) // makes it valid UTF-8, too
	end := max(min(len(name), MaxText, maxRoute-c.size()-2), 0)
	for end > 0 && end < len(name) && !utf8.RuneStart(name[end]) {
		end--
	}
	c.Name = name[:end]
}

// same says that two routes of one member and subject say the same.
func same(a, b *Route) bool {
	return a.Mode == b.Mode && a.Limit == b.Limit && a.Window == b.Window && a.Name == b.Name && slices.Equal(a.Subs, b.Subs)
}
