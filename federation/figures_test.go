package federation

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

const (
	figuresRate = 1000 // the limit, in hits per second
	figuresRTT  = 150 * time.Millisecond
	figuresTick = 66 * time.Millisecond // of an owner, by default
	figuresStep = time.Millisecond
	figuresLate = 100 * time.Millisecond
)

// figures are counts of regions that share one limit, each at its own rate, far from the coordinator.
type figures struct {
	decided, admitted, refused, requests int
	waited                               int // requests that waited for the coordinator
	limit                                int // of all windows together
}

func (f *figures) used() float64  { return float64(f.admitted) / float64(f.limit) }
func (f *figures) calls() float64 { return float64(f.requests) / float64(f.decided) }

// figuresWorld is regions whose requests come at random, without faults.
type figuresWorld struct {
	*rand.Rand
	rule    limit.Rule
	account PoolAccount
	now     int64
	regions []*figuresRegion
	late    bool // one reply in ten is late
	mail    map[int64][]func()
	figures
}

type figuresRegion struct {
	name   string
	rate   float64 // requests per second
	next   int64   // when the next one comes
	escrow *Escrow
	set    EscrowSettings
	link   CoordinatorLink
	window int64 // of floor
	floor  uint64
	queue  int // requests that wait
}

// measureFigures lets regions with those rates share a limit for some windows, after others that are not measured.
func measureFigures(seed uint64, late bool, window time.Duration, before, windows int, rates ...float64) figures {
	w := &figuresWorld{Rand: rand.New(rand.NewPCG(seed, 2)), mail: map[int64][]func(){}, late: late}
	w.rule = limit.Rule{Window: window, Limit: uint32(figuresRate * window.Seconds())}
	w.now = w.rule.End(100)
	weights := make([]uint32, len(rates))
	for i := range weights {
		weights[i] = 1
	}
	for i, rate := range rates {
		b := Divide(w.rule.Limit, weights, 5, i)
		x := &figuresRegion{name: string(rune('a' + i)), rate: rate, escrow: NewEscrow(uint64(i + 1))}
		x.set = EscrowSettings{Pool: uint64(b.Pool), Floor: uint64(b.Floor)}
		x.next = w.now + w.gap(rate)
		w.regions = append(w.regions, x)
	}
	w.run(before)
	w.figures = figures{limit: windows * int(w.rule.Limit)}
	w.run(windows)
	return w.figures
}

// gap returns the time until the next request, so that requests are a Poisson process.
func (w *figuresWorld) gap(rate float64) int64 {
	if rate == 0 {
		return int64(1000 * time.Hour)
	}
	return int64(w.ExpFloat64() / rate * float64(time.Second))
}

func (w *figuresWorld) run(windows int) {
	for end := w.now + int64(windows)*int64(w.rule.Window); w.now < end; {
		w.now += int64(figuresStep)
		for _, f := range w.mail[w.now] {
			f()
		}
		delete(w.mail, w.now)
		for i, x := range w.regions {
			for x.next <= w.now {
				x.next += w.gap(x.rate)
				x.escrow.Offer(w.now, w.rule, x.set, 1)
				w.decide(x, false)
				w.ask(x, x.floor)
			}
			if (w.now/int64(figuresStep)+int64(20*i))%int64(figuresTick/figuresStep) == 0 {
				w.ask(x, 0)
			}
		}
	}
}

// decide decides a request as an owner does: from the floor, then from the escrow.
func (w *figuresWorld) decide(x *figuresRegion, again bool) {
	if i := w.rule.Index(w.now); i != x.window {
		x.window, x.floor = i, x.set.Floor
	}
	v := Admitted
	if x.floor > 0 {
		x.floor--
	} else {
		v = x.escrow.Decide(w.now, w.rule, x.set, 1)
	}
	if v == Wait {
		x.queue++
		x.escrow.AddWaiting(1)
		if !again {
			w.waited++
		}
		return
	}
	w.decided++
	if v == Admitted {
		w.admitted++
		return
	}
	w.refused++
}

// ask sends a request to the coordinator if one is due.
func (w *figuresWorld) ask(x *figuresRegion, floor uint64) {
	rtt := x.link.RTT()
	if !x.escrow.Due(w.now, floor, rtt) {
		return
	}
	r, sent := x.escrow.Request(w.now, rtt), w.now
	w.requests++
	w.after(figuresRTT/2, func() {
		g, ok := w.account.Grant(w.now, x.name, &r)
		if !ok {
			return
		}
		w.after(figuresRTT/2+w.delay(), func() {
			x.link.Answered(time.Duration(w.now - sent))
			if !x.escrow.Accept(w.now, &g, x.link.RTT()) {
				return
			}
			n := x.queue
			x.queue = 0
			x.escrow.TakeWaiting()
			for range n {
				w.decide(x, true)
			}
		})
	})
}

// delay returns by how much a reply is late.
func (w *figuresWorld) delay() time.Duration {
	if w.late && w.IntN(10) == 0 {
		return figuresLate
	}
	return 0
}

func (w *figuresWorld) after(d time.Duration, f func()) {
	at := w.now + int64(d)
	w.mail[at] = append(w.mail[at], f)
}

// TestFigures measures what docs/federation.md says about regions without faults: how much of a limit is used, how often
// a region calls the coordinator, and that no request waits for it, or is refused, at 80 % of the limit.
func TestFigures(t *testing.T) {
	const warm, measured = 2, 4 // windows
	for _, c := range []struct {
		name  string
		rates []float64 // of a limit of 1,000 per second
		used  float64
	}{
		{"10:1:1, 160 %", []float64{1333, 133, 133}, 0.99},
		{"10:1:1, 100 %", []float64{833, 83, 83}, 0.97},    // some windows have less demand than the limit
		{"one region, 160 %", []float64{0, 1600, 0}, 0.96}, // the floors of the others are 3.3 %
		{"10:1:1, 80 %", []float64{667, 67, 67}, 0},
		{"1:1:1, 80 %", []float64{267, 267, 267}, 0},
	} {
		for _, window := range []time.Duration{10 * time.Second, time.Minute} {
			for seed := range uint64(6) {
				late := seed%2 == 1
				f := measureFigures(seed, late, window, warm, measured, c.rates...)
				what := fmt.Sprintf("%s, window %v, late %v, seed %d: %.2f %% used, %.4f requests per decision; %d of %d waited, %d refused", c.name, window, late, seed, 100*f.used(), f.calls(), f.waited, f.decided, f.refused)
				t.Log(what)
				if f.used() < c.used || f.calls() > 0.007 {
					t.Error(what)
				}
				if c.used == 0 && (f.refused > 0 || f.waited > f.decided/10_000) {
					t.Error(what)
				}
			}
		}
	}
}
