//go:build !race

package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/owner/internal/counter"
)

// TestScanOfAChangingTable requires that a scan misses no key of a table that grows, is swept and loses keys
// meanwhile.
func TestScanOfAChangingTable(t *testing.T) {
	n := alone(Options{})
	const kept = 30_000
	for i := range kept {
		take(n, t0, ask(i, 100, time.Hour, 1))
		take(n, t0, ask(100_000+i, 100, 20*time.Millisecond, 1)) // these end
	}
	seen := map[Key]bool{}
	transfer := handoff.Transfer{To: "b", Ring: ringOf("b")}
	now, more := t0, 0
	for c := (&transferScan{transfer: transfer, filter: newTransferFilter(&transfer, "a")}); c.shard < counter.Shards; {
		s := &n.shards[c.shard]
		for _, x := range c.read(n, s, s.clock(now), nil) {
			seen[x.Key] = true
		}
		now += milli / 4
		for range 150 {
			take(n, now, ask(200_000+more, 100, time.Hour, 1))
			more++
		}
		n.Tick(now)
	}
	for i := range kept {
		if !seen[key(i)] {
			t.Fatalf("key %d was missed; %d of %d seen", i, len(seen), kept)
		}
	}
}
