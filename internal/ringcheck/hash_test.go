package ringcheck

import (
	"testing"

	"github.com/keyward/keyward/ring"
)

func TestHashOfLines(t *testing.T) {
	hash := func(name string, lines ...string) uint64 {
		h, ok := hashHeader(name, lines...)
		if !ok {
			t.Fatalf("%q has no hash", lines)
		}
		return h
	}
	if h, ok := hashLines(); ok || h != 0 {
		t.Error("an absent header has a hash")
	}
	if hash("x", "") != ring.Hash("") || hash("x", "k") != ring.Hash("k") {
		t.Error("one line is not hashed as itself")
	}
	lines := []string{"b", "a", "c"}
	if hash("x", lines...) != hash("x", "a", "b", "c") || lines[0] != "b" {
		t.Error("lines are not sorted, or sorted in place")
	}
	if hash("x", "a", "b") == hash("x", "b") || hash("x", "a", "b") == ring.Hash("ab") || hash("x", "a", "b") == ring.Hash("a,b") {
		t.Error("lines are not chained")
	}
	if hash("Authorization", "b", "a") != ring.Hash("b,a") {
		t.Error("inline headers are not joined as sent")
	}
	if n := testing.AllocsPerRun(100, func() { hashHeader("x", "a", "b") }); n != 0 {
		t.Errorf("hashing sorted lines allocates %v times", n)
	}
}
