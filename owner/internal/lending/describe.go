package lending

import (
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

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
func (l *Leases) hotKey(now int64, key Key, rate float64) HotKey {
	y := HotKey{
		Key: key, Rate: rate, OwnRate: l.hot.rates.OwnRate(now, hotkey.Digest(key)), Since: l.hot.becameHot[key],
	}
	if m := l.names[key]; m != nil {
		y.KeyName, y.LeaseTerms = m.KeyName, m.terms
	}
	if e := l.counters.Find(key); e != nil {
		y.RingPos, y.Rule = e.RingPos(), l.counters.Rule(e)
		l.counters.Load(e, y.Rule, &l.state)
		y.Used = y.Rule.Used(&l.state, now)
	}
	if lent := l.lent[key]; lent != nil {
		y.RingPos, y.Rule, y.LeaseTerms = lent.ringPos, lent.rule, lent.terms
		y.Lent, y.Holders = lent.Unspent(now), lent.Holders(now)
	}
	y.Hot = l.isHot(key, y.RingPos)
	y.Splittable = lease.Lendable(y.Rule) >= uint64(l.view.Ring().Len())
	return y
}

// HotKeys appends the keys of the shard that are hot or lent to all.
func (l *Leases) HotKeys(now int64, all []HotKey) []HotKey {
	l.hot.rates.All(now, func(hk hotkey.Digest, rate float64, hot bool) {
		if key := Key(hk); hot || l.lent[key] != nil {
			all = append(all, l.hotKey(now, key, rate))
		}
	})
	for key := range l.lent {
		if l.hot.rates.RateOf(now, hotkey.Digest(key)) == 0 {
			all = append(all, l.hotKey(now, key, 0))
		}
	}
	return all
}

// HeldKey describes a lease of a key that another member owns.
type HeldKey struct {
	Key Key
	KeyName
	Member     ring.ID // the grantor
	Window     int64   // of the leased hits
	Left, Have uint64
	Demand     float64 // hits per second
	Denied     bool
	Expires    int64 // Unix nanoseconds
	Mechanism  policy.Mechanism
}

// Held appends the leases that this member holds of keys in the shard to all, in the order of their keys.
func (l *Leases) Held(now int64, all []HeldKey) []HeldKey {
	for _, key := range counter.SortedKeys(l.held) {
		held := l.held[key]
		x := HeldKey{
			Key: key, Member: held.grantor, Window: held.Window(), Left: held.Left(now), Have: held.Have(),
			Demand: held.Demand(now), Denied: now < held.DeniedUntil(), Expires: held.Expires(), Mechanism: held.mechanism,
		}
		if m := l.names[key]; m != nil {
			x.KeyName = m.KeyName
		}
		all = append(all, x)
	}
	return all
}
