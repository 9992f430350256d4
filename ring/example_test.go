package ring_test

import (
	"fmt"

	"github.com/keyward/keyward/ring"
)

func ExampleNew() {
	before := ring.New([]ring.Member{{ID: "pod-0"}, {ID: "pod-1"}, {ID: "pod-2"}})
	h := ring.Hash("customer-7")
	fmt.Println("owner", before.At(before.Owner(h)).ID, "successor", before.At(before.Successor(h)).ID)

	after := ring.New([]ring.Member{{ID: "pod-0"}, {ID: "pod-1"}, {ID: "pod-2"}, {ID: "pod-3"}})
	fmt.Printf("a fourth member takes %.0f %% of the keys\n", 100*ring.MovedShare(ring.Diff(before, after)))
	// Output:
	// owner pod-1 successor pod-0
	// a fourth member takes 25 % of the keys
}
