package durable

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// processTime returns the CPU time of this process.
func processTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkDecide measures a decision with what it makes the journal write on a real file system, at 20,000 decisions a
// second and so 2,000 a round.
func BenchmarkDecide(b *testing.B) {
	for _, c := range []struct {
		name   string
		data   time.Duration
		window time.Duration
		limit  uint32
		strict bool
	}{
		{"none", 0, 24 * time.Hour, 1000, false},
		{"short", time.Hour, time.Minute, 1000, false},
		{"async", time.Hour, 24 * time.Hour, 1000, false},
		{"strict", time.Hour, 24 * time.Hour, 1000, true},
		{"async-10", time.Hour, 24 * time.Hour, 10, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			n := owner.New(owner.Options{Self: "a", BootID: 7, DataWindow: c.data, MaxKeys: 1 << 22, DomainQuota: 1 << 22})
			m := ring.Member{ID: "a", BootID: 7, Incarnation: 1, Weight: 1}
			now := t0
			n.SetMembership(now, &membership.View{Self: "a", BootID: 7, Ring: ring.New([]ring.Member{m}), NRef: 1, Joined: true,
				Members: []membership.Member{{ID: "a", BootID: 7, State: membership.Active, Weight: 1}}})
			n.Tick(now)
			k := New(Options{Node: n, Journal: journal.Options{Dir: b.TempDir(), Label: "bench", Boot: 7}})
			k.Start()
			defer k.Close()
			q := owner.Request{Hits: 1, Strict: c.strict, Rule: limit.Rule{Window: c.window, Limit: c.limit}}
			before := processTime()
			for i := 0; b.Loop(); i++ {
				key := uint64(i%1000) + uint64(i/1_000_000)*1000
				if c.limit == 10 {
					key = uint64(i%1000) + uint64(i/10_000)*1000
				}
				q.Key, q.RingPos = owner.Key{key * 0x9E3779B97F4A7C15, key}, key<<40
				q.Waiter = i
				if n.Decide(now, &q).Kind == owner.Pending {
					k.Round(now)
				}
				if i%2000 == 1999 {
					now += int64(100 * time.Millisecond)
					n.Tick(now)
					if c.data > 0 && n.JournalIn() <= 100*time.Millisecond {
						k.Round(now)
					}
				}
			}
			b.ReportMetric(float64(processTime()-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkLoad measures loading a journal of a million counters.
func BenchmarkLoad(b *testing.B) {
	const counters, each = 1_000_000, 250
	dir := b.TempDir()
	j := journal.New(journal.Options{Dir: dir, Label: "bench", Boot: 9})
	if err := j.Begin(time.Unix(0, t0), nil); err != nil {
		b.Fatal(err)
	}
	w := request(0, 1).Rule.Index(t0)
	batch := owner.JournalBatch{Ahead: make([]uint32, each)}
	var writers counterwire.Writers
	for i := range counters {
		batch.Counters = append(batch.Counters, record(i, limit.Slot{Writer: 9, At: w, Charged: 5}))
		if len(batch.Counters) < each {
			continue
		}
		if err := j.Append(appendCounters(nil, &batch, &writers)); err != nil {
			b.Fatal(err)
		}
		batch.Counters = batch.Counters[:0]
	}
	if err := errors.Join(j.Complete(), j.Close()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		before := processTime()
		n := owner.New(owner.Options{Self: "a", BootID: 7, DataWindow: time.Hour, MaxKeys: counters, DomainQuota: counters})
		k := New(Options{Node: n, Journal: journal.Options{Dir: dir, Label: "bench", Boot: 7}})
		if res := k.Load(b.Context(), func() int64 { return t0 }); res.Counters != counters {
			b.Fatalf("%+v", res)
		}
		b.ReportMetric(float64(processTime()-before)/counters, "cpu-ns/counter")
		k.loaded.close()
	}
}
