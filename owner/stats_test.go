package owner

import (
	"reflect"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// TestStatsCountOwnedKeys requires that a member counts the keys it owns, with requests or without, and that all
// members together count each key once.
func TestStatsCountOwnedKeys(t *testing.T) {
	w := newNetwork(t, 3, Options{}, "a", "b")
	const keys = 2000
	for i := range keys {
		w.ask("a", ask(i, 10, time.Hour, 1), func(Result) {})
	}
	w.run(time.Second)
	check := func(when string, missing int) {
		t.Helper()
		sum := 0
		for _, id := range w.ids() {
			n, r, want := w.nodes[id], w.ring(), 0
			f, self := n.Stats(w.now), r.Index(id)
			for i := range keys {
				if req := ask(i, 1, time.Hour, 1); r.Owner(req.RingPos) == self {
					want++
				}
			}
			if f.Owned != want || f.Owned > f.Keys+f.Replicas {
				t.Errorf("%s: %s counts %d of its %d keys among %d and %d", when, id, f.Owned, want, f.Keys, f.Replicas)
			}
			if self >= 0 && f.Confirming != r.Len() || f.AcksMissing != missing || f.Unconfirmed != missing {
				t.Errorf("%s: %s is confirmed by %d of %d, misses %d acknowledgements, %d confirmations", when, id, f.Confirming, r.Len(), f.AcksMissing, f.Unconfirmed)
			}
			sum += f.Owned
		}
		if sum != keys {
			t.Errorf("%s: %d keys are counted, of %d", when, sum, keys)
		}
	}
	check("before", 0)
	w.boot("c", membership.Active)
	w.nref = 3
	w.adopt()
	if f := w.nodes["c"].Stats(w.now); f.AcksMissing != 2 || f.Owned != 0 {
		t.Errorf("a new member without messages of others misses %d acknowledgements and decides %d keys", f.AcksMissing, f.Owned)
	}
	w.run(3 * time.Second)
	check("after a join", 0)
	w.cut = func(from, to ring.ID) bool { return from == "c" || to == "c" }
	w.run(3 * time.Second)
	if f := w.nodes["c"].Stats(w.now); f.Confirming != 1 || f.Owned != 0 || f.AcksMissing != 2 {
		t.Errorf("cut off, it is confirmed by %d, decides %d keys and misses %d acknowledgements", f.Confirming, f.Owned, f.AcksMissing)
	}
}

// TestCountsAdd requires that the sum of the shards' counts has every field.
func TestCountsAdd(t *testing.T) {
	var one, sum counts
	fillCounts(reflect.ValueOf(&one).Elem(), new(uint64))
	if sum.add(&one); sum != one {
		t.Errorf("the sum is %+v, want %+v", sum, one)
	}
}

// fillCounts sets all numbers in v to different ones.
func fillCounts(v reflect.Value, last *uint64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fillCounts(v.Field(i), last)
		}
	case reflect.Array:
		for i := range v.Len() {
			fillCounts(v.Index(i), last)
		}
	default:
		*last++
		v.SetUint(*last)
	}
}
