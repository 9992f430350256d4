//go:build !race

package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// TestLogsOfOneDomainLeaveRoomForOthers requires that logs of one domain take records only up to its quota, and that
// keys of other domains are charged and new ones find room.
func TestLogsOfOneDomainLeaveRoomForOthers(t *testing.T) {
	w := newNetwork(t, 3, Options{MaxKeys: 2000}, "a", "b")
	ids := w.ids()
	other := func(i int) Request {
		req := ask(100_000+i, 100, time.Hour, 1)
		req.Domain = 1
		return req
	}
	admitted := func(req Request, n int) (ok int) {
		for i := range n {
			w.ask(ids[i%2], req, func(res Result) {
				if !res.Over {
					ok++
				}
			})
			w.run(2 * time.Millisecond)
		}
		return ok
	}
	if n := admitted(other(0), 20); n != 20 {
		t.Fatalf("%d of 20 admitted before", n)
	}
	for i := range 400 {
		req := ask(i, 64, time.Hour, 1)
		req.Rule.Algorithm = limit.SlidingLog
		for range 64 {
			w.ask(ids[i%2], req, func(Result) {})
			w.now += int64(time.Millisecond)
		}
		w.run(4 * time.Millisecond)
	}
	refused := uint64(0)
	for _, n := range w.nodes {
		refused += n.Stats(w.now).Refused
	}
	if refused == 0 {
		t.Fatal("there was room for all logs: the test shows nothing")
	}
	for i := range 7 {
		if n := admitted(other(i), 20); n != 20 {
			t.Errorf("key %d of another domain: %d of 20 admitted", i, n)
		}
	}
}
