package sublease

import (
	"testing"
	"time"
)

const second = int64(time.Second)

// desk is a TokenBook with one connection, whose requests for lots are granted at once.
type desk struct {
	*TokenBook
	t        *testing.T
	now      int64
	memory   *memory
	limit    Limit
	left     uint64
	returned uint64
	lots     int
	spent    uint64
	corrupt  []uint64
}

func newDesk(t *testing.T, l Limit) *desk {
	d := &desk{TokenBook: NewBook(Options{}), t: t, now: 1000 * int64(l.Window), memory: newMemory(), limit: l, left: uint64(l.Hits)}
	d.Opened(1, d.memory)
	return d
}

// lease makes requests without a lease until there is one.
func (d *desk) lease(p Print) {
	d.t.Helper()
	for range 20 {
		if d.Interest(d.now, 1, p, 2) {
			d.Lease(d.now, 1, p, key, d.limit)
		}
		d.tick(100 * time.Millisecond)
		if len(d.memory.leases) > 0 {
			return
		}
	}
	d.t.Fatal("no lease")
}

// tick lets the time pass, and grants what is asked for.
func (d *desk) tick(after time.Duration) {
	for end := d.now + int64(after); d.now < end; {
		d.now = min(end, d.now+int64(TickInterval))
		for range 2 {
			w := d.Tick(d.now)
			for _, h := range w.Returns {
				d.returned += h.Hits
				d.left += h.Hits
			}
			for _, h := range w.Spent {
				d.spent += h.Hits
			}
			d.corrupt = append(d.corrupt, w.Corrupt...)
			asks := append([]LotAsk(nil), w.Asks...)
			d.lots += len(asks)
			for _, h := range asks {
				h.Hits = min(h.Hits, d.left)
				d.left -= h.Hits
				d.Granted(d.now, Lot{KeyHits: h.KeyHits, Left: d.left, Known: true})
			}
		}
		if held := d.held(); held != d.Totals().Held {
			d.t.Fatalf("%d hits in leases and between them, of %+v", held, d.Totals())
		}
	}
}

// spend takes tokens from the only lease.
func (d *desk) spend(n uint32) {
	for _, l := range d.memory.leases {
		l.tokens -= n
	}
}

func (d *desk) tokens() (n uint32) {
	for _, l := range d.memory.leases {
		n += l.tokens
	}
	return n
}

// TestHotKeysOnly checks that a descriptor has a lease from MinRate on.
func TestHotKeysOnly(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	for range 100 {
		d.tick(1200 * time.Millisecond)
		if d.Interest(d.now, 1, print, 1) {
			t.Fatal("5 requests in 6 seconds pay")
		}
	}
	d.lease(print)
	if n := d.Interest(d.now, 2, print, 1000); n {
		t.Error("a connection that is not open pays")
	}
}

// TestRefused checks that a refused descriptor does not pay for some time.
func TestRefused(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	pays := 0
	for range 80 { // 8 s
		d.tick(100 * time.Millisecond)
		if d.Interest(d.now, 1, print, 100) {
			pays++
			d.Refuse(d.now, 1, print)
		}
	}
	if pays != 1 {
		t.Errorf("it paid %d times", pays)
	}
}

// TestIdle checks that an unused lease is taken back and returned.
func TestIdle(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	d.lease(print)
	d.spend(3)
	d.tick(time.Second)
	if len(d.memory.leases) > 0 || d.left != 997 || d.spent != 3 {
		t.Errorf("%d leases; %d left of 1000 after 3 hits; %d spent", len(d.memory.leases), d.left, d.spent)
	}
	d.tick(forgetAfter + TickInterval)
	if n := d.Totals().Keys; n != 0 || len(d.order) > 0 || d.Next() < d.now+1e9 {
		t.Errorf("%d accounts", n)
	}
}

