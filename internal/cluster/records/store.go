// Package records replicates what members announce in gossip in addition to membership: the routes of hot keys, and
// the load of each member.
//
// The author of a record repeats it for as long as it holds, and every member that receives something new passes it
// on. A record is accepted only from a live member that speaks for itself, and expires soon after its author stops
// repeating it.
package records

import (
	"cmp"
	"errors"
	"math"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

const (
	routeInterval = 5 * time.Second  // between two transmissions of a route by its author
	routeTTL      = 15 * time.Second // of a route, from the last transmission
	loadInterval  = 15 * time.Second // between two transmissions of a load
	loadTTL       = 45 * time.Second
	loadChange    = 0.25 // a load that has changed by this fraction is sent after routeInterval
	maxRoutes     = 1000 // routes that are stored
)

var (
	errAuthor = errors.New("route was not sent by its author")
	errFull   = errors.New("too many routes")
)

// Store holds the records of all live members. It is safe for concurrent use.
type Store struct {
	self   ring.ID
	bootID uint64
	queue  queue

	mu        sync.Mutex               // guards all below
	seq       uint64                   // of this member's last transmission
	routes    map[routeKey]routeRecord // of all members, this one included
	loads     map[uint64]loadRecord    // by boot ID, this member's included
	automatic []hotkey.Route           // the automatic routes that this member announces
	manual    map[routeKey]manualRoute // the routes that were set on this member by hand
	load      float64                  // this member's
	live      map[uint64]ring.ID       // the other live members, by boot ID
	effective []hotkey.Route           // as Step returned them last
}

// routeKey identifies the routes of which only the newest applies. A manual route hides an automatic one but does not
// replace it.
type routeKey struct {
	domain, owner string
	manual        bool
}

func keyOf(r *hotkey.Route) routeKey { return routeKey{r.Domain, r.Owner, r.Manual} }

// origin identifies one transmission of a record by its author. Of two, the one with the higher number is newer.
type origin struct {
	bootID, seq uint64
	receivedAt  time.Time
}

type routeRecord struct {
	origin
	route     hotkey.Route
	withdrawn bool
}

type loadRecord struct {
	origin
	load float64
}

type manualRoute struct {
	route hotkey.Route
	setAt time.Time
}

// New returns an empty Store of the given boot of member self. The function members returns the number of live
// members; it determines how often a record is transmitted.
func New(self ring.ID, bootID uint64, members func() int) *Store {
	return &Store{
		self: self, bootID: bootID, queue: queue{members: members},
		routes: map[routeKey]routeRecord{}, loads: map[uint64]loadRecord{}, manual: map[routeKey]manualRoute{}, live: map[uint64]ring.ID{},
	}
}

// SetAutomatic replaces the automatic routes that this member announces, and reports whether they have changed. It
// ignores manual routes, routes of other authors and invalid ones.
func (s *Store) SetAutomatic(rs []hotkey.Route) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.automatic
	s.automatic = slices.DeleteFunc(slices.Clone(rs), func(r hotkey.Route) bool {
		return r.Manual || r.Author != s.self || r.Validate() != nil
	})
	return (len(before) > 0 || len(s.automatic) > 0) && !reflect.DeepEqual(before, s.automatic)
}

// SetManual announces a manual route. It applies until a newer one for the same key is set, on this member or
// another. A route of mode Auto withdraws the manual route; this member repeats it until every member has received
// it.
func (s *Store) SetManual(now time.Time, r hotkey.Route) error {
	r.Manual, r.Author = true, s.self
	if err := r.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.manual[keyOf(&r)] = manualRoute{r, now}
	return nil
}

// SetLoad sets the load that this member announces, in requests per second. A load of 0 is not announced.
func (s *Store) SetLoad(load float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load = load
}

// Loads returns the loads that the live members have announced, this one included, in requests per second.
func (s *Store) Loads() map[ring.ID]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	loads := map[ring.ID]float64{}
	for bootID, p := range s.loads {
		if id, live := s.live[bootID]; live {
			loads[id] = p.load
		} else if bootID == s.bootID {
			loads[s.self] = p.load
		}
	}
	return loads
}

// Step transmits the records of this member that are due, removes expired ones, and returns the routes in effect, at
// most one for each domain and owner string, in their order. Changed reports whether they differ from those of the
// last Step. The parameter live has the other live members.
func (s *Store) Step(now time.Time, live []membership.Member) (routes []hotkey.Route, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.live)
	for i := range live {
		s.live[live[i].BootID] = live[i].ID
	}
	s.publishRoutesLocked(now)
	s.publishLoadLocked(now)
	for k, p := range s.routes {
		if s.expiredLocked(now, p.origin, routeTTL) {
			delete(s.routes, k)
		}
	}
	for bootID, p := range s.loads {
		if s.expiredLocked(now, p.origin, loadTTL) {
			delete(s.loads, bootID)
		}
	}
	routes = s.effectiveLocked()
	if changed = !reflect.DeepEqual(routes, s.effective); changed {
		s.effective = routes
	}
	return s.effective, changed
}

// Idle reports whether there is no route to repeat or to expire.
func (s *Store) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.routes)+len(s.automatic)+len(s.manual) == 0
}

// Broadcasts returns the messages for one packet of limit bytes, in which each message takes overhead more bytes than
// it has.
func (s *Store) Broadcasts(overhead, limit int) [][]byte { return s.queue.take(overhead, limit) }

