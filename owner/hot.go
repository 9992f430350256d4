package owner

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner/internal/counter"
)

// An entry's heat is, from the top: the tick of its last question, 1 to 31 (5 bits); whether the shard's Rates follow its
// key; and, while they do not, the questions of that tick (10 bits), while they do, the questions that they have not been
// told of yet and whether the key is hot. So a decision costs a comparison and a count, and a look into the Rates only
// once in a while.
const (
	heatTick    = 11
	heatEpoch   = heatTick + 3
	heatTracked = 1 << 10
	heatCount   = heatTracked - 1
	heatHot     = 1  // with heatTracked
	tickLength  = 30 // bits of nanoseconds: 1.07 s

	judgeEvery = 500 * time.Millisecond

	defaultCapacity = 50_000 // questions a second, until SetLoad says more
	hotPart         = 0.05   // of the capacity
	heavyRate       = 200    // forwarded questions a second of one key, from which on this member asks for a lease unasked
	heavyPart       = 0.02   // and this part of all it forwards
	sampled         = 4      // one forwarded question in so many is counted
)

// hotState is what the Node knows of its load.
type hotState struct {
	capacity   atomic.Uint64 // float64 bits; questions a second
	overloaded atomic.Bool
	candidate  atomic.Uint32 // questions in a tick that make a key a candidate
	heavy      atomic.Uint64 // float64 bits: forwarded questions a second of one key that are many
	decrees    atomic.Pointer[map[uint64]hotkey.Mode]

	// The rest is guarded by the Node's serial.
	judged int64
	epoch  uint16
	mean   float64
}

// hotStats is a shard's part of it. Guarded by the shard's mu.
type hotStats struct {
	rates     hotkey.Rates
	forwards  *hotkey.Sketch // of what other members own; nil until there is something
	becameHot map[Key]int64  // when each hot key became so
	forwarded uint32         // requests for them
	requests  uint64         // of this epoch of eight ticks
	active    uint64         // keys asked for in it
}

// SetLoad says how many questions a second this machine could decide, and whether it has more to do than it can: then
// keys are hot at half the rate. It may run concurrently.
func (n *Node) SetLoad(capacity float64, overloaded bool) {
	n.hotState.capacity.Store(math.Float64bits(capacity))
	n.hotState.overloaded.Store(overloaded)
	n.hotState.candidate.Store(uint32(min(heatCount, max(1, n.hotThreshold()/4))))
}

// hotThreshold is H_abs, in questions a second.
func (n *Node) hotThreshold() float64 {
	h := n.options.HotRate
	if h <= 0 {
		h = hotPart * math.Float64frombits(n.hotState.capacity.Load())
	}
	if n.hotState.overloaded.Load() {
		h /= 2
	}
	return h
}

// SetRoutes makes the keys of the owner strings in rs hot, or never hot, by decree. hash is Envoy's. It may run
// concurrently.
func (n *Node) SetRoutes(rs []hotkey.Route, hash func(string) uint64) {
	var decrees map[uint64]hotkey.Mode
	for i := range rs {
		if m := rs[i].Mode; m == hotkey.Spread || m == hotkey.Dedicated || m == hotkey.Never {
			if decrees == nil {
				decrees = map[uint64]hotkey.Mode{}
			}
			decrees[hash(rs[i].Owner)] = m
		}
	}
	if decrees == nil {
		n.hotState.decrees.Store(nil)
		return
	}
	n.hotState.decrees.Store(&decrees)
}

// routeMode is what routes say of the keys at a ring position; Auto is nothing.
func (n *Node) routeMode(owner uint64) hotkey.Mode {
	if d := n.hotState.decrees.Load(); d != nil {
		return (*d)[owner]
	}
	return hotkey.Auto
}

// isHot says whether key k, which is this member's, is to be leased because it is hot.
func (n *Node) isHot(s *shard, key Key, owner uint64) bool {
	return n.isHotByRoute(owner, s.hot.rates.Hot(hotkey.Digest(key)))
}

// isHotByRoute is what routes say of the keys at a ring position, or else what was found out about one.
func (n *Node) isHotByRoute(owner uint64, hot bool) bool {
	switch n.routeMode(owner) {
	case hotkey.Spread, hotkey.Dedicated:
		return true
	case hotkey.Never:
		return false
	}
	return hot
}

// recordHit counts a question that this member decided on entry e, and says whether its key is hot.
func (n *Node) recordHit(s *shard, now int64, req *Request, e *counter.Owned) bool {
	if !n.options.NoHot {
		n.countHit(s, now, req, e)
	}
	const is = heatTracked | heatHot
	return n.isHotByRoute(req.RingPos, e.Hotness()&is == is)
}

func (n *Node) countHit(s *shard, now int64, req *Request, e *counter.Owned) {
	t, h := &s.hot, e.Hotness()
	t.requests++
	tick := uint16(now>>tickLength%31+1) << heatTick
	if was := h &^ (heatTracked | heatCount); was != tick {
		if was == 0 || was>>heatEpoch != tick>>heatEpoch {
			t.active++
		}
		if h = tick | h&(heatTracked|heatCount); h&heatTracked == 0 {
			h = tick
		}
	}
	candidate := uint16(n.hotState.candidate.Load())
	if h&heatTracked != 0 {
		h += 2 * heatHot
		uncounted := h & heatCount / 2
		if uncounted <= candidate/64 {
			e.SetHotness(h)
			return
		}
		if h &^= heatCount &^ heatHot; t.rates.Count(hotkey.Digest(req.Key), now, float64(uncounted)) {
			e.SetHotness(h)
			return
		}
		h = tick
	}
	if h++; h&heatCount < candidate {
		e.SetHotness(h)
		return
	}
	e.SetHotness(tick)
	if t.rates.Follow(now, hotkey.Digest(req.Key), float64(candidate), req.HotFactor) {
		s.track(e)
	}
}

