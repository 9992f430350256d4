package federation

import (
	"bytes"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// fullNote returns the longest note.
func fullNote() *note {
	n := &note{window: -5, floor: 7, others: noteTenant{weight: maxOthers * maxTenantWeight, rate: 1e12, got: maxNoteHits}}
	for i := range noteTenants {
		n.tenants = append(n.tenants, noteTenant{math.MaxUint64 - uint64(i), maxTenantWeight, maxNoteHits, 1 + uint64(i)})
	}
	return n
}

func TestNote(t *testing.T) {
	for _, n := range []*note{{}, {window: 3, floor: 9}, fullNote(), {others: noteTenant{weight: 3, rate: 0.125, got: 4}}} {
		b := n.encode()
		if got, ok := decodeNote(b); !ok || !reflect.DeepEqual(&got, n) {
			t.Errorf("%+v, not %+v", got, n)
		}
		if len(b) > MaxNote {
			t.Errorf("%d bytes", len(b))
		}
		for i := range b {
			if _, ok := decodeNote(b[:i]); ok && i != len(b)-noteTenantSize {
				t.Errorf("%d of %d bytes are accepted", i, len(b))
			}
		}
	}
	twice := &note{tenants: []noteTenant{{tenant: 1, weight: 1}, {tenant: 1, weight: 1}}}
	if _, ok := decodeNote(twice.encode()); ok {
		t.Error("one tenant twice")
	}
}

// No note makes a region panic, or admit or divide anything but numbers of hits.
func FuzzNote(f *testing.F) {
	f.Add(fullNote().encode(), uint64(1), uint64(2), uint64(3))
	f.Add((&note{floor: 3}).encode(), uint64(0), uint64(0), uint64(0))
	f.Add([]byte("a note"), uint64(math.MaxUint64), uint64(math.MaxUint64), uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, b []byte, granted, used, usable uint64) {
		n, ok := decodeNote(b)
		if ok {
			again, ok := decodeNote(n.encode())
			if !ok || !bytes.Equal(n.encode(), again.encode()) || len(n.encode()) > MaxNote {
				t.Fatalf("%+v, then %+v", n, again)
			}
		}
		rule := limit.Rule{Window: 10 * time.Second, Limit: 1000}
		set, now := EscrowSettings{Pool: 900, Floor: 50}, rule.End(1000)
		e := NewEscrow(1)
		e.Offer(now, rule, set, 10)
		for tenant := range uint64(3) {
			e.OfferTenant(now, tenant+math.MaxUint64-2, uint32(granted), 10, true)
			e.AddTenantWaiting(tenant, used)
		}
		r := e.Request(now, time.Millisecond)
		n.window = rule.Index(now)
		g := PoolGrant{Seq: r.Seq, Window: n.window, Total: r.Tokens, Used: used, Usable: usable, Left: time.Second,
			Others: []RegionLine{{Region: "a", Granted: granted, Note: n.encode()}, {Region: "b", Granted: used, Note: b}}}
		e.Accept(now, &g, time.Millisecond)
		for tenant := range uint64(3) {
			e.TenantMay(now, tenant+math.MaxUint64-2)
		}
		for _, x := range e.tenants.rows {
			if !(x.due >= float64(x.got)) || !(x.dealt >= float64(x.got)) || math.IsInf(x.dealt, 0) || math.IsNaN(x.dealt) {
				t.Fatalf("%+v", x)
			}
		}
		if r = e.Request(now, time.Millisecond); r.Left > r.Have || r.Tokens > 1<<40 {
			t.Fatalf("%+v", r)
		}
	})
}

// fill equals a division by small steps, and never gives more than there is.
func TestFill(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var ps, qs []*pair
		got, need := 0.0, 0.0
		for range 1 + r.IntN(6) {
			p := &pair{weight: float64(1 + r.IntN(5)), got: float64(r.IntN(20))}
			p.need = p.got + float64(r.IntN(100)*r.IntN(2))
			got, need = got+p.got, need+p.need
			q := *p
			q.share = q.got
			ps, qs = append(ps, p), append(qs, &q)
		}
		capacity := float64(r.IntN(400))
		surplus := fill(capacity, ps)
		const step = 1.0 / 16
		for rest := capacity - got; rest >= step; rest -= step { // to the one with the lowest level
			lowest := (*pair)(nil)
			for _, q := range qs {
				if q.share < q.need && (lowest == nil || q.share/q.weight < lowest.share/lowest.weight) {
					lowest = q
				}
			}
			if lowest == nil {
				break
			}
			lowest.share += step
		}
		for i := range ps {
			if math.Abs(ps[i].share-qs[i].share) > 2*step*5 {
				t.Fatalf("capacity %.0f: %+v, and by steps %.1f", capacity, *ps[i], qs[i].share)
			}
		}
		if math.Abs(surplus-max(0, capacity-need)) > 1e-6 {
			t.Fatalf("%.1f of %.0f left, %.0f needed", surplus, capacity, need)
		}
	}
}
