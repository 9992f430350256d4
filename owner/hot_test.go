package owner

import (
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// pour sends requests for hits on q to all members in turn, perSecond a second, for d.
func (w *network) pour(req Request, perSecond int, d time.Duration, sum *tally) {
	ids := w.ids()
	step := 2 * milli
	due := 0.0
	for end := w.now + int64(d); w.now < end; {
		for due += float64(perSecond) * float64(step) / float64(second); due >= 1; due-- {
			w.ask(ids[w.rnd.IntN(len(ids))], req, sum.count(&req))
		}
		w.run(time.Duration(step))
	}
}

// TestRoutesSetModes requires that routes make keys hot, or never hot.
func TestRoutesSetModes(t *testing.T) {
	w := newNetwork(t, 3, Options{HotRate: 200}, "a", "b", "c")
	req, never := ask(1, 100_000, time.Hour, 1), ask(2, 100_000, time.Hour, 1)
	hash := func(s string) uint64 { return map[string]uint64{"q": req.RingPos, "never": never.RingPos}[s] }
	for _, n := range w.nodes {
		n.SetRoutes([]hotkey.Route{{Owner: "q", Mode: hotkey.Spread}, {Owner: "never", Mode: hotkey.Never}}, hash)
	}
	var sum, none tally
	w.pour(req, 100, time.Second, &sum)
	w.pour(never, 2000, 3*time.Second, &none)
	if sum.local < 30 || none.local > 0 {
		t.Errorf("%+v are to be leased, %+v are not", sum, none)
	}
}

// TestGrantWaitsForTheSuccessor requires that a grant is sent only after the successor has confirmed the lent hits.
func TestGrantWaitsForTheSuccessor(t *testing.T) {
	w := newNetwork(t, 1, Options{Resend: time.Hour}, "a", "b", "c")
	req := ask(1, 1000, time.Hour, 1)
	id := w.ring().At(w.ring().Owner(req.RingPos)).ID
	n, from := w.nodes[id], w.ids()[0]
	if from == id {
		from = w.ids()[1]
	}
	r := lease.GrantRequest{Key: req.Key, RingPos: req.RingPos, Domain: req.Domain, Rule: req.Rule, Seq: 1, Want: true, Always: true, Demand: 1000}
	fx := n.StepLease(w.now, from, w.insts[from]|1, &lease.Batch{Kind: lease.Ask, Requests: []lease.GrantRequest{r}})
	if len(fx.Leases) > 0 {
		t.Fatalf("sent at once: %+v", fx.Leases)
	}
	if used := take(n, w.now, withOp(req, Read)).After; used == 0 {
		t.Fatal("nothing is charged")
	}
	copies := n.Flush(w.now)
	if len(copies.Leases) > 0 || len(copies.Messages) == 0 {
		t.Fatalf("no copy goes before the grant: %+v", copies)
	}
	for _, o := range copies.Messages {
		if o.Msg.Kind == protocol.Replica {
			got := protocol.Message{Kind: protocol.ReplicaAck, Seq: o.Msg.Seq, Ring: o.Msg.Ring}
			fx = n.Step(w.now, o.To, w.insts[o.To]|1, &got)
		}
	}
	if len(fx.Leases) != 1 || fx.Leases[0].To != from || fx.Leases[0].Batch.Grants[0].Total == 0 {
		t.Fatalf("no grant after the successor has confirmed it: %+v", fx)
	}
}

// TestHotnessAllocatesNothing requires that the detection of hot keys allocates nothing in a decision.
func TestHotnessAllocatesNothing(t *testing.T) {
	n := alone(Options{HotRate: 100})
	now := t0
	reqs := make([]Request, 64)
	for i := range reqs {
		reqs[i] = ask(i, 1<<30, time.Hour, 1)
	}
	i := 0
	decide := func() {
		now += 10_000
		n.Decide(now, &reqs[i%len(reqs)])
		i++
	}
	for range 1000 {
		decide()
	}
	if a := testing.AllocsPerRun(1000, decide); a > 0 {
		t.Errorf("%v allocations", a)
	}
}

// BenchmarkHotness measures a decision on keys of which none, or all, are followed.
func BenchmarkHotness(b *testing.B) {
	for _, c := range []struct {
		name string
		o    Options
	}{{"off", Options{NoHot: true}}, {"cold", Options{HotRate: 1e9}}, {"hot", Options{HotRate: 10}}} {
		b.Run(c.name, func(b *testing.B) {
			n := alone(c.o)
			reqs := make([]Request, 64)
			for i := range reqs {
				reqs[i] = ask(i, 1<<30, time.Hour, 1)
			}
			now, i := t0, 0
			b.ReportAllocs()
			for b.Loop() {
				now += 1000
				n.Decide(now, &reqs[i&63])
				i++
			}
		})
	}
	b.Run("forwarded", func(b *testing.B) {
		for _, off := range []bool{true, false} {
			b.Run(map[bool]string{true: "off", false: "on"}[off], func(b *testing.B) {
				n := member(Options{Self: "a", NoHot: off}, t0, "a", "b")
				r := ringOf("a", "b")
				var qs [4096]Request
				for i, k := 0, 0; i < len(qs); i, k = i+1, k+1 {
					k = ownedBy(b, r, "b", k)
					qs[i] = ask(k, 100, time.Hour, 1)
				}
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					n.Decide(t0, &qs[i&4095])
					i++
				}
			})
		}
	})
}

