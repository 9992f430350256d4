package fair

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/keyward/keyward/owner/internal/counter"
)

// ideal returns the weighted max-min fair shares of limit: the result of filling all tenants at the rate of their
// weights, until they have what they ask for or the limit is used up.
func ideal(demand []uint64, weight []uint32, limit uint64) []float64 {
	share := make([]float64, len(demand))
	for rest := float64(limit); rest > 1e-9; {
		weights, step := 0.0, math.Inf(1)
		for i, d := range demand {
			if missing := float64(d) - share[i]; missing > 1e-9 {
				weights += float64(weight[i])
				step = min(step, missing/float64(weight[i]))
			}
		}
		if weights == 0 {
			break
		}
		step = min(step, rest/weights)
		for i, d := range demand {
			if float64(d)-share[i] > 1e-9 {
				share[i] += step * float64(weight[i])
			}
		}
		rest -= step * weights
	}
	return share
}

func TestIdeal(t *testing.T) {
	got := ideal([]uint64{10, 100, 30}, []uint32{1, 1, 2}, 60)
	if want := []float64{10, 20, 30}; !slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }) {
		t.Fatalf("the ideal is %v, want %v", got, want)
	}
}

// limiter is a limit with tenants.
type limiter struct {
	t      *testing.T
	table  Divider
	key    counter.Key
	limit  uint64
	weight []uint32
	window int64
	used   []uint64 // in window
	demand []uint64 // in window, by run
	was    uint64   // admitted in the last window
	far    float64  // the largest difference between what a tenant got in the last window and its ideal share
}

func newLimiter(t *testing.T, limit uint64, weight ...uint32) *limiter {
	return &limiter{t: t, key: counter.Key{1, 2}, limit: limit, weight: weight, used: make([]uint64, len(weight))}
}

func (l *limiter) sum() (sum uint64) {
	for _, n := range l.used {
		sum += n
	}
	return sum
}

func (l *limiter) ask(tenant int, hits uint64, left float64) *Demand {
	return &Demand{
		Key: l.key, Tenant: uint64(tenant+1) * 0x9E3779B97F4A7C15, Weight: l.weight[tenant], Hits: hits, Room: l.limit - l.sum(),
		Window: l.window, Width: 1000, Left: uint32(left * Whole),
	}
}

// take asks for hits and reports whether they were admitted. It checks what Peek says about them.
func (l *limiter) take(tenant int, hits uint64, left float64) bool {
	d := l.ask(tenant, hits, left)
	expected, _ := l.table.Peek(d)
	ok, more := l.table.Admit(d)
	if ok != expected {
		l.t.Fatalf("tenant %d: Admit returned %v, and Peek %v", tenant, ok, expected)
	}
	if ok {
		l.used[tenant] += hits
	}
	if n := l.sum(); n > l.limit || ok && n+more > l.limit {
		l.t.Fatalf("%d hits admitted and %d promised of %d", n, more, l.limit)
	}
	return ok
}

// run has every tenant ask for its demand, in random order, over a part of a window from begin to end.
func (l *limiter) run(rnd *rand.Rand, demand []uint64, begin, end float64) {
	l.demand = demand
	var order []int
	for i, d := range demand {
		for range d {
			order = append(order, i)
		}
	}
	rnd.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for n, i := range order {
		l.take(i, 1, 1-begin-(end-begin)*float64(n)/float64(len(order)))
	}
}

// next begins the next window.
func (l *limiter) next() {
	l.was, l.far = l.sum(), 0
	if l.demand != nil {
		for i, want := range ideal(l.demand, l.weight, l.limit) {
			l.far = max(l.far, math.Abs(float64(l.used[i])-want))
		}
	}
	l.window++
	clear(l.used)
}

// scenario returns a random limit with tenants and their demands.
func scenario(t *testing.T, rnd *rand.Rand) (*limiter, []uint64) {
	n := 1 + rnd.IntN(MaxTenants)
	weight, demand := make([]uint32, n), make([]uint64, n)
	for i := range n {
		weight[i] = 1 + rnd.Uint32N(4)*rnd.Uint32N(3)
		demand[i] = rnd.Uint64N(2 << rnd.IntN(9))
	}
	return newLimiter(t, 1+rnd.Uint64N(3000), weight...), demand
}

// total returns the sum of all demands.
func total(demand []uint64) (sum uint64) {
	for _, d := range demand {
		sum += d
	}
	return sum
}

