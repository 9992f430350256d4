package hotkey

import (
	"errors"

	"github.com/keyward/keyward/ring"
)

// ManualRoute makes a route of an order: r says Domain, Owner, Name, By, Ver and Mode; for Cap also Limit and Window; n is how
// many sub-keys Spread wants, 0 for defaultSubKeys. Given the Subs of before, it keeps them as Settle does. An error says
// why it cannot be done. hash is Envoy's; load is as for Place.
func ManualRoute(r Route, at *ring.Ring, hash func(string) uint64, n int, load map[ring.ID]float64) (Route, error) {
	r.Manual = true
	if r.Mode != Cap {
		r.Limit, r.Window = 0, 0
	}
	switch r.Mode {
	case Dedicated:
		n = 1
	case Spread:
		if n == 0 {
			n = defaultSubKeys
		}
		n = min(n, r.room(at))
	default:
		n = 0
	}
	if n > 0 && at.Len() < 2 {
		return Route{}, errors.New("there is no other member on the ring")
	}
	r.Subs = keepOrPlace(r.Subs, at, hash, r.Owner, n, load)
	r.fit(r.Name)
	return r, r.Validate()
}
