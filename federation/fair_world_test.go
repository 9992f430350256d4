package federation

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

// fairWorld is regions whose tenants share one limit, and a coordinator. Time passes in steps, and messages take theirs.
type fairWorld struct {
	*rand.Rand
	now     int64
	rule    limit.Rule
	account PoolAccount
	set     []EscrowSettings
	escrows []*Escrow
	floors  []uint64 // what is left of them
	rtt     []time.Duration
	mail    []letter
	waiting []fairRequest
	pairs   []*demandPair
	alter   func(to int, g *PoolGrant) // changes replies, unless nil
}

// letter is a message that arrives at a time.
type letter struct {
	at   int64
	open func()
}

// demandPair is the demand of a tenant in a region.
type demandPair struct {
	region  int
	tenant  uint64
	weight  uint32
	rate    float64 // requests per second
	hits    int     // of each request, at most
	from    int64   // begins then
	next    int64
	offered uint64
	got     uint64
	head    uint64 // got when the last tenant came
	ideal   float64
}

// fairRequest is a request that waits.
type fairRequest struct {
	p     *demandPair
	hits  uint64
	until int64
}

const (
	fairStep     = int64(5 * time.Millisecond)
	fairDeadline = int64(300 * time.Millisecond) // of clients
)

// newFairWorld returns a world with that many regions, at the beginning of a window.
func newFairWorld(r *rand.Rand, rule limit.Rule, regions int, floor uint8) *fairWorld {
	w := &fairWorld{Rand: r, rule: rule, now: rule.End(10_000)}
	weights := make([]uint32, regions)
	for i := range weights {
		weights[i] = 1 + uint32(r.IntN(3))
	}
	for i := range weights {
		b := Divide(rule.Limit, weights, floor, i)
		w.set = append(w.set, EscrowSettings{Pool: uint64(b.Pool), Floor: uint64(b.Floor)})
		w.escrows = append(w.escrows, NewEscrow(uint64(i+1)))
		w.floors = append(w.floors, uint64(b.Floor))
		w.rtt = append(w.rtt, time.Duration(1+r.IntN(150))*time.Millisecond)
	}
	return w
}

// run lets time pass until the window ends, with new floors.
func (w *fairWorld) run() {
	for i := range w.floors {
		w.floors[i] = w.set[i].Floor
	}
	for _, p := range w.pairs {
		p.got, p.offered, p.head = 0, 0, 0
	}
	w.runUntil(w.rule.End(w.rule.Index(w.now)))
}

// runUntil lets time pass.
func (w *fairWorld) runUntil(end int64) {
	last := int64(0)
	for _, p := range w.pairs {
		last = max(last, p.from)
	}
	for w.now < end {
		if w.now += fairStep; w.now < last {
			for _, p := range w.pairs {
				p.head = p.got
			}
		}
		w.deliver()
		w.expire()
		for _, i := range w.Perm(len(w.pairs)) {
			w.offer(w.pairs[i])
		}
		for i, e := range w.escrows {
			if e.Due(w.now, w.floors[i], w.rtt[i]) {
				w.send(i)
			}
		}
	}
}

// offer sends the requests of p that are due.
func (w *fairWorld) offer(p *demandPair) {
	if p.next == 0 {
		p.next = p.from + int64(w.Float64()*float64(time.Second)/p.rate)
	}
	for p.next <= w.now {
		p.next += int64(float64(time.Second) / p.rate * (0.5 + w.Float64()))
		hits := uint64(1 + w.IntN(p.hits))
		p.offered += hits
		e := w.escrows[p.region]
		e.Offer(w.now, w.rule, w.set[p.region], hits)
		e.OfferTenant(w.now, p.tenant, p.weight, hits, true)
		w.decide(&fairRequest{p, hits, w.now + fairDeadline})
	}
}

// decide decides q as an owner does.
func (w *fairWorld) decide(q *fairRequest) {
	i := q.p.region
	e := w.escrows[i]
	var v Verdict
	e.SetFloorLeft(w.floors[i], false)
	switch may := e.TenantMay(w.now, q.p.tenant); {
	case may == Admitted && q.hits <= w.floors[i]:
		w.floors[i] -= q.hits
		v = Admitted
	case may == Admitted:
		v = e.Decide(w.now, w.rule, w.set[i], q.hits)
	default:
		v = may
	}
	switch v {
	case Admitted:
		q.p.got += q.hits
		e.TenantSpent(w.now, q.p.tenant, q.hits)
	case Wait:
		e.AddTenantWaiting(q.p.tenant, q.hits)
		w.waiting = append(w.waiting, *q)
	}
}

// expire ends the requests whose clients have given up.
func (w *fairWorld) expire() {
	for i := 0; i < len(w.waiting); {
		if q := w.waiting[i]; q.until <= w.now {
			w.escrows[q.p.region].RemoveTenantWaiting(q.p.tenant, q.hits)
			w.waiting = append(w.waiting[:i], w.waiting[i+1:]...)
			continue
		}
		i++
	}
}

// send sends the request of region i that is due, and the reply.
func (w *fairWorld) send(i int) {
	r := w.escrows[i].Request(w.now, w.rtt[i])
	w.post(w.rtt[i]/2, func() {
		g, ok := w.account.Grant(w.now, fmt.Sprint("r", i), &r)
		if !ok {
			return
		}
		if w.alter != nil {
			w.alter(i, &g)
		}
		w.post(w.rtt[i]/2, func() { w.accept(i, &g) })
	})
}

