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
	"github.com/keyward/keyward/ring"
)

const (
	postEvery = 5 * time.Second  // between two sendings of a route
	postLife  = 15 * time.Second // of a route after the last of them
	loadEvery = 15 * time.Second // between two sendings of a load
	loadLife  = 45 * time.Second
	loadStep  = 0.25 // part of a load by which it must have changed to be sent earlier
	maxPosts  = 1000 // routes that are kept
)

// Announce makes rs the routes of hot keys that this member stands for, until it says otherwise; only automatic ones that
// name it as their author are taken. Every member hears of them within moments and forgets them 15 s after it last did.
func (c *Cluster) Announce(rs []hotkey.Route) {
	if c.table.board.announce(rs) {
		c.table.signal()
	}
}

// Order makes r, said by hand, count for its domain and owner string in the whole cluster, before all that was said
// earlier (by r.Ver) and all that is automatic. It holds as long as this member lives and nobody says something later. With
// mode Auto it takes back what was said by hand.
func (c *Cluster) Order(r hotkey.Route) error {
	if err := c.table.board.order(time.Now(), r); err != nil {
		return fmt.Errorf("route: %w", err)
	}
	c.table.signal()
	return nil
}

// SetLoad tells the others how loaded this member is, in questions a second; 0 is not worth a word.
func (c *Cluster) SetLoad(load float64) { c.table.board.setLoad(load) }

// Loads is how loaded the live members are, this one included, in questions a second, as far as they have told: who is idle does not.
func (c *Cluster) Loads() map[ring.ID]float64 { return c.table.board.memberLoads() }

// board is where members post what is not membership: the routes of hot keys, and how loaded each of them is. A post is
// sent by gossip, again and again as long as its author means it, and passed on by everyone to whom that sending is new. It
// is believed only of a live member that speaks for itself.
type board struct {
	inst uint64
	self ring.ID
	out  outbox

	mu     sync.Mutex          // guards all below
	seq    uint64              // of self's sendings
	routes map[topic]routePost // what everybody says, self included
	loads  map[uint64]loadPost // by boot, self's included
	auto   []hotkey.Route      // what self means to say
	orders map[topic]routePost // what was said to self by hand
	load   float64             // self's
	live   map[uint64]ring.ID  // boots
	shown  []hotkey.Route      // as last handed out
}

// topic is what only the newest route counts of. What is said by hand does not replace what is not, but hides it.
type topic struct {
	domain, owner string
	manual        bool
}

func topicOf(r *hotkey.Route) topic { return topic{r.Domain, r.Owner, r.Manual} }

// sending says whose words these are, and which of them are newer.
type sending struct {
	inst, seq uint64
	at        time.Time // when it came here
}

type routePost struct {
	sending
	route hotkey.Route
	gone  bool // taken back
}

type loadPost struct {
	sending
	load float64
}

func newBoard(self *Member, members func() int) *board {
	return &board{
		inst: self.Inst, self: self.ID,
		out:    outbox{members: members},
		routes: map[topic]routePost{}, loads: map[uint64]loadPost{}, orders: map[topic]routePost{}, live: map[uint64]ring.ID{},
	}
}

// announce replaces the automatic routes that self stands for, and says whether they are others. Left out are those of others, and
// those that nobody would read.
func (b *board) announce(rs []hotkey.Route) (news bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.auto
	b.auto = slices.DeleteFunc(slices.Clone(rs), func(r hotkey.Route) bool { return r.Manual || r.By != b.self || r.Valid() != nil })
	return (len(was) > 0 || len(b.auto) > 0) && !reflect.DeepEqual(was, b.auto)
}

// order takes a route that was said by hand. It holds until somebody says something else, here or elsewhere. One that
// takes back what was said holds until everybody has heard it.
func (b *board) order(now time.Time, r hotkey.Route) error {
	r.Manual, r.By = true, b.self
	if err := r.Valid(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.orders[topicOf(&r)] = routePost{route: r, sending: sending{at: now}}
	return nil
}

// setLoad says how loaded self is.
func (b *board) setLoad(load float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.load = load
}

// step says what self means to say, forgets what nobody means any more, and returns the routes that count, of which there
// is one for each domain and owner string. live are the boots of the others.
func (b *board) step(now time.Time, live []Member) (routes []hotkey.Route, changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.live)
	for i := range live {
		b.live[live[i].Inst] = live[i].ID
	}
	b.speakLocked(now)
	for t, p := range b.routes {
		if b.staleLocked(now, p.sending, postLife) {
			delete(b.routes, t)
		}
	}
	for inst, p := range b.loads {
		if b.staleLocked(now, p.sending, loadLife) {
			delete(b.loads, inst)
		}
	}
	routes = b.countedLocked()
	if changed = !reflect.DeepEqual(routes, b.shown); changed {
		b.shown = routes
	}
	return b.shown, changed
}

// quiet says whether no route is spoken of, so that none has to be said again or forgotten.
func (b *board) quiet() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.routes)+len(b.auto)+len(b.orders) == 0
}

