package owner

import (
	"cmp"
	"slices"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
)

// KeyBudget is the counter of a key that this member owns and that has holds.
type KeyBudget struct {
	Key     Key
	RingPos uint64
	Rule    limit.Rule
	Used    uint64        // hits that count against the limit, held ones included
	Held    uint64        // hits of open holds
	Open    uint64        // open holds
	Oldest  int64         // when the oldest open hold was made, Unix nanoseconds; 0 if none is open
	Reset   time.Duration // until hits stop to count; see limit.Decision
}

// Spent returns the hits that count against the limit and that no open hold may give back. Open holds may also have hits
// of windows that have ended; such hits are not part of Used.
func (b *KeyBudget) Spent() uint64 { return saturatingSub(b.Used, b.Held) }

// share returns the part of the limit that is used.
func (b *KeyBudget) share() float64 { return float64(b.Used) / float64(max(1, b.Rule.Depth())) }

// Budgets returns the counters of the keys with holds that this member owns: at most most of them, those first of whose
// limit the largest part is used. total is the number of all. A key is listed while a hold of it is open, and for about
// a minute afterwards. Keys that move meanwhile may be missed.
func (n *Node) Budgets(now int64, most int) (list []KeyBudget, total int) {
	byShare := func(a, b KeyBudget) int { return cmp.Or(cmp.Compare(b.share(), a.share()), a.Key.Compare(b.Key)) }
	for i := range n.shards {
		s := &n.shards[i]
		oldest := map[Key]int64{}
		s.eachOwnedClaim(func(c *claim.Claim) {
			at, known := oldest[c.Key]
			switch {
			case c.Flags()&(claim.Once|claim.Set) != 0:
			case !c.Live():
				oldest[c.Key] = at
			case !known || at == 0 || c.Made() < at:
				oldest[c.Key] = c.Made()
			}
		})
		for key, at := range oldest {
			if b, ok := s.budget(now, key); ok {
				if b.Open > 0 {
					b.Oldest = at
				}
				list = append(list, b)
				total++
			}
		}
		if len(list) > 2*most {
			slices.SortFunc(list, byShare)
			list = list[:most]
		}
	}
	slices.SortFunc(list, byShare)
	return list[:min(len(list), most)], total
}

// budget returns the KeyBudget of key, without Oldest. It returns false if this member has no counter of key any more.
func (s *shard) budget(now int64, key Key) (b KeyBudget, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.counters.Find(key)
	if e == nil {
		return b, false
	}
	held := s.counters.Claims.Totals(key)
	b = KeyBudget{Key: key, RingPos: e.RingPos(), Rule: s.counters.Rule(e), Held: held.Held, Open: uint64(held.Open)}
	at := s.clock(now)
	s.state.TAT, s.state.Slots = 0, s.state.Slots[:0]
	if s.counters.End(e, b.Rule) > at {
		s.counters.Load(e, b.Rule, &s.state)
	}
	d := b.Rule.Peek(&s.state, at, 0)
	b.Used, b.Reset = d.After, d.Reset
	return b, true
}

// eachOwnedClaim calls f with each claim of the keys that this member owns. It unlocks the shard between steps, so it may
// miss claims that come or move meanwhile, or see one twice.
func (s *shard) eachOwnedClaim(f func(*claim.Claim)) {
	at, end := uint32(0), false
	for !end {
		s.mu.Lock()
		at, end = s.counters.Claims.Scan(at, lockSlots, func(c *claim.Claim) {
			if s.view.Ownership(c.RingPos, s.counters.Find(c.Key).OwnedEpoch(c.RingPos)).State == handoff.OwnedHere {
				f(c)
			}
		})
		s.mu.Unlock()
	}
}

// countHolds returns the number of open holds of the keys that this member owns, and their hits.
func (s *shard) countHolds() (holds int, hits uint64) {
	s.eachOwnedClaim(func(c *claim.Claim) {
		if c.Live() {
			holds++
			hits += uint64(c.Amount)
		}
	})
	return holds, hits
}
