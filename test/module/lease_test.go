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
		missed := s.twice("/", "x-key", "k")
		if m := p.asked(l, "api_key=k"); m.domain != "app" || m.hits != 2 {
			t.Errorf("INTEREST %+v", m)
		}
		s.want("calls without a lease", len(s.service.take()), missed)
		lease := l.segment.lend(0, 100, time.Minute, "app", "api_key=k")
		s.service.allow(30)
		admitted, refused := s.burst(4, 200, "x-key", "k")
		s.want("admitted", admitted, 130)
		s.want("refused", refused, 70)
		s.want("calls", len(s.service.take()), 100)
		s.want("left", int(lease.left()), 0)
		if c := l.segment.counters(); c != [4]uint64{uint64(missed), 100, 0, 100} {
			t.Errorf("counters %v", c)
		}
	})
}

// TestSeveralDescriptors checks that a request takes the leases of all its descriptors, or none.
func TestSeveralDescriptors(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		action, entry := r.another()
		limits := `[{"actions":[{"request_headers":{"header_name":"x-key","descriptor_key":"api_key"}}]},{"actions":[` + action + `]}]`
		p := listen(t, ordinary(64))
		s := start(t, r, setup{socket: p.path, limits: limits})
		l := p.link(0)
		s.twice("/", "x-key", "k")
		p.asked(l, "api_key=k")
		s.service.take()
		key := l.segment.lend(0, 50, time.Minute, "app", "api_key=k")
		missed := s.twice("/", "x-key", "k")
		p.asked(l, entry)
		s.want("calls without one of the leases", len(s.service.take()), missed)
		s.want("left of the other", int(key.left()), 50)
		other := l.segment.lend(1, 30, time.Minute, "app", entry)
		admitted, _ := s.burst(4, 100, "x-key", "k")
		s.want("admitted", admitted, 30)
		s.want("left of the key", int(key.left()), 20)
		s.want("left of the other descriptor", int(other.left()), 0)
		for _, call := range s.service.take() {
			if got := descriptors(call); len(got) != 2 {
				t.Fatalf("a call with the descriptors %q", got)
			}
		}
		s.service.allow(1000)
		admitted, _ = s.burst(1, 1) // without the key, only the other descriptor counts
		s.want("admitted without a key", admitted, 1)
	})
}

// TestExpiredLease checks that an expired lease and one that would last too long are not spent.
func TestExpiredLease(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{socket: p.path})
		l := p.link(0)
		for i, c := range []struct {
			ends     time.Duration
			counters [4]uint64
		}{{-time.Nanosecond, [4]uint64{0, 1, 0, 0}}, {time.Hour + time.Minute, [4]uint64{0, 1, 1, 0}}, {59 * time.Minute, [4]uint64{0, 1, 1, 1}}} {
			lease := l.segment.lend(0, 10, c.ends, "app", "api_key=k")
			s.get("/", "x-key", "k")
			taken := i / 2
			s.want("calls", len(s.service.take()), 1-taken)
			s.want("left", int(lease.left()), 10-taken)
			if got := l.segment.counters(); got != c.counters {
				t.Errorf("%v: counters %v, want %v", c.ends, got, c.counters)
			}
		}
	})
}

// TestLeaseIsReplacedWhileSpent replaces a lease while workers spend it, as the sidecar does. What the exchanges of the
// word have left and what was admitted add up to what was lent.
func TestLeaseIsReplacedWhileSpent(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{socket: p.path, workers: 2})
		l := p.link(0)
		lease := l.segment.lend(0, 0, time.Minute, "app", "api_key=k")
		word := l.segment.word(lease.at + 16)
		stop, done := make(chan struct{}), make(chan uint64)
		go func() {
			var lent, epoch uint64
			for epoch = 8; ; epoch++ {
				lent += 3
				old := word.Swap(epoch<<32 | 3)
				lent -= old & 0xffffffff // taken back
				select {
				case <-stop:
					done <- lent - word.Swap((epoch+1)<<32)&0xffffffff
					return
				case <-time.After(2 * time.Millisecond):
				}
			}
		}()
		admitted, refused := s.burst(8, 4000, "x-key", "k")
		close(stop)
		s.want("admitted", admitted, int(<-done))
		s.want("refused", refused, 4000-admitted)
		admitted, refused = s.burst(1, 10, "x-key", "k")
		s.want("admitted at the end", admitted, 0)
		s.want("refused at the end", refused, 10)
	})
}

// TestSlots checks that the module finds a lease in the last slot that may have it, around the end of the segment, and
// none behind it.
func TestSlots(t *testing.T) {
	p := listen(t, ordinary(64))
	s := start(t, newest, setup{socket: p.path})
	l := p.link(0)
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		lo, hi := l.segment.fingerprint("app", "api_key="+key)
		far := l.segment.slot(int(lo&63) + 8)
		far.set(lo, hi, 5, uint64(monotonic()+time.Minute))
		s.get("/", "x-key", key)
		s.want("left behind the last slot", int(far.left()), 5)
		far.set(0, 0, 0, 0)
		last := l.segment.lend(7, 5, time.Minute, "app", "api_key="+key)
		s.get("/", "x-key", key)
		s.want("left in the last slot", int(last.left()), 4)
	}
}
