package sim

import (
	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// poolStore is a coordinator in front of a store that can lose its newest writes, or all. It keeps a log of what was
// written: the state after a loss is that of a new store that has processed the rest of the log.
type poolStore struct {
	h       *home
	offset  int64 // of its clock
	latest  int64 // reading of its clocks
	since   int64
	grantor federation.Grantor
	log     []poolWrite
	layouts *federation.LayoutSchedule
	replays bool // what was processed once is processed again

	sabotaged storeSabotage
}

// poolWrite is a request that a store has processed.
type poolWrite struct {
	at     int64 // by the coordinator's clock
	when   int64 // true time
	region int
	r      federation.PoolRequest
	window int64 // of the grant
	lent   uint64
}

func newPoolStore(h *home) *poolStore {
	s := &poolStore{h: h, offset: h.f.clockOffset()}
	s.layouts = h.f.layouts.read("", s.clock(), false)
	s.grantor = s.newGrantor()
	return s
}

// newGrantor returns an empty store. The reference is the only implementation that is a function of its requests.
func (s *poolStore) newGrantor() federation.Grantor {
	return federation.NewMemory(s.terms, s.since, s.clock)
}

// terms is the federation.TermOf of the layouts that the store has read.
func (s *poolStore) terms(epoch uint32) (federation.LayoutTerm, bool) {
	if s.replays {
		return federation.Always(epoch)(epoch)
	}
	return s.layouts.TermOf(epoch)
}

func (s *poolStore) clock() int64 { return s.h.f.now + s.offset }

// serve implements poolCoordinator.
func (s *poolStore) serve(region int, rs []federation.PoolRequest, reply func([]federation.PoolGrant, bool)) {
	var gs []federation.PoolGrant
	s.latest = max(s.latest, s.clock())
	for i := range rs {
		r := rs[i]
		shown := r.Have
		fix := s.sabotageRequest(region, &r)
		g, ok := s.grantor.Grant(s.clock(), regionName(region), &r)
		if !ok {
			s.h.f.stats.count("pool: refused request")
			s.h.f.trace("%s refuses seq %d of %s", homeName(s.h.index), r.Seq, regionName(region))
			continue
		}
		fix(&g)
		had := uint64(0)
		if r.Window == g.Window {
			had = shown
		}
		if s.h.f.verbose {
			s.h.f.trace("%s processes %04x seq %d of %s, past %v: window %d, used %d of %d", homeName(s.h.index), r.Key[0]>>48, r.Seq,
				regionName(region), r.Past, g.Window, g.Used, g.Usable)
		}
		s.log = append(s.log, poolWrite{s.clock(), s.h.f.now, region, r, g.Window, g.Total - min(g.Total, had)})
		s.h.f.books.lent(s, region, &rs[i], &g)
		gs = append(gs, g)
	}
	reply(gs, false)
}

// replay replaces the store by one that has processed the log.
func (s *poolStore) replay() {
	s.grantor = s.newGrantor()
	s.sabotaged, s.replays = storeSabotage{}, true
	defer func() { s.replays = false }()
	for i := range s.log {
		x := &s.log[i]
		g, ok := s.grantor.Grant(x.at, regionName(x.region), &x.r)
		if ok {
			s.sabotaged.remember(x.region, &x.r, &g)
		}
	}
}

// lose removes the writes from the log that keep does not keep, and records what was lent with them.
func (s *poolStore) lose(keep int, what lossRow) {
	for _, x := range s.log[keep:] {
		s.h.f.books.lose(x.r.Key, x.window, x.lent)
	}
	s.h.f.books.storeLost(s, what)
	s.log = s.log[:keep]
	s.replay()
}

// failOver replaces the store by a replica that lacks the newest writes, whose server has another clock.
func (h *home) failOver() {
	f, s := h.f, h.store
	keep, since := len(s.log), f.now-int64(f.randomBelow(f.o.Federation.Lag))
	for keep > 0 && s.log[keep-1].when > since {
		keep--
	}
	f.trace("%s fails over and loses %d writes", homeName(h.index), len(s.log)-keep)
	f.books.touch(eventFailover)
	s.lose(keep, rowFailover)
	s.offset = f.clockOffset()
}

// empty removes everything from the store, which begins a new dataset.
func (h *home) empty() {
	h.f.trace("%s loses everything", homeName(h.index))
	h.store.since = h.store.clock()
	h.store.lose(0, rowEmptied)
}

// forget restarts a coordinator that lends the complete pool of a window in which it restarts.
func (h *home) forget() {
	h.f.trace("%s restarts with nothing", homeName(h.index))
	h.store.since = 0
	h.store.lose(0, rowForgot)
}

// poolUse contains what a member has of a window of a pool, and the rule.
type poolUse struct {
	federation.EscrowBalance
	rule limit.Rule
}

// keep records what m has of the pool of key after a decision.
func (m *member) keep(key owner.Key, r limit.Rule) {
	if b, ok := m.node.EscrowBalance(key); ok && b.Left > 0 {
		m.federated.link(0)
		m.federated.unspent[key] = poolUse{b, r}
	}
}
