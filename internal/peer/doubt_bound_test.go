package peer

import (
	"testing"

	"github.com/keyward/keyward/owner"
)

// TestDoubtsAreBounded requires that the doubts of a link have few requests in all, however many a group has, and that
// those whose replies are not expected anymore make room.
func TestDoubtsAreBounded(t *testing.T) {
	var l link
	group := func(at int64) *doubt { return &doubt{at: at, reqs: make([]owner.Request, maxRequests)} }
	requests := func() (n int) {
		for _, d := range l.doubts {
			n += len(d.reqs)
		}
		return n
	}
	for id := range uint64(maxDoubts) {
		l.addDoubt(id, group(0))
	}
	if n := requests(); n != maxDoubts {
		t.Errorf("%d requests in doubts, want %d", n, maxDoubts)
	}
	for range 2 {
		if l.takeDoubt(0) == nil && len(l.doubts) != maxDoubts/maxRequests-1 {
			t.Error("the first doubt is not there")
		}
	}
	l.addDoubt(5000, group(0))
	l.addDoubt(5001, group(doubtLife+1))
	if n := requests(); n != maxRequests || l.doubts[5001] == nil {
		t.Errorf("%d requests in doubts after their time, want %d", n, maxRequests)
	}
}