// TestIdealShares tests that the tenants get their ideal shares to the hit, in whichever order they ask, from the
// second window after each change of their demands on, and that the limit is used up or every demand is met.
func TestIdealShares(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for n := range 150 {
		l, demand := scenario(t, rnd)
		if n%3 == 0 {
			for i := range l.weight {
				l.weight[i] = 1
			}
		}
		for window := range 6 {
			if window == 3 {
				rnd.Shuffle(len(demand), func(i, j int) { demand[i], demand[j] = demand[j], demand[i] })
			}
			l.run(rnd, demand, 0, 0) // so that nothing is given out because the window ends
			if l.next(); window%3 == 0 {
				continue
			}
			if l.was != min(total(demand), l.limit) {
				t.Fatalf("scenario %d, window %d: %d admitted of %d, the limit is %d", n, window, l.was, total(demand), l.limit)
			}
			if l.far >= float64(slices.Max(l.weight)) {
				t.Fatalf("scenario %d, window %d: a tenant is %.1f from its ideal share of %d by weights %d, demands %d", n, window,
					l.far, l.limit, l.weight, demand)
			}
		}
	}
}

// TestSpreadRequests tests tenants that ask throughout the window, in random order.
func TestSpreadRequests(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for n := range 100 {
		l, demand := scenario(t, rnd)
		for window := range 3 {
			l.run(rnd, demand, 0, 1)
			l.next()
			if window > 0 && l.was != min(total(demand), l.limit) {
				t.Fatalf("scenario %d: %d admitted of %d, the limit is %d", n, l.was, total(demand), l.limit)
			}
			if allowed := 10 + float64(l.limit)/50; window > 0 && l.far > allowed {
				t.Fatalf("scenario %d: a tenant is %.1f from its ideal share of %d, want at most %.1f", n, l.far, l.limit, allowed)
			}
		}
	}
}

// greedy makes tenant 0 ask for a number of hits throughout a part of the window.
func (l *limiter) greedy(hits int, begin, end float64) {
	for n := range hits {
		l.take(0, 1, 1-begin-(end-begin)*float64(n)/float64(hits))
	}
}

func TestLateTenant(t *testing.T) {
	l := newLimiter(t, 100, 1, 1)
	expect := func(when string, greedy, late uint64) {
		t.Helper()
		if l.used[0] != greedy || l.used[1] != late {
			t.Fatalf("%s: the greedy tenant has %d and the late one %d, want %d and %d", when, l.used[0], l.used[1], greedy, late)
		}
	}
	l.greedy(60, 0, 0.5)
	for range 40 {
		l.take(1, 1, 0.5)
	}
	expect("the late tenant finds room in its first window", 60, 40)
	l.next()
	l.greedy(300, 0, 0.5)
	expect("half of the limit waits for the late tenant", 60, 0)
	for range 60 {
		l.take(1, 1, 0.5)
	}
	expect("which may take what it asked for last time", 60, 40)
	l.next()
	l.greedy(300, 0, 0.5)
	expect("or its share, if it asked for more", 50, 0)
	l.greedy(300, 0.5, 1)
	expect("what it does not want is given out before the window ends, apart from one hit", 99, 0)
	l.next()
	l.greedy(300, 0, 0.1)
	expect("and nothing waits for it in the next window", 100, 0)
	l.next()
	l.take(1, 1, 1)
	l.greedy(300, 0, 0.1)
	l.take(1, 1, 0.9)
	expect("a new tenant gets its first hit", 99, 1)
}

func TestWeights(t *testing.T) {
	l := newLimiter(t, 100, 4, 1)
	for range 2 {
		l.next()
		l.run(rand.New(rand.NewPCG(5, 6)), []uint64{200, 200}, 0, 0)
	}
	if l.used[0] != 80 || l.used[1] != 20 {
		t.Fatalf("weights 4 and 1 have %d of 100, want 80 and 20", l.used)
	}
	all := l.table.Tenants(l.ask(0, 0, 1))
	if len(all) != 2 || all[0].Used+all[1].Used != 100 || all[0].Weight+all[1].Weight != 5 || all[0].Left != 0 ||
		all[0].Offered != 200 || all[0].Last != 200 {
		t.Fatalf("the tenants are %+v", all)
	}
}

// TestSeveralHits tests that a request is admitted completely or not at all, and that its tenant does not get more
// than its share by it.
func TestSeveralHits(t *testing.T) {
	l := newLimiter(t, 100, 1, 1)
	for range 50 {
		l.take(1, 1, 1)
	}
	l.next()
	for range 10 {
		l.take(0, 30, 1)
	}
	if l.used[0] != 30 {
		t.Fatalf("requests for 30 hits got %d of a share of 50, want 30", l.used[0])
	}
	l.table.Refund(l.ask(0, 10, 1))
	l.used[0] -= 10
	if !l.take(0, 30, 1) || l.take(0, 1, 1) {
		t.Fatalf("after a refund of 10 hits, the tenant has %d, want 50", l.used[0])
	}
}

