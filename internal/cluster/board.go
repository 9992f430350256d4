package cluster

import (
	"cmp"
	"errors"
	"fmt"
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
	routeInterval = 5 * time.Second  // between two sendings of a route
	routeTTL      = 15 * time.Second // of a route after the last of them
	loadInterval  = 15 * time.Second // between two sendings of a load
	loadTTL       = 45 * time.Second
	loadChange    = 0.25 // part of a load by which it must have changed to be sent earlier
	maxRoutes     = 1000 // routes that are kept
)

// SetRoutes makes rs the routes of hot keys that this member stands for, until it says otherwise; only automatic ones that
// name it as their author are taken. Every member hears of them within moments and forgets them 15 s after it last did.
func (c *Cluster) SetRoutes(rs []hotkey.Route) {
	if c.table.gossip.setAutomatic(rs) {
		c.table.signal()
	}
}

// SetManualRoute makes r, said by hand, count for its domain and owner string in the whole cluster, before all that was said
// earlier (by r.Ver) and all that is automatic. It holds as long as this member lives and nobody says something later. With
// mode Auto it takes back what was said by hand.
func (c *Cluster) SetManualRoute(r hotkey.Route) error {
	if err := c.table.gossip.setManual(time.Now(), r); err != nil {
		return fmt.Errorf("route: %w", err)
	}
	c.table.signal()
	return nil
}

// SetLoad tells the others how loaded this member is, in questions a second; 0 is not worth a word.
func (c *Cluster) SetLoad(load float64) { c.table.gossip.setLoad(load) }

// Loads is how loaded the live members are, this one included, in questions a second, as far as they have told: who is idle does not.
func (c *Cluster) Loads() map[ring.ID]float64 { return c.table.gossip.memberLoads() }

// gossipState is where members post what is not membership: the routes of hot keys, and how loaded each of them is. A post is
// sent by gossip, again and again as long as its author means it, and passed on by everyone to whom that sending is new. It
// is believed only of a live member that speaks for itself.
type gossipState struct {
	bootID uint64
	self   ring.ID
	queue  broadcastQueue

	mu        sync.Mutex               // guards all below
	seq       uint64                   // of self's sendings
	routes    map[routeKey]routeRecord // what everybody says, self included
	loads     map[uint64]loadRecord    // by boot, self's included
	automatic []hotkey.Route           // what self means to say
	manual    map[routeKey]routeRecord // what was said to self by hand
	load      float64                  // self's
	live      map[uint64]ring.ID       // boots
	reported  []hotkey.Route           // as last handed out
}

// routeKey is what only the newest route counts of. What is said by hand does not replace what is not, but hides it.
type routeKey struct {
	domain, owner string
	manual        bool
}

func routeKeyOf(r *hotkey.Route) routeKey { return routeKey{r.Domain, r.Owner, r.Manual} }

// origin says whose words these are, and which of them are newer.
type origin struct {
	bootID, seq uint64
	receivedAt  time.Time // when it came here
}

type routeRecord struct {
	origin
	route     hotkey.Route
	withdrawn bool // taken back
}

type loadRecord struct {
	origin
	load float64
}

func newGossipState(self *membership.Member, members func() int) *gossipState {
	return &gossipState{
		bootID: self.BootID, self: self.ID,
		queue:  broadcastQueue{members: members},
		routes: map[routeKey]routeRecord{}, loads: map[uint64]loadRecord{}, manual: map[routeKey]routeRecord{}, live: map[uint64]ring.ID{},
	}
}

// setAutomatic replaces the automatic routes that self stands for, and says whether they are others. Left out are those of others, and
// those that nobody would read.
func (b *gossipState) setAutomatic(rs []hotkey.Route) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.automatic
	b.automatic = slices.DeleteFunc(slices.Clone(rs), func(r hotkey.Route) bool { return r.Manual || r.Author != b.self || r.Validate() != nil })
	return (len(was) > 0 || len(b.automatic) > 0) && !reflect.DeepEqual(was, b.automatic)
}

// setManual takes a route that was said by hand. It holds until somebody says something else, here or elsewhere. One that
// takes back what was said holds until everybody has heard it.
func (b *gossipState) setManual(now time.Time, r hotkey.Route) error {
	r.Manual, r.Author = true, b.self
	if err := r.Validate(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.manual[routeKeyOf(&r)] = routeRecord{route: r, origin: origin{receivedAt: now}}
	return nil
}

// setLoad says how loaded self is.
func (b *gossipState) setLoad(load float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.load = load
}

// step says what self means to say, forgets what nobody means any more, and returns the routes that count, of which there
// is one for each domain and owner string. live are the boots of the others.
func (b *gossipState) step(now time.Time, live []membership.Member) (routes []hotkey.Route, changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.live)
	for i := range live {
		b.live[live[i].BootID] = live[i].ID
	}
	b.publishLocked(now)
	for t, p := range b.routes {
		if b.expiredLocked(now, p.origin, routeTTL) {
			delete(b.routes, t)
		}
	}
	for inst, p := range b.loads {
		if b.expiredLocked(now, p.origin, loadTTL) {
			delete(b.loads, inst)
		}
	}
	routes = b.effectiveLocked()
	if changed = !reflect.DeepEqual(routes, b.reported); changed {
		b.reported = routes
	}
	return b.reported, changed
}

// idle says whether no route is spoken of, so that none has to be said again or forgotten.
func (b *gossipState) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.routes)+len(b.automatic)+len(b.manual) == 0
}

