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

// The hotness of a counter is, from the top: the tick of its last request, 1 to 31 (5 bits); whether the shard's Rates
// follow its key; and 10 more bits. While the Rates do not follow the key, these count the requests of that tick.
// While they do, these count the requests that the Rates have not counted yet, and the last bit reports whether the
// key is hot. So a decision costs a comparison and a count, and only a few decisions use the Rates.
const (
	heatTick    = 11
	heatEpoch   = heatTick + 3
	heatTracked = 1 << 10
	heatCount   = heatTracked - 1
	heatHot     = 1  // with heatTracked
	tickLength  = 30 // bits of nanoseconds: 1.07 s

	evaluateEvery = 500 * time.Millisecond

	defaultCapacity = 50_000 // requests per second, until SetLoad
	hotPart         = 0.05   // of the capacity
	heavyRate       = 200    // forwarded requests per second of one key above which this member requests a lease
	heavyPart       = 0.02   // and this fraction of all that it forwards
	sampled         = 4      // one forwarded request in so many is counted
)

// hotState holds the Node's load and the thresholds for hot keys.
type hotState struct {
	capacity   atomic.Uint64 // float64 bits; requests per second
	overloaded atomic.Bool
	candidate  atomic.Uint32                          // requests in a tick that make a key a candidate
	heavy      atomic.Uint64                          // float64 bits; forwarded requests per second of one key
	modes      atomic.Pointer[map[uint64]hotkey.Mode] // by ring position; what routes set

	// The Node's serial guards the rest.
	evaluatedAt int64
	epoch       uint16
	mean        float64 // rate of all keys, in requests per second
}

// hotStats counts a shard's requests. The shard's mu guards it.
type hotStats struct {
	rates     hotkey.Rates
	forwards  *hotkey.Sketch // of requests for other members' keys; nil until there is one
	becameHot map[Key]int64  // when each hot key became hot
	forwarded uint32         // requests for other members' keys
	requests  uint64         // in this epoch of eight ticks
	active    uint64         // keys with requests in it
}

// SetLoad sets how many requests per second this machine could decide, and whether it is overloaded: then keys are hot
// at half the rate. It may be called concurrently with anything else.
func (n *Node) SetLoad(capacity float64, overloaded bool) {
	n.hotState.capacity.Store(math.Float64bits(capacity))
	n.hotState.overloaded.Store(overloaded)
	n.hotState.candidate.Store(uint32(min(heatCount, max(1, n.hotThreshold()/4))))
}

// hotThreshold returns H_abs, in requests per second.
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

// SetRoutes makes the keys of the owner strings in rs always or never hot, as the modes of their routes require. hash
// is Envoy's hash. SetRoutes may be called concurrently with anything else.
func (n *Node) SetRoutes(rs []hotkey.Route, hash func(string) uint64) {
	var modes map[uint64]hotkey.Mode
	for i := range rs {
		if m := rs[i].Mode; m == hotkey.Spread || m == hotkey.Dedicated || m == hotkey.Never {
			if modes == nil {
				modes = map[uint64]hotkey.Mode{}
			}
			modes[hash(rs[i].Owner)] = m
		}
	}
	if modes == nil {
		n.hotState.modes.Store(nil)
		return
	}
	n.hotState.modes.Store(&modes)
}

// routeMode returns the mode that a route sets for the keys at a ring position, or Auto.
func (n *Node) routeMode(ringPos uint64) hotkey.Mode {
	if d := n.hotState.modes.Load(); d != nil {
		return (*d)[ringPos]
	}
	return hotkey.Auto
}

// isHot reports whether key, which this member owns, is hot.
func (n *Node) isHot(s *shard, key Key, ringPos uint64) bool {
	return n.isHotByRoute(ringPos, s.hot.rates.Hot(hotkey.Digest(key)))
}

// isHotByRoute reports whether a key is hot: as a route for its ring position requires, or else as it was measured.
func (n *Node) isHotByRoute(ringPos uint64, measured bool) bool {
	switch n.routeMode(ringPos) {
	case hotkey.Spread, hotkey.Dedicated:
		return true
	case hotkey.Never:
		return false
	}
	return measured
}

// recordHit counts op, which was decided by e. It reports whether the key is hot.
func (n *Node) recordHit(s *shard, op *shardOp, e *counter.Owned) bool {
	if !n.options.NoHot {
		n.countHit(s, op, e)
	}
	const hot = heatTracked | heatHot
	return n.isHotByRoute(op.RingPos, e.Hotness()&hot == hot)
}

