package federation

import (
	"testing"
	"time"
	"unsafe"
)

// A tenant has a row of its own if there is room, and shares one otherwise.
func TestTenantRows(t *testing.T) {
	e, now := NewEscrow(1), minutes.End(1000)
	offer := func(tenant uint64, room bool) {
		e.Offer(now, minutes, EscrowSettings{Pool: 900}, 1)
		e.OfferTenant(now, tenant, 2, 1, room)
	}
	offer(1, true)
	offer(2<<58, false)
	offer(3<<58, false)
	offer(2<<58, true)
	all := e.Tenants(now)
	if len(all) != 3 || all[0].Tenant != 1 || all[1].Tenant != 0 || all[1].Weight != 4 || all[2].Tenant != 2<<58 {
		t.Errorf("%+v", all)
	}
	if size := unsafe.Sizeof(tenantRow{}); size != 112 {
		t.Errorf("a row has %d bytes, which the manual and TenantRows state", size)
	}
	now += int64(3 * time.Minute)
	offer(1, true)
	if all := e.Tenants(now); len(all) != 1 {
		t.Errorf("after two windows: %+v", all)
	}
}

// A region gives back what it was lent before tenants came in other regions that deserve it more.
func TestExcessIsGivenBack(t *testing.T) {
	a, now := &PoolAccount{}, minutes.End(1000)
	set := EscrowSettings{Pool: 1000}
	e := NewEscrow(1)
	e.Offer(now, minutes, set, 500)
	e.OfferTenant(now, 1, 1, 500, true)
	e.AddTenantWaiting(1, 500)
	r := e.Request(now, time.Millisecond)
	g, ok := a.Grant(now, "eu", &r)
	if !ok || !e.Accept(now, &g, time.Millisecond) || e.Left(now) != 500 {
		t.Fatalf("%+v, %d left", g, e.Left(now))
	}
	e.TakeWaiting()
	heavy := note{window: minutes.Index(now), tenants: []noteTenant{{tenant: 2, weight: 9, rate: 1000}}}
	other := PoolRequest{Rule: minutes, Pool: 1000, Boot: 2, Seq: 1, Note: heavy.encode()}
	if _, ok := a.Grant(now, "us", &other); !ok {
		t.Fatal("not granted")
	}
	for range 2 { // with the first reply, the region learns of the other one
		r = e.Request(now, time.Millisecond)
		if g, ok = a.Grant(now, "eu", &r); !ok || !e.Accept(now, &g, time.Millisecond) {
			t.Fatalf("%+v", g)
		}
	}
	if n := e.Left(now); n < 90 || n > 110 || g.Used != n {
		t.Errorf("%d left of 1000, of which a tenth is due; %d charged", n, g.Used)
	}
}
