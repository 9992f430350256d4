//go:build !race

package quota

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// plan describes a simulation.
type plan struct {
	seed   uint64
	limit  uint32
	window time.Duration
	envoys int
	keys   int     // each with the limit and the load; 0 is 1
	load   float64 // offered hits of all Envoys in a window, as a multiple of the limit
	rls    float64 // the same of callers that the holder decides itself
	// sidecars share the holder. 0 is one that does not. The first one's Envoys have skew times the load of the others'.
	sidecars int
	skew     float64 // 0 is 1
	fifth    bool    // one Envoy in five has ten times the load, as with one sidecar
	move     bool    // the load moves to other Envoys every third window
	// Envoys pause for that long after each busy time: all at once, or if apart is set, one after the other.
	pause, busy time.Duration
	apart       bool
	restarts    bool // a sidecar starts again in every third window, one after the other
	retires     bool // it is planned: the sidecar retires before
	windows     int
	faults      bool
	sabotage
}

// sabotage is a deliberate mistake that the simulation has to find.
type sabotage uint8

const (
	correct      sabotage = iota
	bareBucket            // leases replace others without a refusal before them
	sameStream            // a stream that breaks is taken for the same one as that which follows it
	creditAtOnce          // what a lease replaces is credited when it is pushed
	earlyAck              // responses are acknowledged when they are sent
)

const second = int64(time.Second)

// slot is a window of a key.
type slot struct {
	key    Key
	window int64
}

// world is one sidecar, its holder and its Envoys on a virtual clock.
type world struct {
	plan
	t        testing.TB
	r        *rand.Rand
	now      int64
	events   events
	number   int // of events
	sidecars []*sidecar
	envoys   []*envoy
	streams  map[Stream]*envoy
	opened   Stream
	holder   holder
	offered  map[slot]float64
	admitted map[slot]uint64
	messages int
	// requests counts those after the first pause, or after four windows, and refused those of them.
	requests, refused int
	rested            bool // there was a pause
	over              map[slot]uint64
	// late counts hits that Envoys without a stream admitted at once when they went on after a stop. Their leases have
	// ended, but their timers were stopped, so up to one request of each connection is admitted.
	late map[slot]uint64
}

// sidecar has a part of the Envoys.
type sidecar struct {
	w      *world
	index  int
	ledger *Ledger
	lots   map[slot][]uint64 // that the holder has charged and that can be given back
	tickAt int64
}

// settle takes hits from the newest lots of a window, as lots.Return does, and returns how many are given back: a lot is
// settled once, so the rest of one of which a part is given back stays charged.
func (s *sidecar) settle(i slot, hits uint64) (back uint64) {
	for all := s.lots[i]; len(all) > 0 && hits > back; all = s.lots[i] {
		last := all[len(all)-1]
		s.lots[i] = all[:len(all)-1]
		back += min(last, hits-back)
	}
	return back
}

// holder charges hits of windows for the sidecar and for the callers that it decides itself.
type holder struct {
	lent, rls map[slot]uint64
	demands   map[demander]demandNote
	silent    int64 // it does not answer until then
}

type demander struct {
	key     Key
	sidecar int
}

type demandNote struct {
	hits uint64
	at   int64
}