// TestTurn checks that leases end before their window, and that the rest is returned.
func TestTurn(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	d.tick(9500 * time.Millisecond)
	d.lease(print)
	for _, l := range d.memory.leases {
		if want := 1001*10*second - int64(EndMargin); l.expires != want {
			t.Errorf("the lease expires %v after that", time.Duration(l.expires-want))
		}
	}
	d.spend(2)
	d.tick(time.Duration(1001*10*second - int64(EndMargin) - d.now))
	if len(d.memory.leases) > 0 || d.left != 998 {
		t.Errorf("%d leases at the end of the window, and %d are left", len(d.memory.leases), d.left)
	}
}

// TestLongWindow checks that a lease of a long window ends within an hour, and goes on nevertheless.
func TestLongWindow(t *testing.T) {
	d := newDesk(t, Limit{1_000_000, 24 * time.Hour})
	d.lease(print)
	for range 20 * 60 * 10 {
		for _, l := range d.memory.leases {
			if left := time.Duration(l.expires - d.now); left > time.Hour || left < time.Minute {
				t.Fatalf("a lease ends in %v", left)
			}
		}
		if d.tokens() < 3 {
			t.Fatal("no tokens")
		}
		d.spend(3)
		d.tick(100 * time.Millisecond)
	}
	if d.memory.next < 3 {
		t.Errorf("%d leases in 20 minutes", d.memory.next)
	}
}

// TestClosed checks that exactly what is unspent comes back from a connection that has ended.
func TestClosed(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	d.lease(print)
	d.spend(2)
	d.TokenBook.Closed(1)
	d.tick(TickInterval)
	if d.left != 998 || d.spent != 2 || d.Totals().Keys != 0 {
		t.Errorf("%d left, %d spent, %+v", d.left, d.spent, d.Totals())
	}
}

// TestCorruptMemory checks that nothing comes back from corrupt memory, and that its connection has to be closed, once.
func TestCorruptMemory(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	d.lease(print)
	had := uint64(d.tokens())
	d.memory.corrupt = true
	d.tick(200 * time.Millisecond)
	d.TokenBook.Closed(1)
	d.tick(time.Second)
	if o := d.Totals(); o.Lost != had || o.Returned != 0 || len(d.corrupt) != 1 {
		t.Errorf("%d tokens were corrupt: %+v, %d connections", had, o, len(d.corrupt))
	}
}

// TestNoRoom checks that a key for whose lease there is no room keeps nothing.
func TestNoRoom(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	d.memory.room = 0
	d.Lease(d.now, 1, print, key, d.limit)
	d.tick(200 * time.Millisecond)
	if o := d.Totals(); o.Full == 0 || o.Held != 0 || d.left != 1000 {
		t.Errorf("%+v, %d left", o, d.left)
	}
}

// TestForget checks that a key whose rule changes has no lease any more, and that a lot that comes later is returned.
func TestForget(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	d.lease(print)
	d.spend(1)
	d.TokenBook.Forget(d.now, key)
	d.TokenBook.Granted(d.now, Lot{KeyHits: KeyHits{key, 1000, 5}, Known: true})
	d.tick(TickInterval)
	if len(d.memory.leases) > 0 || d.left != 999+5 {
		t.Errorf("%d leases, %d left", len(d.memory.leases), d.left)
	}
}

// TestCandidates checks that descriptors without a lease take a bounded memory.
func TestCandidates(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	for i := range uint64(3 * maxCandidates) {
		d.Interest(d.now, 1, Print{i, 5}, 1)
	}
	e := d.conns[1]
	if len(e.candidates) != maxCandidates {
		t.Errorf("%d candidates", len(e.candidates))
	}
	d.Interest(d.now+2*int64(interestPeriod), 1, print, 1)
	if len(e.candidates) != 1 {
		t.Errorf("%d candidates after two periods", len(e.candidates))
	}
}

