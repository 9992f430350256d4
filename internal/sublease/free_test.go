package sublease

import (
	"testing"
	"time"
)

// TestFree checks that a key without a limit has tokens which no owner charges, that they expire soon if nothing renews them,
// and that Forget ends them at once.
func TestFree(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	d.limit = Limit{}
	d.Lease(d.now, 1, print, key, Limit{})
	spent, rng := uint32(0), []uint32{1, 0, 40, 3}
	for i := range 5000 { // 100 s
		d.tick(TickInterval)
		n := min(rng[i%4], d.tokens())
		d.spend(n)
		spent += n
		for _, l := range d.memory.leases {
			if left := time.Duration(l.expires - d.now); left > freeLife || left < freeLife/2-time.Second {
				t.Fatalf("tokens expire in %v", left)
			}
		}
	}
	if d.tokens() == 0 || d.lots != 0 || d.returned != 0 {
		t.Errorf("%d tokens, %d lots, %d hits given back", d.tokens(), d.lots, d.returned)
	}
	d.tick(TickInterval)
	if o := d.Totals(); o.Free != uint64(spent) || o.Granted+o.Spent+o.Returned+o.Held+o.Expired != 0 || spent < 40*1000 {
		t.Errorf("%d hits were spent: %+v", spent, o)
	}
	d.spend(3)
	d.tick(slowTicks * TickInterval)
	for _, l := range d.memory.leases { // a request gives back what it could not use, and another one takes it
		l.tokens += 2
	}
	d.tick(slowTicks * TickInterval)
	d.spend(3)
	d.tick(slowTicks * TickInterval)
	if o := d.Totals(); o.Free != uint64(spent)+4 {
		t.Errorf("%d hits were spent: %+v", spent+4, o)
	}
	d.TokenBook.Forget(d.now, key)
	if len(d.memory.leases) > 0 {
		t.Error("tokens after Forget")
	}
	d.Lease(d.now, 1, print, key, Limit{})
	d.tick(100 * time.Millisecond)
	d.memory.corrupt = true
	d.tick(200 * time.Millisecond)
	if o := d.Totals(); o.Lost != 0 || len(d.corrupt) != 1 {
		t.Errorf("%+v, %d connections", o, len(d.corrupt))
	}
	d.TokenBook.Closed(1)
	d.tick(TickInterval)
	if o := d.Totals(); o.Keys != 0 || o.Held != 0 {
		t.Errorf("%+v", o)
	}
}