type event struct {
	at     int64
	number int
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

func (w *world) at(at int64, do func()) {
	w.number++
	heap.Push(&w.events, event{max(at, w.now), w.number, do})
}

func newWorld(t testing.TB, p plan) *world {
	w := &world{
		plan: p, t: t, r: rand.New(rand.NewPCG(p.seed, 1)),
		streams: map[Stream]*envoy{}, offered: map[slot]float64{}, admitted: map[slot]uint64{}, over: map[slot]uint64{}, late: map[slot]uint64{},
		holder: holder{lent: map[slot]uint64{}, rls: map[slot]uint64{}, demands: map[demander]demandNote{}},
	}
	for i := range max(1, p.sidecars) {
		s := &sidecar{w: w, index: i, ledger: NewLedger(Options{Shared: p.sidecars > 0}), lots: map[slot][]uint64{}, tickAt: math.MaxInt64}
		s.ledger.SetMembers(p.sidecars)
		w.sidecars = append(w.sidecars, s)
	}
	w.now, w.keys = 1_000_000*int64(p.window), max(1, p.keys)
	for i := range p.envoys {
		w.envoys = append(w.envoys, newEnvoy(w, i))
	}
	w.share(0)
	for _, e := range w.envoys {
		w.at(w.now+w.r.Int64N(5*second), e.arrive)
		if p.faults {
			w.at(w.now+w.r.Int64N(60*second), e.fault)
		}
		if p.pause > 0 {
			w.at(w.now+4*int64(p.window)+e.phase(), e.rest)
		}
	}
	if p.rls > 0 {
		w.call()
	}
	if p.restarts {
		w.at(w.now+3*int64(p.window)+w.r.Int64N(int64(p.window)), func() { w.restart(0) })
	}
	if p.faults {
		w.at(w.now+w.r.Int64N(120*second), w.outage)
	}
	return w
}

// share divides the load: one Envoy in five has ten times as much as each other, or with several sidecars, those of one
// sidecar have skew times as much.
func (w *world) share(shift int) {
	sum := 0.0
	for i, e := range w.envoys {
		if e.rate = 1; len(w.sidecars) > 1 && !w.fifth {
			if (i+shift)%len(w.sidecars) == 0 {
				e.rate = max(1, w.skew)
			}
		} else if (i+shift)%5 == 0 {
			e.rate = 10
		}
		sum += e.rate
	}
	for _, e := range w.envoys {
		e.rate *= w.load * float64(w.keys) * float64(w.limit) / w.window.Seconds() / sum
	}
}

// ended checks a window that is over. It returns the usable part if that counts.
func (w *world) ended(i slot, counts bool) []float64 {
	if got := w.admitted[i] + w.holder.rls[i]; got > uint64(w.limit)+w.late[i] {
		w.over[i] = got - uint64(w.limit)
	}
	if most := math.Min(w.offered[i], float64(w.limit)-float64(w.holder.rls[i])); counts && most > 0 {
		return []float64{float64(w.admitted[i]) / most}
	}
	return nil
}

// counts reports whether what happens now is part of the result.
func (w *world) counts() bool {
	if w.pause > 0 {
		return w.rested
	}
	return w.index() >= 1_000_000+4
}

func (w *world) index() int64 { return w.now / int64(w.window) }

// slot returns the current window of a key.
func (w *world) slot(key Key) slot { return slot{key, w.index()} }

func keyName(k int) Key { return string(rune('a' + k)) }

// key returns a random key.
func (w *world) key() Key { return keyName(w.r.IntN(w.keys)) }

// run simulates all windows. It returns the usable part of each: admitted hits of those that the limit allows.
func (w *world) run() (usable []float64) {
	first := w.index()
	for n := range w.windows {
		w.until((first + int64(n) + 1) * int64(w.window))
		for k := range w.keys {
			usable = append(usable, w.ended(slot{keyName(k), first + int64(n)}, n >= 4)...)
		}
		if w.move && n%3 == 2 {
			w.share(n*7 + 1)
		}
	}
	return usable
}

func (w *world) until(end int64) {
	for len(w.events) > 0 && w.events[0].at < end {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
	w.now = end
}

// exponential returns a random interval between events of that rate per second.
func (w *world) exponential(rate float64) int64 { return int64(w.r.ExpFloat64() / rate * 1e9) }

// call is one caller's hit that the holder decides. Half of the limit is for those.
func (w *world) call() {
	i := w.slot(w.key())
	if w.holder.lent[i]+w.holder.rls[i] < uint64(w.limit) {
		w.holder.rls[i]++
	}
	w.at(w.now+w.exponential(w.rls*float64(w.keys)*float64(w.limit)/w.window.Seconds()), w.call)
}

// outage makes the holder unreachable for some time.
func (w *world) outage() {
	w.holder.silent = w.now + w.r.Int64N(15*second)
	w.at(w.now+w.exponential(1.0/120), w.outage)
}

// asked is the holder's part of an ask.
func (s *sidecar) asked(h WindowHits) {
	w := s.w
	if w.now < w.holder.silent || w.faults && w.r.IntN(20) == 0 {
		return // lost
	}
	most, i := uint64(w.limit), slot{h.Key, h.Window}
	if w.rls > 0 {
		most = uint64(float64(w.limit) * (1 - math.Min(0.5, w.rls)))
	}
	most -= min(most, w.holder.lent[i])
	most = min(most, uint64(w.limit)-w.holder.lent[i]-w.holder.rls[i])
	if w.sidecars[0].ledger.shared && h.Hits > most {
		h.Hits = 0 // as a Reserve does
	}
	h.Hits = min(h.Hits, most)
	w.holder.lent[i] += h.Hits
	if h.Hits > 0 {
		s.lots[i] = append(s.lots[i], h.Hits)
	}
	ledger := s.ledger
	g := AskResult{h, uint64(w.limit) - w.holder.lent[i] - w.holder.rls[i]}
	w.at(w.now+w.delay(), func() {
		ledger.Granted(w.now, g)
		s.drive()
	})
}

// demanded is the holder's part of a demand.
func (s *sidecar) demanded(d KeyDemand) {
	w := s.w
	if w.now < w.holder.silent || w.faults && w.r.IntN(20) == 0 {
		return // lost
	}
	w.holder.demands[demander{d.Key, s.index}] = demandNote{d.Hits, w.now}
	all := uint64(0)
	for i := range w.sidecars {
		if n := w.holder.demands[demander{d.Key, i}]; w.now-n.at < int64(DemandLife) {
			all += n.hits
		}
	}
	ledger := s.ledger
	w.at(w.now+w.delay(), func() {
		ledger.Demanded(w.now, d.Key, all)
		s.drive()
	})
}

// delay returns the delay of one message.
func (w *world) delay() int64 {
	if w.faults && w.r.IntN(50) == 0 {
		return w.r.Int64N(second)
	}
	return w.r.Int64N(2e6)
}

// drive does the sidecar's work that is due, and schedules the rest.
func (s *sidecar) drive() {
	w := s.w
	for s.ledger.Next() <= w.now {
		work := s.ledger.Tick(w.now)
		s.check()
		for _, r := range work.Responses {
			w.messages++
			s.held(r)
			w.streams[r.Stream].respond(r)
		}
		for _, h := range work.Asks {
			s.messageLater(func() { s.asked(h) })
		}
		for _, h := range work.Returns {
			back := s.settle(slot{h.Key, h.Window}, h.Hits)
			s.messageLater(func() { w.holder.lent[slot{h.Key, h.Window}] -= back })
		}
		for _, d := range work.Demands {
			s.messageLater(func() { s.demanded(d) })
		}
	}
	if next := s.ledger.Next(); next < s.tickAt {
		s.tickAt = next
		w.at(next, func() {
			if s.tickAt == next {
				s.tickAt = math.MaxInt64
			}
			s.drive()
		})
	}
}

// messageLater carries a message to the holder. A sidecar that shares no holder is one with it.
func (s *sidecar) messageLater(do func()) {
	if s.w.sidecars[0].ledger.shared {
		s.w.at(s.w.now+s.w.delay(), do)
	} else {
		do()
	}
}

// held requires that the charges of what was pushed are within what the sidecar holds.
func (s *sidecar) held(r Response) {
	w := s.w
	for _, p := range r.Pushes {
		a := s.ledger.allotments[p.Key]
		ahead := a.ahead
		for _, l := range a.lines { // a refusal reaches into the next window, but what it has replaced does not
			if l.kind == Deny {
				ahead -= l.counted.ahead
			}
		}
		if p.Kind == Pair && (a.charged > a.held || w.now+int64(p.TTL) > a.end && ahead > a.next) {
			w.t.Fatalf("seed %d: pushed %d hits: charged %d of %d, ahead %d of %d", w.seed, p.Tokens, a.charged, a.held, a.ahead, a.next)
		}
		if l := s.ledger.streams[r.Stream].lines[p.Key]; w.sabotage == creditAtOnce && p.Kind == Pair {
			l.old = 0
			a.settle(l)
		}
	}
}

// check compares the sums of the ledger with its lines.
func (s *sidecar) check() {
	w := s.w
	for _, a := range s.ledger.list {
		charged, ahead := a.gone, uint64(0)
		for _, c := range a.closed {
			if c.until > a.end {
				ahead += c.hits
			}
		}
		for _, l := range a.lines {
			charged += l.charge()
			if max(l.endsAt, l.cutFrom) > a.end {
				ahead += l.alive()
			}
		}
		if charged != a.charged || ahead != a.ahead {
			w.t.Fatalf("sums: charged %d, lines have %d; ahead %d, lines have %d", a.charged, charged, a.ahead, ahead)
		}
	}
}
