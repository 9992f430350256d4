package budget

import "testing"

// Connections open one after the other, and each keeps as much as it may. A connection's part is an equal part of the
// limit at the time when it charges, so a listener with 8 MiB keeps more than that: 8 MiB in parts of 128 KiB, and
// then in ever smaller ones. docs/security.md has the sum.
func TestPartsOfManyConnections(t *testing.T) {
	const limit, fair, connections, step = 8 << 20, 128 << 10, 1024, 256
	port := New(64<<20, fair).Child(limit, fair)
	for i := range connections {
		a := port.Open()
		if !a.Charge(limit / connections) {
			t.Fatalf("connection %d may not keep an equal part", i)
		}
		for a.Held() < fair && a.Charge(step) {
		}
		if a.Held() < fair {
			a.Charge(-step) // the charge that was refused
		}
		if !a.Charge(0) {
			t.Fatalf("connection %d may not keep its part of %d bytes", i, a.Held())
		}
	}
	if kept := port.Held(); kept < limit || kept > 31<<20 {
		t.Errorf("%d connections keep %d KiB of a port's %d, want at most 31 MiB", connections, kept>>10, limit>>10)
	}
}
