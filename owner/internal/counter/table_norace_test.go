//go:build !race

package counter

import "testing"

// TestTableAgainstMap compares a table with a map through growth, shrinking, expiry and removal.
func TestTableAgainstMap(t *testing.T) {
	for seed := range uint64(20) {
		rnd := random(seed)
		l := &ledger{max: 1 << 20}
		tab := newTable(l, [2]uint64{rnd.Uint64(), rnd.Uint64()})
		type mark struct {
			end   int64
			count uint32
		}
		twin := map[Key]mark{}
		now := int64(0)
		for step := range 20_000 {
			if step%5000 < 2500 { // a busy half, then a quiet one
				now += rnd.Int64N(2) * Unit
			} else {
				now += rnd.Int64N(60) * Unit
			}
			k := key(rnd.IntN(4000))
			h := Hash(tab.seed, k)
			e, m := tab.find(h, k), twin[k]
			if m.end > now && (e == nil || e.charged != m.count || e.until() != m.end) {
				t.Fatalf("seed %d, step %d: entry %+v, want %+v", seed, step, e, m)
			}
			if e != nil && e.until() > now && m.end != e.until() {
				t.Fatalf("seed %d, step %d: %+v should not be there", seed, step, e)
			}
			switch rnd.IntN(12) {
			case 0:
				tab.Remove(h, k)
				delete(twin, k)
			case 1:
				tab.sweep(now, 0, 200)
				tab.shrink(now)
			default:
				if e == nil {
					e = tab.put(now, k, 3)
				}
				e.charged++
				e.setUntil(now + 1 + rnd.Int64N(3000*Unit))
				twin[k] = mark{e.until(), e.charged}
			}
			if int(l.keys.Load()) != tab.n || tab.n > 0 && tab.n >= tab.slots.size {
				t.Fatalf("seed %d, step %d: %d in the ledger, %d counted, %d slots", seed, step, l.keys.Load(), tab.n, tab.slots.size)
			}
		}
		for range 1000 {
			tab.sweep(now+10_000*Unit+ahead, 0, 1000)
			tab.shrink(now)
		}
		if tab.n != 0 || tab.slots.size != 0 {
			t.Fatalf("seed %d: %d entries and %d slots left when all has expired", seed, tab.n, tab.slots.size)
		}
	}
}
