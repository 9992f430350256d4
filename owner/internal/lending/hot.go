package lending

import (
	"math"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
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

	sampled = 4 // one forwarded request in so many is counted
)

// hotStats counts a shard's requests. The shard's mu guards it.
type hotStats struct {
	rates     hotkey.Rates
	forwards  *hotkey.Sketch // of requests for other members' keys; nil until there is one
	becameHot map[Key]int64  // when each hot key became hot
	forwarded uint32         // requests for other members' keys
	requests  uint64         // in this epoch of eight ticks
	active    uint64         // keys with requests in it
}

// isHot reports whether key, which this member owns, is hot.
func (l *Leases) isHot(key Key, ringPos uint64) bool {
	return l.lender.isHot(ringPos, l.hot.rates.Hot(hotkey.Digest(key)))
}

// IsHot reports whether the key of e, at ringPos, is hot, according to the requests counted by RecordHit.
func (l *Leases) IsHot(e *counter.Owned, ringPos uint64) bool {
	const hot = heatTracked | heatHot
	return l.lender.isHot(ringPos, e.Hotness()&hot == hot)
}

// RecordHit counts a request that was decided by e. Its key is hot above factor times the mean rate of the other active keys; 0
// means 10.
func (l *Leases) RecordHit(now int64, e *counter.Owned, factor uint16) {
	if l.lender.config.NoHot {
		return
	}
	t, h := &l.hot, e.Hotness()
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
	candidate := uint16(l.lender.candidate.Load())
	if h&heatTracked != 0 {
		h += 2 * heatHot
		uncounted := h & heatCount / 2
		if uncounted <= candidate/64 {
			e.SetHotness(h)
			return
		}
		if h &^= heatCount &^ heatHot; t.rates.Count(hotkey.Digest(e.Key()), now, float64(uncounted)) {
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
	if t.rates.Follow(now, hotkey.Digest(e.Key()), float64(candidate), factor) {
		l.track(e)
	}
}

// RecordAhead counts hits that were charged to e for Envoys, ahead of the window that ends at end. Its key stays hot by
// them, and keeps its name: Envoys decide its requests, so the owner sees none.
func (l *Leases) RecordAhead(now int64, e *counter.Owned, end, length int64, hits uint64) {
	if l.lender.config.NoHot {
		return
	}
	l.hot.rates.Ahead(now, hotkey.Digest(e.Key()), end, length, float64(hits))
	l.track(e)
	if x := l.names[e.Key()]; x != nil {
		x.usedAt = max(x.usedAt, end)
	}
}

// track records in e whether its key is hot, and that the shard's Rates follow it.
func (l *Leases) track(e *counter.Owned) {
	h := e.Hotness()
	if h&heatTracked == 0 {
		h = h&^heatCount | heatTracked
	}
	if h &^= heatHot; l.hot.rates.Hot(hotkey.Digest(e.Key())) {
		h |= heatHot
	}
	e.SetHotness(h)
}

// forwardsMany counts a request that is forwarded. It reports whether so many requests for its key are forwarded that
// this member should request a lease.
func (l *Leases) forwardsMany(now int64, key Key) bool {
	if l.lender.config.NoHot {
		return false
	}
	t := &l.hot
	if t.forwarded++; t.forwarded%sampled != 0 {
		return false
	}
	if t.forwards == nil {
		t.forwards = hotkey.NewSketch(l.lender.config.Seed[0] ^ l.lender.config.Seed[1])
	}
	return sampled*t.forwards.Add(now, hotkey.Digest(key)) > math.Float64frombits(l.lender.heavy.Load())
}

// EvaluateHot updates the keys that became hot or are not hot any more, and notifies holders. See StartEvaluation.
func (l *Leases) EvaluateHot(now int64, out *Outbox) {
	t, x := &l.hot, &l.lender.evaluation
	if t.forwards != nil {
		x.forwarded += sampled * t.forwards.Total(now)
	}
	if x.baseline.EpochEnd {
		x.requests, x.active = x.requests+t.requests, x.active+t.active
		t.requests, t.active = 0, 0
	}
	if t.rates.Len() == 0 {
		return
	}
	for _, c := range t.rates.Tick(now, x.baseline) {
		l.applyHotChange(now, c, out)
	}
}

// applyHotChange processes that a key became hot or is not hot any more.
func (l *Leases) applyHotChange(now int64, c hotkey.HotChange, out *Outbox) {
	key := Key(c.Key)
	if e := l.counters.Find(key); e != nil {
		l.track(e)
	}
	if c.Hot {
		if l.hot.becameHot == nil {
			l.hot.becameHot = map[Key]int64{}
		}
		l.hot.becameHot[key] = now
		return
	}
	delete(l.hot.becameHot, key)
	if lent := l.lent[key]; lent != nil && !lent.always && !l.isHot(key, lent.ringPos) {
		lent.notifyHolders(now, &lease.Notice{Kind: lease.Cool}, out)
	}
}

// reliefPart is the least part of a hot key's requests that holders decide when the key counts as relieved.
const reliefPart = 0.25

// unrelieved returns the number of hot keys whose requests this member decides nearly alone.
func (l *Leases) unrelieved(now int64) (keys int) {
	cool := l.lender.hotThreshold() / 2 // below it a key cools
	l.hot.rates.All(now, func(k hotkey.Digest, rate float64, hot bool) {
		if own := l.hot.rates.OwnRate(now, k); hot && own >= cool && !l.relieved(now, Key(k), 1-own/rate) {
			keys++
		}
	})
	return keys
}

// relieved reports whether holders decide the given part of the requests for key, which they report, and whether that
// is enough. A route is no relief by itself, because Envoys may not use it; neither is a holder that gets no grants,
// because it forwards its requests to this member.
func (l *Leases) relieved(now int64, key Key, part float64) bool {
	lent := l.lent[key]
	if lent == nil || part < reliefPart {
		return false
	}
	if l.counters.Find(key) == nil {
		return false // a sketch never lends
	}
	return lent.level == levelExhausted || lease.Lendable(lent.rule) >= uint64(len(lent.Holders(now)))
}