// TestChargedTo checks that a charge is accepted only if the owner, whose clock may differ, has charged that window.
func TestChargedTo(t *testing.T) {
	for _, l := range []Limit{{100, time.Second}, {100, 1500 * time.Millisecond}, {100, 3 * time.Second}, {100, 4 * time.Second}, {100, time.Minute}} {
		r, accepted := l.rule(), 0
		for at := int64(0); at < 2*int64(l.Window); at += int64(time.Millisecond) {
			for skew := -clockMargin + 1; skew < clockMargin; skew += 7 * time.Millisecond {
				owner := at + int64(skew)
				reset := (time.Duration(r.End(r.Index(owner))-owner) + time.Second - 1).Truncate(time.Second)
				if w := r.Index(at); l.ChargedTo(w, at-int64(time.Millisecond), at, reset) {
					accepted++
					if r.Index(owner) != w {
						t.Fatalf("%v: accepted for window %d at %v by a clock that is %v ahead", l.Window, w, time.Duration(at), skew)
					}
				}
			}
		}
		if accepted == 0 {
			t.Errorf("%v: nothing is accepted", l.Window)
		}
	}
}

// TestClockStep checks that a charge is not accepted in a long window if this member's clock differs by more than a second and
// the tolerance, unless by nearly a multiple of the window.
func TestClockStep(t *testing.T) {
	for _, l := range []Limit{{100, 4 * time.Second}, {100, time.Minute}, {100, time.Hour}} {
		r := l.rule()
		for at := int64(0); at < 2*int64(l.Window); at += int64(l.Window) / 997 {
			for skew := time.Second + clockMargin; skew <= l.Window-time.Second-clockMargin; skew += l.Window / 13 {
				owner := at + int64(skew)
				reset := (time.Duration(r.End(r.Index(owner))-owner) + time.Second - 1).Truncate(time.Second)
				if l.ChargedTo(r.Index(at), at, at, reset) {
					t.Fatalf("%v: accepted at %v by a clock that is %v ahead", l.Window, time.Duration(at), skew)
				}
			}
		}
	}
}

// TestUndone checks that the sum of spent hits does not decrease when a request gives tokens back, and that these are counted
// once when they are spent again.
func TestUndone(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	d.lease(print)
	d.spend(3)
	d.tick(TickInterval)
	for _, l := range d.memory.leases {
		l.tokens += 2
	}
	before := d.Totals().Spent
	d.tick(TickInterval)
	if now := d.Totals().Spent; now != before || d.spent != before {
		t.Errorf("%d hits were spent, then %d, and %d are reported", before, now, d.spent)
	}
	d.spend(4)
	d.tick(time.Second)
	if o := d.Totals(); o.Spent != before+2 || d.spent != before+2 || d.left != 1000-5 {
		t.Errorf("%d hits were spent of 5, %d are reported, and %d are left of 1000", o.Spent, d.spent, d.left)
	}
}

// TestTrickle checks that a key which was busy, and has few requests now, does not keep the lot of its busy time.
func TestTrickle(t *testing.T) {
	d := newDesk(t, Limit{100_000, time.Hour})
	d.lease(print)
	for range 100 { // 2 s, at up to 10,000 a second
		n := min(200, d.tokens())
		if d.spend(n); n < 200 {
			d.Interest(d.now, 1, print, 200-n)
		}
		d.tick(TickInterval)
	}
	busy := d.tokens()
	for range 50 { // 10 s, at 5 a second
		if d.tokens() > 0 {
			d.spend(1)
		}
		d.tick(200 * time.Millisecond)
	}
	if busy < 500 || d.tokens() > 8*firstLot {
		t.Errorf("the lease had %d tokens, and has %d after 10 s with 5 requests a second", busy, d.tokens())
	}
}

// TestTooManyMembers checks that no lot is asked for if a quarter of this member's share of the whole limit is too small.
func TestTooManyMembers(t *testing.T) {
	for members, want := range map[int]bool{3: true, 4: false} {
		d := newDesk(t, Limit{100, 10 * time.Second})
		d.members = func() int { return members }
		d.Lease(d.now, 1, print, key, d.limit)
		d.tick(100 * time.Millisecond)
		if asked := d.Totals().Granted > 0; asked != want {
			t.Errorf("%d members: %d hits were charged", members, d.Totals().Granted)
		}
	}
}