func (w *fairWorld) accept(i int, g *PoolGrant) {
	e := w.escrows[i]
	if !e.Accept(w.now, g, w.rtt[i]) {
		return
	}
	e.TakeWaiting()
	all := w.waiting
	w.waiting = nil
	for _, q := range all {
		if q.p.region != i {
			w.waiting = append(w.waiting, q)
			continue
		}
		w.decide(&q)
	}
}

func (w *fairWorld) post(after time.Duration, open func()) {
	w.mail = append(w.mail, letter{w.now + int64(after), open})
}

func (w *fairWorld) deliver() {
	due, rest := []letter(nil), []letter(nil)
	for _, l := range w.mail {
		if l.at <= w.now {
			due = append(due, l)
		} else {
			rest = append(rest, l)
		}
	}
	w.mail = rest
	for _, l := range due {
		l.open()
	}
}

// idealOf sets the ideal of all pairs: the flat weighted max-min division of the limit between tenants, whose weights are
// split by demand. A region gets at least the part of its floor that it needs. It is independent of fill.
func (w *fairWorld) idealOf() {
	demand := map[uint64]float64{}
	for _, p := range w.pairs {
		demand[p.tenant] += float64(p.offered)
	}
	level := func(region int, capacity float64) { // of the pairs of that region, or of all that are not pinned
		low, high := 0.0, 1e9
		for range 200 {
			mid, sum := (low+high)/2, 0.0
			for _, p := range w.pairs {
				if p.region == region || region < 0 && p.ideal >= 0 {
					sum += min(float64(p.offered), mid*float64(p.weight)*float64(p.offered)/max(1, demand[p.tenant]))
				}
			}
			if sum <= capacity {
				low = mid
			} else {
				high = mid
			}
		}
		for _, p := range w.pairs {
			if p.region == region || region < 0 && p.ideal >= 0 {
				p.ideal = min(float64(p.offered), low*float64(p.weight)*float64(p.offered)/max(1, demand[p.tenant]))
			}
		}
	}
	pinned := map[int]bool{}
	for range w.escrows {
		capacity := float64(w.set[0].Pool)
		need, share := make([]float64, len(w.escrows)), make([]float64, len(w.escrows))
		for _, p := range w.pairs {
			need[p.region] += float64(p.offered)
			p.ideal = 0
			if pinned[p.region] {
				p.ideal = -1
			}
		}
		for i := range need {
			if need[i] = min(need[i], float64(w.set[i].Floor)); !pinned[i] {
				capacity += need[i]
			}
		}
		level(-1, capacity)
		for _, p := range w.pairs {
			share[p.region] += p.ideal
		}
		again := false
		for i := range need {
			if !pinned[i] && share[i] < need[i]-1e-6 {
				pinned[i], again = true, true
			}
		}
		if !again {
			break
		}
	}
	for i := range pinned {
		level(i, float64(w.set[i].Floor))
	}
}

// furthest returns the pair that is furthest from its ideal beyond the largest request, in lots, and the hits admitted.
func (w *fairWorld) furthest() (worst *demandPair, lots float64, admitted uint64) {
	w.idealOf()
	largest := 0
	for _, p := range w.pairs {
		largest = max(largest, p.hits)
	}
	lots = math.Inf(-1)
	for _, p := range w.pairs {
		admitted += p.got
		if d := (math.Abs(float64(p.got)-p.ideal) - float64(largest)) / (float64(w.rule.Limit) / shares); d > lots {
			worst, lots = p, d
		}
	}
	return worst, max(0, lots), admitted
}

// fairMatrix returns a world with random demand. In every second one, tenants come one after the other, within the first
// fifth of the window.
func fairMatrix(seed uint64) *fairWorld {
	r := rand.New(rand.NewPCG(seed, 3))
	rule := limit.Rule{Window: 10 * time.Second, Limit: uint32(200 + r.IntN(1800))}
	w := newFairWorld(r, rule, 2+r.IntN(4), []uint8{0, 5, 10, 50}[r.IntN(4)])
	weights, from := map[uint64]uint32{}, map[uint64]int64{}
	load := math.Exp(r.Float64()*4 - 1) // from a third of the limit to twenty times
	sum := 0.0
	for i := range w.escrows {
		for range 1 + r.IntN(8) {
			t := uint64(1 + r.IntN(12))
			if weights[t] == 0 {
				weights[t], from[t] = uint32(1+r.IntN(5)), w.now+int64(seed%2)*r.Int64N(int64(rule.Window)/5)
			}
			known := false
			for _, p := range w.pairs {
				known = known || p.region == i && p.tenant == t
			}
			if known {
				continue
			}
			p := &demandPair{region: i, tenant: t, weight: weights[t], hits: 1 + r.IntN(3), rate: math.Exp(r.NormFloat64() * 1.5), from: from[t]}
			sum += p.rate * float64(1+p.hits) / 2
			w.pairs = append(w.pairs, p)
		}
	}
	for _, p := range w.pairs {
		p.rate *= load * float64(rule.Limit) / rule.Window.Seconds() / sum
	}
	return w
}

// attainable reports whether no pair had more than its ideal before the last tenant came: what is spent cannot be taken
// back.
func (w *fairWorld) attainable() bool {
	for _, p := range w.pairs {
		if float64(p.head) > p.ideal {
			return false
		}
	}
	return true
}
