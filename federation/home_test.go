package federation

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Keys have homes in proportion to the weights, and a region that leaves moves only its own keys.
func TestHomes(t *testing.T) {
	layout := func(weights ...uint32) *Layout {
		l := &Layout{Coordinator: SpreadCoordinator}
		for i := range weights {
			l.Regions = append(l.Regions, LayoutRegion{Name: fmt.Sprint("r", i), Weight: &weights[i]})
		}
		return l
	}
	all, fewer := NewHomes(layout(1, 2, 1, 0)), NewHomes(layout(1, 2))
	const keys = 40_000
	r := rand.New(rand.NewPCG(1, 1))
	count := map[uint32]int{}
	left := AuthorityID("r2")
	for range keys {
		k := Key{r.Uint64(), r.Uint64()}
		h := all.Of(k)
		count[h]++
		if now := fewer.Of(k); h != left && now != h {
			t.Fatalf("key %v moves from %d to %d although both stay", k, h, now)
		}
	}
	for i, want := range []int{keys / 4, keys / 2, keys / 4, 0} {
		if n := count[AuthorityID(fmt.Sprint("r", i))]; n < want-want/20 || n > want+want/20 {
			t.Errorf("region %d coordinates %d keys, not about %d", i, n, want)
		}
	}
}
