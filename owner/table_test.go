package owner

import (
	"testing"
	"unsafe"
)

func TestEntrySize(t *testing.T) {
	if s := unsafe.Sizeof(entry{}); s > 48 {
		t.Errorf("an entry takes %d bytes, more than 48", s)
	}
}

// The table against a map, through growth, shrinking, expiry and removal.
func TestTableAgainstMap(t *testing.T) {
	for seed := range uint64(20) {
		rnd := random(seed)
		l := &ledger{max: 1 << 20}
		tab := &table{seed: [2]uint64{rnd.Uint64(), rnd.Uint64()}, ledger: l}
		type mark struct {
			end   int64
			count uint32
		}
		twin := map[Key]mark{}
		now := int64(0)
		for step := range 20_000 {
			if step%5000 < 2500 { // a busy half, then a quiet one
				now += rnd.Int64N(2) * unit
			} else {
				now += rnd.Int64N(60) * unit
			}
			k := key(rnd.IntN(4000))
			h := hash(tab.seed, k)
			e, m := tab.find(h, k), twin[k]
			if m.end > now && (e == nil || e.charged != m.count || e.until() != m.end) {
				t.Fatalf("seed %d, step %d: entry %+v, want %+v", seed, step, e, m)
			}
			if e != nil && e.until() > now && m.end != e.until() {
				t.Fatalf("seed %d, step %d: %+v should not be there", seed, step, e)
			}
			switch rnd.IntN(12) {
			case 0:
				tab.remove(h, k)
				delete(twin, k)
			case 1:
				tab.sweep(now, 0, 200)
				tab.shrink(now)
			default:
				if e == nil {
					e = tab.insert(now, h, k, 3, false)
				}
				e.charged++
				e.setUntil(now + 1 + rnd.Int64N(3000*unit))
				twin[k] = mark{e.until(), e.charged}
			}
			if int(l.keys.Load()) != tab.n || tab.n > 0 && tab.n >= tab.slots.size {
				t.Fatalf("seed %d, step %d: %d in the ledger, %d counted, %d slots", seed, step, l.keys.Load(), tab.n, tab.slots.size)
			}
		}
		for range 1000 {
			tab.sweep(now+10_000*unit+int64(ahead), 0, 1000)
			tab.shrink(now)
		}
		if tab.n != 0 || tab.slots.size != 0 {
			t.Fatalf("seed %d: %d entries and %d slots left when all has expired", seed, tab.n, tab.slots.size)
		}
	}
}

// Growth never moves more than a few slots at once.
func TestTableGrowsInSteps(t *testing.T) {
	tab := &table{ledger: &ledger{max: 1 << 20}}
	for i := range 50_000 {
		was, old := tab.moved, tab.old.size
		k := key(i)
		if tab.insert(0, hash(tab.seed, k), k, 0, false).setUntil(1); tab.old.size > 0 && tab.old.size == old && tab.moved-was > migrateStep {
			t.Fatalf("insertion %d moved %d slots", i, tab.moved-was)
		}
		if fill := float64(tab.n-1) / float64(tab.slots.size); fill > mostFull {
			t.Fatalf("%d entries in %d slots", tab.n, tab.slots.size)
		}
	}
	for i := range 50_000 {
		if k := key(i); tab.find(hash(tab.seed, k), k) == nil {
			t.Fatalf("key %d is lost", i)
		}
	}
}

func TestExpiredEntriesMakeRoom(t *testing.T) {
	l := &ledger{max: 10, quota: 6, domains: &New(Options{}).domains}
	tab := &table{ledger: l}
	put := func(now int64, i int, domain uint16) bool {
		k := key(i)
		e := tab.insert(now, hash(tab.seed, k), k, domain, false)
		if e != nil {
			e.setUntil(now + 100)
		}
		return e != nil
	}
	for i := range 8 {
		if got, want := put(0, i, 1), i < 6; got != want {
			t.Fatalf("key %d of a domain with a quota of 6: %v", i, got)
		}
	}
	for i := range 6 {
		if got, want := put(0, 10+i, 2), i < 4; got != want {
			t.Fatalf("key %d above %d: %v", i, 6, got)
		}
	}
	for i := range 5 {
		if !put(unit+int64(ahead), 20+i, 3) {
			t.Fatalf("expired entries stay: key %d refused", i)
		}
	}
	if l.domains[3].Load() != 5 || l.keys.Load() > 10 {
		t.Fatalf("ledger: %d keys, %d of domain 3", l.keys.Load(), l.domains[3].Load())
	}
}

func BenchmarkFind(b *testing.B) {
	tab := &table{ledger: &ledger{max: 1 << 20}}
	for i := range 8000 {
		k := key(i)
		tab.insert(0, hash(tab.seed, k), k, 0, false).setUntil(1)
	}
	k := key(4711)
	h := hash(tab.seed, k)
	for b.Loop() {
		tab.find(h, k)
	}
}
