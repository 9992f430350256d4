//go:build !race

package claim

import (
	"runtime"
	"testing"
	"unsafe"
)

// bytesPerClaim is the most memory of a claim, with what finds it.
const bytesPerClaim = 96

// TestClaimMemory requires that a claim takes at most 96 bytes, whatever the number of claims of a key.
func TestClaimMemory(t *testing.T) {
	if n := unsafe.Sizeof(Claim{}); n != 88 {
		t.Errorf("a claim has %d bytes", n)
	}
	for _, n := range []uint64{70_000, 100_000, 130_000} { // from few to many a chain
		for _, keys := range []uint64{n, n / 4, 1} {
			checkClaimMemory(t, n, keys)
		}
	}
}

func checkClaimMemory(t *testing.T, n, keys uint64) {
	t.Helper()
	x := newTable(2 * int(n))
	before := heap()
	for id := range n {
		if x.Add(open(id, id%keys), false) == nil {
			t.Fatal("no room")
		}
	}
	used := float64(heap()-before) / float64(n)
	chains := float64(4*(len(x.byID)+len(x.byKey))) / float64(n)
	t.Logf("%d claims, %d keys: %.1f bytes a claim, of them %.1f of the chains", n, keys, used, chains)
	if used > bytesPerClaim || float64(unsafe.Sizeof(Claim{}))+chains > bytesPerClaim {
		t.Errorf("%d keys: %.1f bytes a claim", keys, used)
	}
	if got := x.Totals([2]uint64{}); got.Open != uint32(n/keys) {
		t.Errorf("%+v", got)
	}
}

// heap returns the bytes of the live objects.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
