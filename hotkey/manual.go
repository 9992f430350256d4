package hotkey

import "errors"

// ManualRoute completes a route made by an operator. r contains Domain, Owner, Name, Author, Version and Mode, and for
// Cap also Limit and Window. n is the number of sub-keys for Spread; 0 means defaultSubKeys. If r has Subs, they are
// kept where possible. Entries are dropped if they do not fit.
func ManualRoute(r Route, to Targets, n int) (Route, error) {
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
		n = min(n, r.room(to.Ring))
	default:
		n = 0
	}
	if n > 0 && to.Ring.Len() < 2 {
		return Route{}, errors.New("there is no other member on the ring")
	}
	r.Subs = to.keepOrPlace(r.Subs, r.Owner, n)
	entries := r.Entries
	r.Entries = nil
	r.fit(r.Name)
	r.fitEntries(entries)
	return r, r.Validate()
}
