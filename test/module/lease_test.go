package module

import (
	"testing"
	"time"
)

// TestLeaseIsSpentExactly checks that a lease of 100 admits 100 requests without a call, and that the rate limit service
// decides on the others.
func TestLeaseIsSpentExactly(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{socket: p.path})
		l := p.link(0)
		if want := "\x01\x01\x03\x00lab"; string(l.hello[:7]) != want || string(l.hello[9:]) != r.name {
			t.Errorf("HELLO %q", l.hello)
		}
		s.get("/", "x-key", "k")
		if m := p.asked(l, "api_key=k"); m.domain != "app" || m.hits != 1 {
			t.Errorf("INTEREST %+v", m)
		}
		s.want("calls without a lease", len(s.service.take()), 1)
		lease := l.segment.lend(0, 100, time.Minute, "app", "api_key=k")
		s.service.allow(30)
		admitted, refused := s.burst(4, 200, "x-key", "k")
		s.want("admitted", admitted, 130)
		s.want("refused", refused, 70)
		s.want("calls", len(s.service.take()), 100)
		s.want("left", int(lease.left()), 0)
		if c := l.segment.counters(); c != [4]uint64{1, 100, 0, 100} {
			t.Errorf("counters %v", c)
		}
	})
}
