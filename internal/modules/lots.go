package modules

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/assign/lots"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/sublease"
	"github.com/keyward/keyward/owner"
)

// lot is a number of hits that the owner has charged to a window at once. It is a hold, so it can be given back once: if
// this member fails, it stays charged.
type lot struct {
	id     claim.Ident
	window int64
	hits   uint64
	until  int64 // when it can be given back at the latest
	by     owner.Request
}

const (
	// silentTimeout is how long an owner that does not answer is waited for, and liveTimeout one that is live.
	silentTimeout = 50 * time.Millisecond
	liveTimeout   = time.Second
	// lotMargin is how much longer than its hits stay with Envoys a hold lives. Then it lapses, and its hits stay charged. So the
	// owner has few open holds of a key.
	lotMargin = time.Second
)

// ask asks the owner for hits, without waiting. l.mu is locked.
func (l *Lessor) ask(h sublease.LotAsk) {
	k := l.keys[h.Key]
	if k != nil {
		select {
		case l.asks <- struct{}{}:
		default:
			k = nil
		}
	}
	if k == nil {
		l.book.Granted(l.now().UnixNano(), sublease.Lot{KeyHits: sublease.KeyHits{Key: h.Key, Window: h.Window}})
		return
	}
	r, limit := k.match.Request, k.limit()
	l.running.Go(func() {
		got, left, known := l.reserve(&r, h, limit)
		<-l.asks
		l.mu.Lock()
		defer l.mu.Unlock()
		if now := l.keys[h.Key]; now != nil && now.match.Request.Key != r.Key { // the rules have changed, and it has another counter
			if x := got; x != nil {
				l.running.Go(func() { l.settle(x.by, owner.Release, 0, x.id) })
			}
			got, left, known = nil, 0, false
		}
		granted := sublease.Lot{KeyHits: sublease.KeyHits{Key: h.Key, Window: h.Window}, Left: left, Known: known}
		if got != nil {
			granted.Hits = got.hits
			l.addLot(h.Key, k, *got)
		}
		now := l.now().UnixNano()
		l.book.Granted(now, granted)
		if l.closed && got != nil {
			l.giveBack(now, granted.KeyHits)
		}
		l.tick(now)
	})
}

// addLot keeps a lot for its return. The key may have been forgotten in the meantime, or made again.
func (l *Lessor) addLot(key string, k *leasedKey, got lot) {
	if now := l.keys[key]; now == nil {
		l.keys[key] = k
	} else {
		k = now
	}
	k.lots = append(k.lots, got)
}

// reserve makes a hold of h at the owner, which replicates the charge before it answers. It returns the lot, or nil, and how
// many hits are left of the limit, if that is known.
func (l *Lessor) reserve(r *owner.Request, h sublease.LotAsk, limit sublease.Limit) (got *lot, left uint64, known bool) {
	sent := l.now()
	x := &lot{id: claim.Ident{rand.Uint64(), rand.Uint64()}, window: h.Window, hits: h.Hits, until: sent.Add(h.Life).UnixNano(), by: *r}
	q := *r
	q.Op, q.Hits, q.Strict, q.Hold = owner.Reserve, h.Hits, true, &owner.Hold{ID: x.id, TTL: h.Life + lotMargin}
	res := l.decide(sent, q)
	byOwner := res.Authority.FromCounter()
	known = byOwner && limit.ChargedTo(h.Window, sent.UnixNano(), l.now().UnixNano(), res.Reset)
	switch all := uint64(r.Rule.Depth()); {
	case res.Over && known:
		return nil, all - min(all, res.Before), true
	case res.Over && byOwner, res.Authority == owner.Shed:
		return nil, 0, false
	case !known: // charged by this member's share, or to another window, or perhaps not
		l.settle(q, owner.Release, 0, x.id)
		return nil, 0, false
	default:
		return x, all - min(all, res.After), true
	}
}

// decide lets the owner decide q.
func (l *Lessor) decide(now time.Time, q owner.Request) owner.Result {
	return lots.Decide(l.charger, policy.Deadline{Silent: now.Add(silentTimeout), Alive: now.Add(liveTimeout)}, q)
}

// settle settles a hold, and reports whether the owner has confirmed it.
func (l *Lessor) settle(q owner.Request, op owner.Op, used uint64, id claim.Ident) bool {
	return l.decide(l.now(), lots.Settle(q, op, used, id)).Authority.FromCounter()
}

// giveBack returns hits to the owner, those of complete lots if possible. Hits without a lot stay charged. l.mu is locked.
func (l *Lessor) giveBack(now int64, h sublease.KeyHits) {
	k := l.keys[h.Key]
	if k == nil {
		l.unreturned.Add(h.Hits)
		return
	}
	k.dropLots(now)
	for h.Hits > 0 {
		i := k.lotFor(h)
		if i < 0 { // their lots were settled before, or have lapsed
			l.unreturned.Add(h.Hits)
			return
		}
		x := k.lots[i]
		k.lots = slices.Delete(k.lots, i, i+1) // a hold is settled once
		op, used := owner.Release, uint64(0)
		if x.hits > h.Hits {
			op, used = owner.Commit, x.hits-h.Hits
		}
		h.Hits -= x.hits - used
		l.running.Go(func() {
			to := &l.unreturned
			if l.settle(x.by, op, used, x.id) {
				to = &l.returned
			}
			to.Add(x.hits - used)
		})
	}
}

// lotFor returns the index of the lot to settle for h: the smallest that has as many hits, else the largest, or -1.
func (k *leasedKey) lotFor(h sublease.KeyHits) int {
	best := -1
	for i, x := range k.lots {
		if x.window != h.Window {
			continue
		}
		if best < 0 {
			best = i
			continue
		}
		b := k.lots[best].hits
		if enough := b >= h.Hits; enough && x.hits >= h.Hits && x.hits < b || !enough && x.hits > b {
			best = i
		}
	}
	return best
}

// dropLots forgets the lots that cannot be given back any more.
func (k *leasedKey) dropLots(now int64) {
	k.lots = slices.DeleteFunc(k.lots, func(x lot) bool { return x.until <= now })
}
