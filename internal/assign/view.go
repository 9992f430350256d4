package assign

import (
	"cmp"
	"slices"

	"github.com/keyward/keyward/envoy/rlqs"
	"github.com/keyward/keyward/internal/quota"
)

// KeyState describes one key that Envoys spend at a time.
type KeyState struct {
	quota.KeyView
	Bucket *rlqs.QuotaBucket // as it was last reported
	Envoys []quota.LineView  // the one with the highest rate first
}

// States describes the most keys, those with the most charged hits first, each with the most Envoys of the highest rates.
// It returns the time of the description, in Unix nanoseconds, and the number of all keys.
func (a *Assigner) States(mostKeys, mostEnvoys int) (now int64, states []KeyState, total int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now = a.now().UnixNano()
	keys := a.ledger.Keys()
	total = len(keys)
	slices.SortStableFunc(keys, func(x, y quota.KeyView) int { return cmp.Compare(y.Charged, x.Charged) })
	states = []KeyState{}
	for _, k := range keys[:min(total, mostKeys)] {
		s := KeyState{KeyView: k, Envoys: a.ledger.Lines(now, k.Key)}
		s.Envoys = s.Envoys[:min(len(s.Envoys), mostEnvoys)]
		if c := a.keys[k.Key]; c != nil {
			s.Bucket = c.bucket
		}
		states = append(states, s)
	}
	return now, states, total
}

// Streams returns the number of open streams of Envoys.
func (a *Assigner) Streams() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Streams()
}
