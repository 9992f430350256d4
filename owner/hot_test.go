package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/lease"
)

// pour asks everybody in turn for hits on q, perSecond times, for d.
func (w *network) pour(q Question, perSecond int, d time.Duration, sum *tally) {
	ids := w.ids()
	step := 2 * milli
	due := 0.0
	for end := w.now + int64(d); w.now < end; {
		for due += float64(perSecond) * float64(step) / float64(second); due >= 1; due-- {
			w.ask(ids[w.rnd.IntN(len(ids))], q, sum.count(&q))
		}
		w.run(time.Duration(step))
	}
}

// A key that is asked for too often is leased within two seconds, is known by its name at its owner, and is its owner's
// alone again when it has cooled.
func TestHotKeyIsLeasedAndCools(t *testing.T) {
	w := newNetwork(t, 3, Options{HotRate: 200}, "a", "b", "c")
	q := ask(1, 100_000, time.Hour, 1)
	owner := w.nodes[w.ring().At(w.ring().Owner(q.Owner)).ID]
	var sum tally
	w.pour(q, 100, 3*time.Second, &sum)
	if sum.local > 0 || len(owner.HotKeys(w.now)) > 0 {
		t.Fatalf("leased at half the rate: %+v", sum)
	}
	w.pour(q, 2000, 2*time.Second, &sum)
	hot := owner.HotKeys(w.now)
	if len(hot) != 1 || !hot[0].Hot || hot[0].Hash != q.Owner || hot[0].Rate < 1000 || len(hot[0].Holders) != 2 || !hot[0].Splittable {
		t.Fatalf("hot keys: %+v", hot)
	}
	for _, id := range w.ids() {
		w.nodes[id].Name(q.Key, "shop", "api_key=1", "1", nil)
		w.nodes[id].Name(key(99), "shop", "api_key=2", "2", nil)
	}
	sum = tally{}
	before := owner.Facts(w.now).Decided[Full]
	w.pour(q, 2000, 2*time.Second, &sum)
	if reached := owner.Facts(w.now).Decided[Full] - before; reached > 2000 || sum.local < 2000 {
		t.Errorf("%d of 4000 questions reached the owner, a third of which it was asked itself: %+v", reached, sum)
	}
	if hot = owner.HotKeys(w.now); hot[0].Name != "api_key=1" || hot[0].Owner != "1" {
		t.Errorf("no name: %+v", hot)
	}
	w.run(45 * time.Second)
	for _, id := range w.ids() {
		n := w.nodes[id]
		if hot, held := n.HotKeys(w.now), n.Held(w.now); len(hot)+len(held) > 0 {
			t.Errorf("%s after it cooled: %+v %+v", id, hot, held)
		}
	}
	var after tally
	w.pour(q, 50, time.Second, &after)
	if after.local > 0 {
		t.Errorf("still leased: %+v", after)
	}
}

// Routes make keys hot and never hot by decree.
func TestRoutesDecree(t *testing.T) {
	w := newNetwork(t, 3, Options{HotRate: 200}, "a", "b", "c")
	q, never := ask(1, 100_000, time.Hour, 1), ask(2, 100_000, time.Hour, 1)
	hash := func(s string) uint64 { return map[string]uint64{"q": q.Owner, "never": never.Owner}[s] }
	for _, n := range w.nodes {
		n.SetRoutes([]hotkey.Route{{Owner: "q", Mode: hotkey.Spread}, {Owner: "never", Mode: hotkey.Never}}, hash)
	}
	var sum, none tally
	w.pour(q, 100, time.Second, &sum)
	w.pour(never, 2000, 3*time.Second, &none)
	if sum.local < 30 || none.local > 0 {
		t.Errorf("%+v are to be leased, %+v are not", sum, none)
	}
}

