package sublease

import (
	"testing"
	"time"
)

// TestLines checks the description of a connection's keys: tokens that were given, taken, given back, taken back, and missed.
func TestLines(t *testing.T) {
	d := newDesk(t, Limit{1000, 10 * time.Second})
	view := func() (v LeaseView) {
		d.Lines(1, func(x LeaseView) { v = x })
		return v
	}
	d.Lines(2, func(LeaseView) { t.Error("a connection that does not exist has keys") })
	d.lease(print)
	missed := view().NoLease // before there was a lease
	d.spend(3)
	d.tick(TickInterval)
	v := view()
	if v.Key != key || v.Taken != 3 || v.Empty != 0 || v.NoLease != missed || v.Rate <= 0 || v.Left == 0 || v.Given < v.Left {
		t.Errorf("%+v", v)
	}
	for _, l := range d.memory.leases { // a request gives back what it could not use
		l.tokens += 2
	}
	d.tick(TickInterval)
	if v = view(); v.Taken != 1 {
		t.Errorf("2 of 3 hits were given back: %+v", v)
	}
	d.Interest(d.now, 1, print, 5)
	d.tick(TickInterval)
	d.tick(time.Second) // it is idle
	d.Interest(d.now, 1, print, 7)
	if v = view(); v.Given != 0 || v.Left != 0 || v.Taken != 1 || v.Empty != 5 || v.NoLease != missed+7 {
		t.Errorf("without a lease: %+v", v)
	}
}