func (b *gossipState) expiredLocked(now time.Time, s origin, life time.Duration) bool {
	_, live := b.live[s.bootID]
	return now.Sub(s.receivedAt) > life || !live && s.bootID != b.bootID
}

// publishLocked sends what is new or has not been sent for a while.
func (b *gossipState) publishLocked(now time.Time) {
	mean := map[routeKey]bool{}
	say := func(r *hotkey.Route) {
		t := routeKeyOf(r)
		mean[t] = true
		p, heard := b.routes[t]
		switch {
		case heard && p.bootID != b.bootID && newer(&p.route, r):
		case heard && p.bootID == b.bootID && !p.withdrawn && now.Sub(p.receivedAt) < routeInterval && reflect.DeepEqual(p.route, *r):
		default:
			b.recordRouteLocked(t, routeRecord{origin: b.nextOriginLocked(now), route: *r})
		}
	}
	for i := range b.automatic {
		say(&b.automatic[i])
	}
	for t, o := range b.manual {
		if o.route.Mode == hotkey.Auto && now.Sub(o.receivedAt) > routeTTL+routeInterval {
			delete(b.manual, t)
			continue
		}
		say(&o.route)
	}
	for t, p := range b.routes {
		if p.bootID == b.bootID && !p.withdrawn && !mean[t] {
			b.recordRouteLocked(t, routeRecord{origin: b.nextOriginLocked(now), route: p.route, withdrawn: true})
		}
	}
	p := b.loads[b.bootID]
	if p.load == 0 && b.load == 0 {
		return // whoever says nothing has none: among many members that are idle this would be most of what gossip sends
	}
	if quiet := now.Sub(p.receivedAt); quiet >= loadInterval || quiet >= routeInterval && math.Abs(p.load-b.load) > loadChange*p.load {
		b.recordLoadLocked(loadRecord{b.nextOriginLocked(now), b.load})
	}
}

func (b *gossipState) nextOriginLocked(now time.Time) origin {
	b.seq++
	return origin{bootID: b.bootID, seq: b.seq, receivedAt: now}
}

// recordRouteLocked takes p over and sends it on.
func (b *gossipState) recordRouteLocked(t routeKey, p routeRecord) {
	b.routes[t] = p
	b.queue.add(t, appendRoute(nil, &p))
}

func (b *gossipState) recordLoadLocked(p loadRecord) {
	b.loads[p.bootID] = p
	b.queue.add(p.bootID, appendLoad(nil, p))
}

// newer says whether what a says counts, and not what b says of the same: hotkey.Planner judges alike.
func newer(a, b *hotkey.Route) bool {
	return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(b.Author, a.Author)) > 0
}

// effectiveLocked are the routes that count, in the order of their domains and owner strings.
func (b *gossipState) effectiveLocked() (routes []hotkey.Route) {
	counts := func(t routeKey) bool {
		p, heard := b.routes[t]
		return heard && !p.withdrawn && p.route.Mode != hotkey.Auto
	}
	for t := range b.routes {
		hidden := !t.manual && counts(routeKey{t.domain, t.owner, true})
		if counts(t) && !hidden {
			routes = append(routes, b.routes[t].route)
		}
	}
	slices.SortFunc(routes, func(x, y hotkey.Route) int {
		return cmp.Or(cmp.Compare(x.Domain, y.Domain), cmp.Compare(x.Owner, y.Owner))
	})
	return routes
}

// merge takes in one user message of gossip, and says whether it is news. What is not said by a live member of itself, is
// old, or finds no room changes nothing.
func (b *gossipState) merge(now time.Time, msg []byte) (news bool, err error) {
	p, err := parseRecord(msg)
	if err != nil {
		return false, err
	}
	p.receivedAt = now
	b.mu.Lock()
	defer b.mu.Unlock()
	author, live := b.live[p.bootID]
	switch {
	case !live: // it may have left a moment ago, or not be known yet
		return false, nil
	case p.kind == kindRoute && p.route.Author != author:
		return false, errAuthor
	case p.kind == kindRoute:
		return b.mergeRouteLocked(&p.routeRecord)
	case p.kind == kindLoad && p.seq > b.loads[p.bootID].seq:
		b.recordLoadLocked(loadRecord{p.origin, p.load})
	}
	return false, nil
}

func (b *gossipState) mergeRouteLocked(p *routeRecord) (news bool, err error) {
	t := routeKeyOf(&p.route)
	had, heard := b.routes[t]
	same := heard && had.bootID == p.bootID
	switch {
	case same && had.seq >= p.seq, heard && !same && !newer(&p.route, &had.route):
		return false, nil
	case !heard && len(b.routes) >= maxRoutes:
		return false, errFull
	}
	if o, given := b.manual[t]; given && newer(&p.route, &o.route) {
		delete(b.manual, t)
	}
	b.recordRouteLocked(t, *p)
	return !same || had.withdrawn != p.withdrawn || !reflect.DeepEqual(had.route, p.route), nil
}

var (
	errAuthor = errors.New("a route that its author does not say")
	errFull   = errors.New("too many routes")
)

// memberLoads is how loaded the live members are, as far as they said.
func (b *gossipState) memberLoads() map[ring.ID]float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	loads := map[ring.ID]float64{}
	for inst, p := range b.loads {
		if id, live := b.live[inst]; live {
			loads[id] = p.load
		} else if inst == b.bootID {
			loads[b.self] = p.load
		}
	}
	return loads
}