func (b *board) staleLocked(now time.Time, s sending, life time.Duration) bool {
	_, live := b.live[s.inst]
	return now.Sub(s.at) > life || !live && s.inst != b.inst
}

// speakLocked sends what is new or has not been sent for a while.
func (b *board) speakLocked(now time.Time) {
	mean := map[topic]bool{}
	say := func(r *hotkey.Route) {
		t := topicOf(r)
		mean[t] = true
		p, heard := b.routes[t]
		switch {
		case heard && p.inst != b.inst && newer(&p.route, r):
		case heard && p.inst == b.inst && !p.gone && now.Sub(p.at) < postEvery && reflect.DeepEqual(p.route, *r):
		default:
			b.postLocked(t, routePost{sending: b.nextLocked(now), route: *r})
		}
	}
	for i := range b.auto {
		say(&b.auto[i])
	}
	for t, o := range b.orders {
		if o.route.Mode == hotkey.Auto && now.Sub(o.at) > postLife+postEvery {
			delete(b.orders, t)
			continue
		}
		say(&o.route)
	}
	for t, p := range b.routes {
		if p.inst == b.inst && !p.gone && !mean[t] {
			b.postLocked(t, routePost{sending: b.nextLocked(now), route: p.route, gone: true})
		}
	}
	p := b.loads[b.inst]
	if p.load == 0 && b.load == 0 {
		return // whoever says nothing has none: among many members that are idle this would be most of what gossip sends
	}
	if quiet := now.Sub(p.at); quiet >= loadEvery || quiet >= postEvery && math.Abs(p.load-b.load) > loadStep*p.load {
		b.postLoadLocked(loadPost{b.nextLocked(now), b.load})
	}
}

func (b *board) nextLocked(now time.Time) sending {
	b.seq++
	return sending{inst: b.inst, seq: b.seq, at: now}
}

// postLocked takes p over and sends it on.
func (b *board) postLocked(t topic, p routePost) {
	b.routes[t] = p
	b.out.add(t, appendRoute(nil, &p))
}

func (b *board) postLoadLocked(p loadPost) {
	b.loads[p.inst] = p
	b.out.add(p.inst, appendLoad(nil, p))
}

// newer says whether what a says counts, and not what b says of the same: hotkey.Planner judges alike.
func newer(a, b *hotkey.Route) bool {
	return cmp.Or(cmp.Compare(a.Ver, b.Ver), cmp.Compare(b.By, a.By)) > 0
}

// countedLocked are the routes that count, in the order of their domains and owner strings.
func (b *board) countedLocked() (routes []hotkey.Route) {
	counts := func(t topic) bool { p, heard := b.routes[t]; return heard && !p.gone && p.route.Mode != hotkey.Auto }
	for t := range b.routes {
		hidden := !t.manual && counts(topic{t.domain, t.owner, true})
		if counts(t) && !hidden {
			routes = append(routes, b.routes[t].route)
		}
	}
	slices.SortFunc(routes, func(x, y hotkey.Route) int {
		return cmp.Or(cmp.Compare(x.Domain, y.Domain), cmp.Compare(x.Owner, y.Owner))
	})
	return routes
}

// hear takes in one user message of gossip, and says whether it is news. What is not said by a live member of itself, is
// old, or finds no room changes nothing.
func (b *board) hear(now time.Time, msg []byte) (news bool, err error) {
	p, err := parsePost(msg)
	if err != nil {
		return false, err
	}
	p.at = now
	b.mu.Lock()
	defer b.mu.Unlock()
	author, live := b.live[p.inst]
	switch {
	case !live: // it may have left a moment ago, or not be known yet
		return false, nil
	case p.kind == postRoute && p.route.By != author:
		return false, errAuthor
	case p.kind == postRoute:
		return b.hearRouteLocked(&p.routePost)
	case p.kind == postLoad && p.seq > b.loads[p.inst].seq:
		b.postLoadLocked(loadPost{p.sending, p.load})
	}
	return false, nil
}

func (b *board) hearRouteLocked(p *routePost) (news bool, err error) {
	t := topicOf(&p.route)
	had, heard := b.routes[t]
	same := heard && had.inst == p.inst
	switch {
	case same && had.seq >= p.seq, heard && !same && !newer(&p.route, &had.route):
		return false, nil
	case !heard && len(b.routes) >= maxPosts:
		return false, errFull
	}
	if o, given := b.orders[t]; given && newer(&p.route, &o.route) {
		delete(b.orders, t)
	}
	b.postLocked(t, *p)
	return !same || had.gone != p.gone || !reflect.DeepEqual(had.route, p.route), nil
}

var (
	errAuthor = errors.New("a route that its author does not say")
	errFull   = errors.New("too many routes")
)

// memberLoads is how loaded the live members are, as far as they said.
func (b *board) memberLoads() map[ring.ID]float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	loads := map[ring.ID]float64{}
	for inst, p := range b.loads {
		if id, live := b.live[inst]; live {
			loads[id] = p.load
		} else if inst == b.inst {
			loads[b.self] = p.load
		}
	}
	return loads
}
