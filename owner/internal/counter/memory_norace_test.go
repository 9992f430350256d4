//go:build !race

package counter

import "testing"

// TestBytesPerKey requires at most 64 bytes a key, at any size beyond a few pages, also while the table grows.
func TestBytesPerKey(t *testing.T) {
	tab := newTable(&ledger{max: 1 << 20}, [2]uint64{})
	worst, at80 := 0.0, 0.0
	for i := range 200_000 {
		k := key(i)
		tab.put(0, k, 0).setUntil(1)
		each := float64(tab.Bytes()) / float64(tab.n)
		if i > 40*pageSlots {
			worst = max(worst, each)
		}
		if i > 40*pageSlots && tab.n == tab.slots.size*4/5 {
			at80 = max(at80, each)
		}
	}
	t.Logf("at most %.1f bytes a key, at 80 %% fill %.1f", worst, at80)
	if worst > 66 || at80 > 64 || at80 == 0 {
		t.Errorf("%.1f bytes a key, at 80 %% fill %.1f", worst, at80)
	}
}

// TestSweepIsBounded requires that a sweep of a full table of expired entries visits no more than its step and one
// chain.
func TestSweepIsBounded(t *testing.T) {
	tab := newTable(&ledger{max: 1 << 20}, [2]uint64{3, 4})
	for i := 0; i < 100_000 || float64(tab.n) < mostFull*float64(tab.slots.size); i++ {
		k := spread(i)
		tab.put(0, k, 0).setUntil(Unit * int64(1+i%2))
	}
	most := 0
	for left := tab.n; left > 50_000; left = tab.n {
		was := tab.swept
		if tab.sweep(Unit+ahead, 0, 256) {
			break
		}
		most = max(most, tab.swept-was)
	}
	t.Logf("at most %d slots", most)
	if most > 256+1500 {
		t.Errorf("%d slots under one lock", most)
	}
	for i := range 100_000 {
		if k := spread(i); i%2 == 1 && tab.find(Hash(tab.seed, k), k) == nil {
			t.Fatalf("key %d is lost", i)
		}
	}
}
