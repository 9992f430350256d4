package hotkey

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/ring"
)

// clearFor is how long a member goes on saying that an order is cleared: well above the time that every member takes to
// hear it, and that the member which gave the order may be cut off before its own words are forgotten (15 s).
const clearFor = int64(30 * time.Second)

// Orders are what was said by hand at one member, and is said by it to the others until it is cleared at any member, or
// something newer is ordered there. They end with the member. Orders are not for concurrent use, and read no clock.
type Orders struct {
	self  ring.ID
	given map[subject]order
}

type order struct {
	Route
	n    int   // sub-keys that are wanted
	when int64 // it was given; Ver may be ahead of the clock
}

// NewOrders keeps the orders of member self.
func NewOrders(self ring.ID) *Orders { return &Orders{self: self, given: map[subject]order{}} }

// Give takes an order about r.Domain and r.Owner: r.Mode, for Cap with Limit and Window, for Spread over n sub-keys (0:
// DefaultSubKeys). Auto clears what was said by hand. others is what all members say. It returns the route that
// Standing gives from now on.
func (o *Orders) Give(now int64, at *ring.Ring, hash func(string) uint64, r Route, n int, others []Route) (Route, error) {
	if r.Mode != Cap {
		r.Limit, r.Window = 0, 0
	}
	id := subject{r.Domain, r.Owner}
	r.By, r.Manual, r.Ver = o.self, true, max(now, o.given[id].Ver+1)
	for _, s := range others { // another member's clock may be ahead
		if s.Manual && id == (subject{s.Domain, s.Owner}) {
			r.Ver = max(r.Ver, s.Ver+1)
		}
	}
	switch r.Mode {
	case Dedicated:
		n = 1
	case Spread:
		if n == 0 {
			n = DefaultSubKeys
		}
		n = min(n, r.room(at))
	default:
		n = 0
	}
	if n > 0 && at.Len() < 2 {
		return Route{}, errors.New("there is no other member on the ring")
	}
	r.Subs = Place(at, hash, r.Owner, n, nil)
	r.fit(r.Name)
	if err := r.Valid(); err != nil {
		return Route{}, err
	}
	if _, again := o.given[id]; !again && len(o.given) >= MaxRoutes {
		return Route{}, fmt.Errorf("%d keys have orders already", MaxRoutes)
	}
	o.given[id] = order{r, n, now}
	return r, nil
}

// Standing are the orders that this member is to say now, in a fixed order. Sub-keys follow their members when the ring
// changes. It is to be called once a second; others is what all members say, itself perhaps among them.
func (o *Orders) Standing(now int64, at *ring.Ring, hash func(string) uint64, others []Route) []Route {
	for _, s := range others {
		id := subject{s.Domain, s.Owner}
		if g, ok := o.given[id]; ok && s.Manual && s.By != o.self && newer(&s, &g.Route) {
			delete(o.given, id)
		}
	}
	maps.DeleteFunc(o.given, func(_ subject, g order) bool { return g.Mode == Auto && now-g.when > clearFor })
	routes := make([]Route, 0, len(o.given))
	for id, g := range o.given {
		if subs := Settle(g.Subs, at, hash, g.Owner, g.n, nil); g.n > 0 && len(subs) > 0 && !slices.Equal(subs, g.Subs) {
			g.Subs, g.Ver = subs, max(now, g.Ver+1)
			o.given[id] = g
		}
		routes = append(routes, g.Route)
	}
	slices.SortFunc(routes, func(a, b Route) int {
		return strings.Compare(a.Domain+"\x00"+a.Owner, b.Domain+"\x00"+b.Owner)
	})
	return routes
}