// countHit counts op in the hotness of e.
func (n *Node) countHit(s *shard, op *shardOp, e *counter.Owned) {
	t, h, now := &s.hot, e.Hotness(), op.now
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
		if h &^= heatCount &^ heatHot; t.rates.Count(hotkey.Digest(op.Key), now, float64(uncounted)) {
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
	if t.rates.Follow(now, hotkey.Digest(op.Key), float64(candidate), op.HotFactor) {
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

// forwardsMany counts a request that is forwarded. It reports whether so many requests for its key are forwarded that
// this member should request a lease.
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

// evaluateHot determines twice a second which keys are hot. A key at twice the threshold is hot within two seconds.
func (n *Node) evaluateHot(now int64, fx *Ready) {
	if h := &n.hotState; now-h.evaluatedAt < int64(evaluateEvery) && now >= h.evaluatedAt {
		return
	}
	n.hotState.evaluatedAt = now
	epoch := uint16(now >> tickLength % 31 / 8)
	ended := epoch != n.hotState.epoch
	n.hotState.epoch = epoch
	load := hotkey.Baseline{Mean: n.hotState.mean, Absolute: n.hotThreshold()}
	requests, active, forwarded := uint64(0), uint64(0), 0.0
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		t := &s.hot
		if t.forwards != nil {
			forwarded += sampled * t.forwards.Total(s.clock(now))
		}
		if ended {
			requests, active = requests+t.requests, active+t.active
			t.requests, t.active = 0, 0
		}
		if t.rates.Len() > 0 {
			n.applyHotChanges(s, now, t.rates.Tick(s.clock(now), load), fx)
		}
		s.mu.Unlock()
	}
	if ended && active > 0 {
		n.hotState.mean = float64(requests) / float64(active) / 8
	}
	n.hotState.heavy.Store(math.Float64bits(max(heavyRate, heavyPart*forwarded)))
}

// applyHotChanges updates the keys that became hot or are not hot any more, and notifies holders.
func (n *Node) applyHotChanges(s *shard, now int64, changes []hotkey.HotChange, fx *Ready) {
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
		if lent := s.lent[key]; lent != nil && !lent.always && !n.isHot(s, key, lent.ringPos) {
			lent.notifyHolders(now, &lease.Notice{Kind: lease.Cool}, fx)
		}
	}
}

// HotKey is a key that this member owns and that is hot or lent.
type HotKey struct {
	Key Key
	KeyName
	RingPos    uint64
	Rate       float64 // requests per second, including those that holders decide
	OwnRate    float64 // requests per second that this member decides itself
	Hot        bool
	Since      int64 // when it became hot, Unix nanoseconds
	Rule       limit.Rule
	LeaseTerms lease.Terms
	Used, Lent uint64 // hits that count against the limit, and of these, hits that holders may not have spent
	Splittable bool   // the limit is large enough to be lent to all members
	Holders    []lease.HolderRecord
}

// hotKey describes key.
func (n *Node) hotKey(s *shard, now int64, key Key, rate float64) HotKey {
	y := HotKey{
		Key: key, Rate: rate, OwnRate: s.hot.rates.OwnRate(now, hotkey.Digest(key)), Since: s.hot.becameHot[key],
	}
	if m := s.names[key]; m != nil {
		y.KeyName, y.LeaseTerms = m.KeyName, m.terms
	}
	_, hash := n.shard(key)
	if e := s.counters.Owned.Find(hash, key); e != nil {
		y.RingPos, y.Rule = e.RingPos(), s.counters.Rule(e)
		s.counters.Load(e, y.Rule, &s.state)
		y.Used = y.Rule.Used(&s.state, s.clock(now))
	}
	if lent := s.lent[key]; lent != nil {
		y.RingPos, y.Rule, y.LeaseTerms = lent.ringPos, lent.rule, lent.terms
		y.Lent, y.Holders = lent.Unspent(now), lent.Holders(now)
	}
	y.Hot = n.isHot(s, key, y.RingPos)
	y.Splittable = lease.Lendable(y.Rule) >= uint64(s.view.Ring().Len())
	return y
}

// reliefPart is the least part of a hot key's requests that holders decide when the key counts as relieved.
const reliefPart = 0.25

// unrelieved returns the number of hot keys of s whose requests this member decides nearly alone.
func (n *Node) unrelieved(s *shard, now int64) (keys int) {
	cool := n.hotThreshold() / 2 // below it a key cools
	s.hot.rates.All(now, func(k hotkey.Digest, rate float64, hot bool) {
		if own := s.hot.rates.OwnRate(now, k); hot && own >= cool && !n.relieved(s, now, Key(k), 1-own/rate) {
			keys++
		}
	})
	return keys
}

// relieved reports whether holders decide the given part of the requests for key, which they report, and whether that
// is enough. A route is no relief by itself, because Envoys may not use it; neither is a holder that gets no grants,
// because it forwards its requests to this member.
func (n *Node) relieved(s *shard, now int64, key Key, part float64) bool {
	lent := s.lent[key]
	if lent == nil || part < reliefPart {
		return false
	}
	_, hash := n.shard(key)
	if s.counters.Owned.Find(hash, key) == nil {
		return false // a sketch never lends
	}
	return lent.level == levelExhausted || lease.Lendable(lent.rule) >= uint64(len(lent.Holders(now)))
}

// HotKeys returns the keys of this member that are hot or lent, the hottest first.
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
