//go:build !race

package hotkey

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/keyward/keyward/ring"
)

func TestPlaceSpreadsKeysOverEquallyLoadedMembers(t *testing.T) {
	for members, keys := range map[int]int{20: 500, 100: 1500} {
		r, at := ringOf(equal(members)...), map[ring.ID]int{}
		for i := range keys {
			for _, id := range membersOf(targets(r, nil).place(fmt.Sprint("customer-", i), 4)) {
				at[id]++
			}
		}
		for _, id := range idsOf(r) {
			if mean := keys * 4 / members; at[id] < mean/2 || at[id] > mean*3/2 {
				t.Errorf("%s has %d sub-keys, the mean is %d", id, at[id], mean)
			}
		}
	}
}

func TestPlaceDependsOnItsArgumentsAlone(t *testing.T) {
	load := map[ring.ID]float64{}
	for i := range 100 {
		load[ring.ID(fmt.Sprint("m", i))] = float64(i % 7)
	}
	members := equal(100)
	want := targets(ringOf(members...), load).place("customer", 8)
	for range 20 {
		if got := targets(ringOf(members...), load).place("customer", 8); !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, then %v", want, got)
		}
	}
}