// track records in e whether its key is hot, and that the shard's Rates follow it.
func (s *shard) track(e *counter.Owned) {
	h := e.Hotness()
	if h&heatTracked == 0 {
		h = h&^heatCount | heatTracked
	}
	if h &^= heatHot; s.hot.rates.Hot(hotkey.Digest(e.Key())) {
		h |= heatHot
	}
	e.SetHotness(h)
}

// forwardsMany counts a question that another member is to be asked, and says whether its key makes up so much of what is
// forwarded that a lease is worth asking for.
func (n *Node) forwardsMany(s *shard, now int64, key Key) bool {
	if n.options.NoHot {
		return false
	}
	t := &s.hot
	if t.forwarded++; t.forwarded%sampled != 0 {
		return false
	}
	if t.forwards == nil {
		t.forwards = hotkey.NewSketch(n.options.Seed[0] ^ n.options.Seed[1])
	}
	return sampled*t.forwards.Add(now, hotkey.Digest(key)) > math.Float64frombits(n.hotState.heavy.Load())
}

// evaluateHot says twice a second which keys are hot: one at twice the bound is so within two seconds.
func (n *Node) evaluateHot(now int64, fx *Effects) {
	if h := &n.hotState; now-h.judged < int64(judgeEvery) && now >= h.judged {
		return
	}
	n.hotState.judged = now
	epoch := uint16(now >> tickLength % 31 / 8)
	turned := epoch != n.hotState.epoch
	n.hotState.epoch = epoch
	load := hotkey.Baseline{Mean: n.hotState.mean, Absolute: n.hotThreshold()}
	questions, active, forwarded := uint64(0), uint64(0), 0.0
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		t := &s.hot
		if t.forwards != nil {
			forwarded += sampled * t.forwards.Total(s.clock(now))
		}
		if turned {
			questions, active = questions+t.requests, active+t.active
			t.requests, t.active = 0, 0
		}
		if t.rates.Len() > 0 {
			n.applyHotChanges(s, now, t.rates.Tick(s.clock(now), load), fx)
		}
		s.mu.Unlock()
	}
	if turned && active > 0 {
		n.hotState.mean = float64(questions) / float64(active) / 8
	}
	n.hotState.heavy.Store(math.Float64bits(max(heavyRate, heavyPart*forwarded)))
}

// applyHotChanges follows up on keys that became hot, or are not any more.
func (n *Node) applyHotChanges(s *shard, now int64, changes []hotkey.HotChange, fx *Effects) {
	for _, c := range changes {
		key := Key(c.Key)
		_, hash := n.shard(key)
		if e := s.counters.Owned.Find(hash, key); e != nil {
			s.track(e)
		}
		if c.Hot {
			if s.hot.becameHot == nil {
				s.hot.becameHot = map[Key]int64{}
			}
			s.hot.becameHot[key] = now
			continue
		}
		delete(s.hot.becameHot, key)
		if lent := s.lent[key]; lent != nil && !lent.always && !n.isHot(s, key, lent.owner) {
			s.notifyHolders(now, key, lent, &lease.Notice{Kind: lease.Cool}, fx)
		}
	}
}

// HotKey is a key that this member owns and that is hot or lent.
type HotKey struct {
	Key                 Key
	Domain, Name, Owner string  // empty until somebody has told them
	Hash                uint64  // ring position
	Rate                float64 // questions a second, with those that holders decide
	Hot                 bool
	Since               int64 // when it became hot, Unix nanoseconds
	Rule                limit.Rule
	LeaseConfig         lease.Terms
	Used, Lent          uint64 // hits that stand against the limit, and of these, hits that holders may not have spent
	Splittable          bool   // the limit is large enough to be lent to all members
	Holders             []lease.HolderRecord
}

func (n *Node) hotKey(s *shard, now int64, key Key, rate float64) HotKey {
	y := HotKey{Key: key, Rate: rate, Since: s.hot.becameHot[key]}
	if m := s.names[key]; m != nil {
		y.Domain, y.Name, y.Owner, y.LeaseConfig = m.domain, m.name, m.owner, m.knobs
	}
	_, hash := n.shard(key)
	if e := s.counters.Owned.Find(hash, key); e != nil {
		y.Hash, y.Rule = e.RingPos(), s.counters.Rule(e)
		s.counters.Load(e, y.Rule, &s.state)
		y.Used = y.Rule.Used(&s.state, s.clock(now))
	}
	if lent := s.lent[key]; lent != nil {
		y.Hash, y.Rule, y.LeaseConfig = lent.owner, lent.rule, lent.knobs
		y.Lent, y.Holders = lent.Unspent(now), lent.Holders(now)
	}
	y.Hot = n.isHot(s, key, y.Hash)
	most := lease.Lendable(y.Rule)
	y.Splittable = most >= uint64(s.view.Ring().Len())
	return y
}

// HotKeys are the keys of this member that are hot or lent, the hottest first.
func (n *Node) HotKeys(now int64) []HotKey {
	var all []HotKey
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		s.hot.rates.All(now, func(hk hotkey.Digest, rate float64, hot bool) {
			if key := Key(hk); hot || s.lent[key] != nil {
				all = append(all, n.hotKey(s, now, key, rate))
			}
		})
		for key := range s.lent {
			if s.hot.rates.RateOf(now, hotkey.Digest(key)) == 0 {
				all = append(all, n.hotKey(s, now, key, 0))
			}
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b HotKey) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Key[0], b.Key[0]), cmp.Compare(a.Key[1], b.Key[1]))
	})
	return all
}