// TestHotKeyWithoutRelief requires that a hot key counts as unrelieved exactly while no other member decides a
// noticeable part of its requests, whatever routes are announced.
func TestHotKeyWithoutRelief(t *testing.T) {
	for _, c := range []struct {
		name    string
		req     Request
		atOwner int // of ten requests
		route   bool
		want    int
	}{
		{"all requests reach the owner", ask(1, 100_000, time.Hour, 1), 10, false, 1},
		{"and Envoys do not use its route", ask(1, 100_000, time.Hour, 1), 10, true, 1},
		{"nearly all", ask(1, 100_000, time.Hour, 1), 9, false, 1},
		{"other members have leases", ask(1, 100_000, time.Hour, 1), 3, false, 0},
		{"the limit is used up", ask(1, 19, 500*time.Millisecond, 1), 0, false, 0},
		{"the limit is too low to lend", ask(1, 19, 5*time.Millisecond, 1), 0, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newNetwork(t, 3, Options{HotRate: 200}, "a", "b", "c")
			owner := w.ring().At(w.ring().Owner(c.req.RingPos)).ID
			if c.route {
				for _, n := range w.nodes {
					n.SetRoutes([]hotkey.Route{{Owner: "q", Mode: hotkey.Spread}}, func(string) uint64 { return c.req.RingPos })
				}
			}
			others := slices.DeleteFunc(slices.Clone(w.ids()), func(id ring.ID) bool { return id == owner })
			var sum tally
			for i := range 4 * 2000 { // 2000 a second
				to := owner
				if i%10 >= c.atOwner {
					to = others[i%len(others)]
				}
				w.ask(to, c.req, sum.count(&c.req))
				w.run(time.Millisecond / 2)
			}
			got := w.nodes[owner].Stats(w.now).Lease
			if got.HotKeys != 1 || got.Unrelieved != c.want {
				t.Errorf("%d hot keys, %d unrelieved, want %d: %+v", got.HotKeys, got.Unrelieved, c.want, w.nodes[owner].HotKeys(w.now))
			}
			w.run(3 * time.Second)
			if got := w.nodes[owner].Stats(w.now).Lease; got.HotKeys != 1 || got.Unrelieved != 0 {
				t.Errorf("%d hot keys, %d unrelieved without requests", got.HotKeys, got.Unrelieved)
			}
		})
	}
}