// TestMoreTenantsThanRows tests that tenants without a row share one, which has the weight of all of them.
func TestMoreTenantsThanRows(t *testing.T) {
	const n = 2 * MaxTenants
	weight, demand := make([]uint32, n), make([]uint64, n)
	for i := range n {
		weight[i], demand[i] = 1, 30
	}
	l := newLimiter(t, 1000, weight...)
	for range 3 {
		l.next()
		l.run(rand.New(rand.NewPCG(7, 8)), demand, 0, 0)
	}
	own, shared := uint64(0), uint64(0)
	for i := range n {
		if l.table.groups[0].place(l.ask(i, 1, 1).Tenant) == MaxTenants {
			shared += l.used[i]
			continue
		}
		if own += l.used[i]; l.used[i] < 7 {
			t.Errorf("tenant %d, with a row of its own, has %d hits", i, l.used[i])
		}
	}
	if own+shared != 1000 || shared < 250 || l.table.Counts().Shared == 0 || l.table.Tracked() != MaxTenants+1 {
		t.Fatalf("tenants have %d hits with rows of their own and %d without; %+v, %d rows", own, shared, l.table.Counts(),
			l.table.Tracked())
	}
	l.window += 2
	l.take(n-1, 1, 1)
	if got := len(l.table.groups[0].rows); got != 1 {
		t.Fatalf("%d rows remain after a window without requests, want 1", got)
	}
}

// TestMemory tests that a Divider without memory for another row decides by the limit alone, and that it drops keys
// that are not used.
func TestMemory(t *testing.T) {
	var table Divider
	d := Demand{Tenant: 1, Weight: 1, Hits: 1, Room: 1, Width: 1000, Left: Whole}
	for i := range uint64(maxRows) {
		d.Key = counter.Key{i, i}
		if ok, _ := table.Admit(&d); !ok {
			t.Fatal("a request below the limit was refused")
		}
	}
	if table.Tracked() != maxRows || len(table.groups) != maxRows/firstRows {
		t.Fatalf("memory for %d rows of %d keys, want %d rows", table.Tracked(), len(table.groups), maxRows)
	}
	if table.Counts().Untracked != maxRows-maxRows/firstRows {
		t.Fatalf("%d requests untracked", table.Counts().Untracked)
	}
	d.Room = 0
	if ok, _ := table.Admit(&d); ok {
		t.Fatal("a request above the limit was admitted without a row")
	}
	for range maxRows {
		table.Sweep(1999)
	}
	if table.Tracked() != maxRows {
		t.Fatal("a key of the last window was dropped")
	}
	for range maxRows / firstRows {
		table.Sweep(2000)
	}
	if table.Tracked() != 0 || len(table.index) != 0 || len(table.groups) != 0 {
		t.Fatalf("%d rows of %d keys remain", table.Tracked(), len(table.groups))
	}
}

// TestOtherWindows tests that a key whose windows change, or whose clock is behind, keeps dividing its limit.
func TestOtherWindows(t *testing.T) {
	l := newLimiter(t, 10, 1, 1)
	l.window = 100
	l.run(rand.New(rand.NewPCG(9, 1)), []uint64{5, 5}, 0, 0)
	d := l.ask(0, 1, 1)
	d.Window--
	l.table.Admit(d)
	if g := l.table.groups[0]; g.window != 100 || len(g.rows) != 2 {
		t.Fatal("a clock that is behind has changed the window")
	}
	d.Window, d.Width, d.Room = 3, 5000, 10
	l.table.Admit(d)
	if g := l.table.groups[0]; g.window != 3 || len(g.rows) != 1 || g.rows[0].used != 1 {
		t.Fatalf("windows of another length do not start again: %+v", *g)
	}
}

func TestLeftOf(t *testing.T) {
	for _, x := range []struct {
		now, end, width int64
		want            uint32
	}{
		{0, 1000, 1000, Whole}, {500, 1000, 1000, Whole / 2}, {1000, 1000, 1000, 0}, {1001, 1000, 1000, 0}, {-5, 1000, 1000, Whole},
		{0, math.MaxInt64, math.MaxInt64, Whole}, {math.MaxInt64 / 2, math.MaxInt64, math.MaxInt64, Whole / 2},
	} {
		if got := LeftOf(x.now, x.end, x.width); got != x.want {
			t.Errorf("LeftOf(%d, %d, %d) = %d, want %d", x.now, x.end, x.width, got, x.want)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	l := newLimiter(t, 1000, 1, 2, 3)
	d := [3]*Demand{l.ask(0, 1, 1), l.ask(1, 1, 1), l.ask(2, 1, 1)}
	n := testing.AllocsPerRun(1000, func() {
		for _, x := range d {
			x.Window++
			l.table.Admit(x)
			x.Window--
		}
		for _, x := range d {
			x.Window++
		}
	})
	if n > 0 {
		t.Fatalf("%v allocations a window", n)
	}
}
