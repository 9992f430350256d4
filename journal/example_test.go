package journal_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/journal/modeldisk"
)

// A member writes its counters, fails, and its next boot reads them.
func Example() {
	disk := modeldisk.New(rand.New(rand.NewPCG(1, 2))) // journal.OS() in production
	options := journal.Options{
		FS: disk.FS(), Dir: "/data", Label: "shop", Member: "pod-0", Boot: 1, SegmentBytes: 1 << 16,
	}
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

	j := journal.New(options)
	defer j.Close()
	// Every error ends the generation. The caller then waits, begins another one and appends everything again.
	check(j.Begin(now, []journal.RingMember{{Name: "pod-0", Boot: 1}, {Name: "pod-1", Boot: 7}}))
	check(j.Append([]byte("alice: 3 hits")))
	check(j.Complete())
	check(j.Append([]byte("alice: 4 hits")))
	check(j.Sync()) // from now on a loss of power does not lose the fourth hit
	disk.PowerLoss()

	boots, err := journal.Boots(disk.FS(), "/data", "shop")
	check(err)
	for _, b := range boots {
		r, err := b.Open()
		check(err)
		fmt.Println("boot", b.ID, "of", r.Header().Member, "on a ring of", len(r.Header().Ring))
		report, err := r.Read(func(b journal.Block) error {
			fmt.Printf("%d: %s\n", b.Sequence, b.Payload)
			return nil
		})
		check(err)
		fmt.Println("blocks:", report.Blocks, "complete:", report.Complete, "clean:", report.Clean)
		check(r.Remove())
		check(r.Close())
	}
	// Output:
	// boot 1 of pod-0 on a ring of 2
	// 1: alice: 3 hits
	// 3: alice: 4 hits
	// blocks: 2 complete: true clean: false
}

// check ends an example after an error.
func check(err error) {
	if err != nil {
		panic(err)
	}
}
