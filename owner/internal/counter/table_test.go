package counter

import (
	"testing"
	"unsafe"
)

func TestEntrySize(t *testing.T) {
	if s := unsafe.Sizeof(entry{}); s > 48 {
		t.Errorf("an entry takes %d bytes, more than 48", s)
	}
}

// TestTableGrowsInSteps requires that growth never moves more than a few slots at once.
func TestTableGrowsInSteps(t *testing.T) {
	tab := newTable(&ledger{max: 1 << 20}, [2]uint64{})
	for i := range 50_000 {
		was, old := tab.moved, tab.old.size
		k := key(i)
		if tab.put(0, k, 0).setUntil(1); tab.old.size > 0 && tab.old.size == old && tab.moved-was > migrateStep {
			t.Fatalf("insertion %d moved %d slots", i, tab.moved-was)
		}
		if fill := float64(tab.n-1) / float64(tab.slots.size); fill > mostFull {
			t.Fatalf("%d entries in %d slots", tab.n, tab.slots.size)
		}
	}
	for i := range 50_000 {
		if k := key(i); tab.find(Hash(tab.seed, k), k) == nil {
			t.Fatalf("key %d is lost", i)
		}
	}
}

func TestExpiredEntriesMakeRoom(t *testing.T) {
	l := &ledger{max: 10, quota: 6, domains: &New(Config{}).domains}
	tab := newTable(l, [2]uint64{})
	put := func(now int64, i int, domain uint16) bool {
		k := key(i)
		e := tab.put(now, k, domain)
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
		if !put(Unit+ahead, 20+i, 3) {
			t.Fatalf("expired entries stay: key %d refused", i)
		}
	}
	if l.domains[3].Load() != 5 || l.keys.Load() > 10 {
		t.Fatalf("ledger: %d keys, %d of domain 3", l.keys.Load(), l.domains[3].Load())
	}
}

func BenchmarkFind(b *testing.B) {
	tab := newTable(&ledger{max: 1 << 20}, [2]uint64{})
	for i := range 8000 {
		k := key(i)
		tab.put(0, k, 0).setUntil(1)
	}
	k := key(4711)
	h := Hash(tab.seed, k)
	for b.Loop() {
		tab.find(h, k)
	}
}
