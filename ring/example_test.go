package ring_test

import (
	"fmt"

	"github.com/keyward/keyward/ring"
)

func ExampleNew() {
	r := ring.New([]ring.Member{{ID: "pod-0"}, {ID: "pod-1"}, {ID: "pod-2"}})
	h := ring.Hash("customer-7")
	fmt.Println("owner:", r.At(r.Owner(h)).ID)
	fmt.Println("successor:", r.At(r.Successor(h)).ID)
	// Output:
	// owner: pod-1
	// successor: pod-0
}

// If the owner leaves, its successor owns the key.
func ExampleRing_Successor() {
	h := ring.Hash("customer-7")
	before := ring.New([]ring.Member{{ID: "pod-0"}, {ID: "pod-1"}, {ID: "pod-2"}})
	after := ring.New([]ring.Member{{ID: "pod-0"}, {ID: "pod-2"}})
	fmt.Println(before.At(before.Successor(h)).ID == after.At(after.Owner(h)).ID)
	// Output:
	// true
}

// A fourth member takes keys from each of the others, and no key moves between those.
func ExampleDiff() {
	before := ring.New([]ring.Member{{ID: "pod-0"}, {ID: "pod-1"}, {ID: "pod-2"}})
	after := ring.New([]ring.Member{{ID: "pod-0"}, {ID: "pod-1"}, {ID: "pod-2"}, {ID: "pod-3"}})
	moves := ring.Diff(before, after)
	fmt.Printf("%.0f%% of the keys move\n", 100*ring.MovedShare(moves))
	for _, m := range moves {
		if m.To != "pod-3" {
			fmt.Println("unexpected:", m)
		}
	}
	// Output:
	// 25% of the keys move
}