func (s *Store) expiredLocked(now time.Time, o origin, ttl time.Duration) bool {
	_, live := s.live[o.bootID]
	return now.Sub(o.receivedAt) > ttl || !live && o.bootID != s.bootID
}

// publishRoutesLocked transmits the routes of this member that are new or due again, and withdraws those it no longer
// announces.
func (s *Store) publishRoutesLocked(now time.Time) {
	announced := map[routeKey]bool{}
	for i := range s.automatic {
		announced[keyOf(&s.automatic[i])] = true
		s.publishRouteLocked(now, &s.automatic[i])
	}
	for k, m := range s.manual {
		if m.route.Mode == hotkey.Auto && now.Sub(m.setAt) > routeTTL+routeInterval {
			delete(s.manual, k)
			continue
		}
		announced[k] = true
		s.publishRouteLocked(now, &m.route)
	}
	for k, p := range s.routes {
		if p.bootID == s.bootID && !p.withdrawn && !announced[k] {
			s.storeRouteLocked(k, routeRecord{origin: s.nextOriginLocked(now), route: p.route, withdrawn: true})
		}
	}
}

// publishRouteLocked transmits r unless a newer route of another member is known or r was transmitted a short while
// ago.
func (s *Store) publishRouteLocked(now time.Time, r *hotkey.Route) {
	k := keyOf(r)
	p, known := s.routes[k]
	own := known && p.bootID == s.bootID
	superseded := known && !own && newer(&p.route, r)
	recent := own && !p.withdrawn && now.Sub(p.receivedAt) < routeInterval && reflect.DeepEqual(p.route, *r)
	if !superseded && !recent {
		s.storeRouteLocked(k, routeRecord{origin: s.nextOriginLocked(now), route: *r})
	}
}

// publishLoadLocked transmits this member's load if it is due. An idle member transmits none: in a large cluster at
// rest, loads of 0 would be most of the gossip.
func (s *Store) publishLoadLocked(now time.Time) {
	p := s.loads[s.bootID]
	if p.load == 0 && s.load == 0 {
		return
	}
	age := now.Sub(p.receivedAt)
	if age >= loadInterval || age >= routeInterval && math.Abs(p.load-s.load) > loadChange*p.load {
		s.storeLoadLocked(loadRecord{s.nextOriginLocked(now), s.load})
	}
}

func (s *Store) nextOriginLocked(now time.Time) origin {
	s.seq++
	return origin{bootID: s.bootID, seq: s.seq, receivedAt: now}
}

// storeRouteLocked stores p and passes it on.
func (s *Store) storeRouteLocked(k routeKey, p routeRecord) {
	s.routes[k] = p
	s.queue.add(k, encodeRoute(&p))
}

// storeLoadLocked stores p and passes it on.
func (s *Store) storeLoadLocked(p loadRecord) {
	s.loads[p.bootID] = p
	s.queue.add(p.bootID, encodeLoad(p))
}

// newer reports whether route a replaces route b for the same key. hotkey.Planner uses the same order.
func newer(a, b *hotkey.Route) bool {
	return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(b.Author, a.Author)) > 0
}

// effectiveLocked returns the routes in effect, ordered by domain and owner string.
func (s *Store) effectiveLocked() (routes []hotkey.Route) {
	applies := func(k routeKey) bool {
		p, known := s.routes[k]
		return known && !p.withdrawn && p.route.Mode != hotkey.Auto
	}
	for k := range s.routes {
		hidden := !k.manual && applies(routeKey{k.domain, k.owner, true})
		if applies(k) && !hidden {
			routes = append(routes, s.routes[k].route)
		}
	}
	slices.SortFunc(routes, func(x, y hotkey.Route) int {
		return cmp.Or(cmp.Compare(x.Domain, y.Domain), cmp.Compare(x.Owner, y.Owner))
	})
	return routes
}

// Merge processes one user message of gossip and reports whether it changes a route. Messages that are old, or whose
// author is not a live member, change nothing. It returns an error if the message is malformed, not its author's own,
// or finds no room.
func (s *Store) Merge(now time.Time, msg []byte) (changed bool, err error) {
	m, err := parse(msg)
	if err != nil {
		return false, err
	}
	m.receivedAt = now
	s.mu.Lock()
	defer s.mu.Unlock()
	author, live := s.live[m.bootID]
	switch {
	case !live: // it may have left a moment ago, or not be known yet
		return false, nil
	case m.kind == kindRoute && m.route.Author != author:
		return false, errAuthor
	case m.kind == kindRoute:
		return s.mergeRouteLocked(&m.routeRecord)
	case m.kind == kindLoad && m.seq > s.loads[m.bootID].seq:
		s.storeLoadLocked(loadRecord{m.origin, m.load})
	}
	return false, nil
}

func (s *Store) mergeRouteLocked(p *routeRecord) (changed bool, err error) {
	k := keyOf(&p.route)
	have, known := s.routes[k]
	sameAuthor := known && have.bootID == p.bootID
	switch {
	case sameAuthor && have.seq >= p.seq, known && !sameAuthor && !newer(&p.route, &have.route):
		return false, nil
	case !known && len(s.routes) >= maxRoutes:
		return false, errFull
	}
	if m, set := s.manual[k]; set && newer(&p.route, &m.route) {
		delete(s.manual, k)
	}
	s.storeRouteLocked(k, *p)
	return !sameAuthor || have.withdrawn != p.withdrawn || !reflect.DeepEqual(have.route, p.route), nil
}