// Nothing is sent until the heir has what is lent.
func TestGrantWaitsForTheHeir(t *testing.T) {
	w := newNetwork(t, 1, Options{Resend: time.Hour}, "a", "b", "c")
	q := ask(1, 1000, time.Hour, 1)
	id := w.ring().At(w.ring().Owner(q.Owner)).ID
	n, from := w.nodes[id], w.ids()[0]
	if from == id {
		from = w.ids()[1]
	}
	r := lease.Request{Key: q.Key, Owner: q.Owner, Domain: q.Domain, Rule: q.Rule, Seq: 1, Want: true, Always: true, Demand: 1000}
	fx := n.StepLease(w.now, from, w.insts[from]|1, &lease.Msg{Kind: lease.Ask, Requests: []lease.Request{r}})
	if len(fx.Leases) > 0 {
		t.Fatalf("sent at once: %+v", fx.Leases)
	}
	if used := take(n, w.now, q.op(Look)).After; used == 0 {
		t.Fatal("nothing is charged")
	}
	copies := n.Flush(w.now)
	if len(copies.Leases) > 0 || len(copies.Out) == 0 {
		t.Fatalf("no copy goes before the grant: %+v", copies)
	}
	for _, o := range copies.Out {
		if o.Msg.Kind == handoff.Replica {
			got := handoff.Msg{Kind: handoff.Got, Seq: o.Msg.Seq, Ring: o.Msg.Ring}
			fx = n.Step(w.now, o.To, w.insts[o.To]|1, &got)
		}
	}
	if len(fx.Leases) != 1 || fx.Leases[0].To != from || fx.Leases[0].Msg.Grants[0].Total == 0 {
		t.Fatalf("no grant after the heir has it: %+v", fx)
	}
}

// What is seen of heat costs no memory a decision.
func TestHeatAllocatesNothing(t *testing.T) {
	n := alone(Options{HotRate: 100})
	now := t0
	qs := make([]Question, 64)
	for i := range qs {
		qs[i] = ask(i, 1<<30, time.Hour, 1)
	}
	i := 0
	decide := func() {
		now += 10_000
		n.Take(now, &qs[i%len(qs)])
		i++
	}
	for range 1000 {
		decide()
	}
	if a := testing.AllocsPerRun(1000, decide); a > 0 {
		t.Errorf("%v allocations", a)
	}
}

// A decision on keys of which none, or all, are followed.
func BenchmarkHeat(b *testing.B) {
	for _, c := range []struct {
		name string
		o    Options
	}{{"off", Options{NoHot: true}}, {"cold", Options{HotRate: 1e9}}, {"hot", Options{HotRate: 10}}} {
		b.Run(c.name, func(b *testing.B) {
			n := alone(c.o)
			qs := make([]Question, 64)
			for i := range qs {
				qs[i] = ask(i, 1<<30, time.Hour, 1)
			}
			now, i := t0, 0
			b.ReportAllocs()
			for b.Loop() {
				now += 1000
				n.Take(now, &qs[i&63])
				i++
			}
		})
	}
	b.Run("forwarded", func(b *testing.B) {
		for _, off := range []bool{true, false} {
			b.Run(map[bool]string{true: "off", false: "on"}[off], func(b *testing.B) {
				n := member(Options{Self: "a", NoHot: off}, t0, "a", "b")
				r := ringOf("a", "b")
				var qs [4096]Question
				for i, k := 0, 0; i < len(qs); i, k = i+1, k+1 {
					k = ownedBy(b, r, "b", k)
					qs[i] = ask(k, 100, time.Hour, 1)
				}
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					n.Take(t0, &qs[i&4095])
					i++
				}
			})
		}
	})
}

// A hot key of which more is asked for than its limit reaches its owner once for twenty questions at most, and its limit
// is used up.
func TestHotKeyRarelyReachesItsOwner(t *testing.T) {
	for _, members := range []int{3, 5} {
		w := newNetwork(t, 3, Options{HotRate: 500}, many(members)...)
		q := ask(1, 5000, time.Second, 1)
		asked := func() (n uint64) {
			for _, m := range w.nodes {
				n += m.Facts(w.now).Asked
			}
			return n
		}
		var before, sum tally
		w.pour(q, 8000, 2*time.Second, &before)
		was, messages := asked(), w.leased
		w.pour(q, 8000, 4*time.Second, &sum)
		others := sum.asked * uint64(members-1) / uint64(members)
		t.Logf("%d members: %+v, %d asked of the owner, %d messages", members, sum, asked()-was, w.leased-messages)
		if n := asked() - was; n*20 > others {
			t.Errorf("%d of %d questions reached the owner", n, others)
		}
		if sum.admitted > 4*5000 || sum.admitted < 4*5000*97/100 {
			t.Errorf("%d of %d admitted", sum.admitted, 4*5000)
		}
	}
}
