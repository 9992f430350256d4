package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// TestPartThatMissesNoMoreThanFIsWhole cuts off one of five members. The others miss no more than f, so they admit the
// complete limit; the one admits its local share.
func TestPartThatMissesNoMoreThanFIsWhole(t *testing.T) {
	for _, c := range []struct {
		apart []ring.ID
		whole uint64 // what the larger part admits
	}{{[]ring.ID{"a"}, 100}, {[]ring.ID{"a", "b"}, 60}} {
		w := newNetwork(t, 3, Options{Policy: policy.PartShare}, "a", "b", "c", "d", "e")
		side := func(id ring.ID) bool { return id == c.apart[0] || id == c.apart[len(c.apart)-1] }
		w.cut = func(from, to ring.ID) bool { return side(from) != side(to) }
		w.run(2 * time.Second)
		key := ownedBy(t, w.ring(), "e", 0)
		admitted := uint64(0)
		for range 150 {
			w.ask("d", ask(key, 100, time.Hour, 1), func(res Result) {
				if !res.Over {
					admitted++
				}
			})
			w.run(4 * time.Millisecond)
		}
		if admitted != c.whole {
			t.Errorf("%d of five are cut off: the others admit %d of 100, want %d", len(c.apart), admitted, c.whole)
		}
	}
}
