package durable

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/owner"
)

func ringOf(names ...string) *CompleteRing {
	r := &CompleteRing{At: t0}
	for i, n := range names {
		r.Members = append(r.Members, journal.RingMember{Name: n, Boot: uint64(2*i + 1)})
	}
	return r
}

func counterValue(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

func gaugeValue(t testing.TB, g prometheus.Gauge) float64 {
	t.Helper()
	var m dto.Metric
	if err := g.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetGauge().GetValue()
}

// record returns the record of a counter of key i.
func record(i int, slots ...limit.Slot) protocol.CounterRecord {
	q := request(i, 1)
	return protocol.CounterRecord{
		Key: q.Key, RingPos: q.RingPos, Domain: q.Domain, Rule: q.Rule, ExpiresAt: q.Rule.End(q.Rule.Index(t0)),
		State: limit.State{Slots: slots},
	}
}

// TestRecords requires that records are read as they were written.
func TestRecords(t *testing.T) {
	w := request(0, 1).Rule.Index(t0)
	b := owner.JournalBatch{
		Counters: []protocol.CounterRecord{
			record(1, limit.Slot{Writer: 7, At: w, Charged: 5}),
			record(2, limit.Slot{Writer: 3, At: w, Charged: 1 << 40, Refunded: 9}, limit.Slot{Writer: 7, At: w, Charged: 1}),
		},
		Ahead: []uint32{10, 0},
	}
	b.Counters[1].Volatile = true
	var writers counterwire.Writers
	var r recordReader
	if ring, err := r.parse(appendCounters(nil, &b, &writers)); err != nil || ring != nil {
		t.Fatal(ring, err)
	}
	if len(r.Counters) != 2 || r.ahead[0] != 10 || r.ahead[1] != 0 || !r.Counters[1].Volatile || r.Counters[1].State.Slots[0] != b.Counters[1].State.Slots[0] {
		t.Errorf("%+v, %v", r.Counters, r.ahead)
	}
	want := ringOf("a", "b")
	got, err := r.parse(appendRing(nil, want))
	if err != nil || got.ID() != want.ID() || got.At != want.At {
		t.Errorf("%+v, %v", got, err)
	}
}

// changes reports whether a valid record says of one of the keys that hits were refunded, or that they count in another
// way: that may lower a count.
func changes(b []byte, keys ...int) bool {
	var r recordReader
	if _, err := r.parse(b); err != nil {
		return false
	}
	for _, c := range r.Counters {
		for _, i := range keys {
			own := record(i)
			if c.Key != own.Key {
				continue
			}
			refunds := slices.ContainsFunc(c.State.Slots, func(f limit.Slot) bool { return f.Refunded > 0 })
			if refunds || c.RingPos != own.RingPos || c.Rule.Window != own.Rule.Window || c.Rule.Algorithm != own.Rule.Algorithm {
				return true
			}
		}
	}
	return false
}

// FuzzLoad loads arbitrary records, between two that are correct: nothing panics, no count is lower than the correct ones
// say, and memory is bounded.
func FuzzLoad(f *testing.F) {
	w := request(0, 1).Rule.Index(t0)
	good := func(i int, charged uint64) []byte {
		b := owner.JournalBatch{
			Counters: []protocol.CounterRecord{record(i, limit.Slot{Writer: 7, At: w, Charged: charged})}, Ahead: []uint32{3},
		}
		return appendCounters(nil, &b, new(counterwire.Writers))
	}
	f.Add(good(1, 5), good(1, 900))
	f.Add([]byte(appendRing(nil, ringOf("a", "b", "c"))), good(2, 1))
	f.Add([]byte{recordCounters, 0xff, 0xff}, []byte{9})
	f.Add([]byte{}, []byte(wire.Writer{recordRing}.I64(1).U16(0xffff)))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if len(a)+len(b) > 1<<16 || changes(a, 1, 3) || changes(b, 1, 3) {
			return
		}
		r := newRig(t)
		j := journal.New(journal.Options{FS: r.disk.FS(), Dir: "/data", Label: "test", Scheme: 1, Member: "b", Boot: 0x999, SegmentBytes: 1 << 18})
		if err := j.Begin(time.Unix(0, t0), nil); err != nil {
			t.Fatal(err)
		}
		for _, p := range [][]byte{good(1, 20), a, b, good(3, 30)} {
			if err := j.Append(p); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r.start()
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
			t.Errorf("%d bytes allocated", n)
		}
		if r.used(1) < 20 || r.used(3) < 30 {
			t.Errorf("%d of 20 and %d of 30 hits", r.used(1), r.used(3))
		}
	})
}
