package sublease

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// memory models the memory of an Envoy.
type memory struct {
	leases  map[uint32]*modelLease
	next    uint32
	room    int
	corrupt bool // Left, Add and Remove fail
}

type modelLease struct {
	print   Print
	tokens  uint32
	expires int64
}

func newMemory() *memory { return &memory{leases: map[uint32]*modelLease{}, room: 1000} }

func (m *memory) Put(p Print, tokens uint32, expires int64) (uint32, bool) {
	if len(m.leases) >= m.room {
		return 0, false
	}
	m.next++
	m.leases[m.next] = &modelLease{p, tokens, expires}
	return m.next, true
}

func (m *memory) Left(slot uint32) (uint32, bool) {
	if m.corrupt {
		return 0, false
	}
	return m.leases[slot].tokens, true
}

func (m *memory) Add(slot, tokens uint32) (uint32, bool) {
	l := m.leases[slot]
	left := l.tokens
	l.tokens += tokens
	if m.corrupt {
		return 0, false
	}
	return left, true
}

func (m *memory) Remove(slot uint32) (uint32, bool) {
	left, ok := m.Left(slot)
	delete(m.leases, slot)
	return left, ok
}

// spend takes a token.
func (m *memory) spend(now int64, p Print) (expires int64, ok bool) {
	for _, l := range m.leases {
		if l.print == p && now < l.expires && l.tokens > 0 {
			l.tokens--
			return l.expires, true
		}
	}
	return 0, false
}

// owner models the owner of one key, with a clock of its own.
type owner struct {
	limit   Limit
	skew    int64
	charged map[int64]uint64
}

// take charges hits if they fit, and with anyway also if they do not, as calls of the rate limit service do. It returns what is
// left, and the time until the window ends, in whole seconds.
func (o *owner) take(now int64, hits uint64, anyway bool) (ok bool, left uint64, reset time.Duration, window int64) {
	now += o.skew
	r := o.limit.rule()
	window = r.Index(now)
	reset = (time.Duration(r.End(window)-now) + time.Second - 1).Truncate(time.Second)
	if ok = o.charged[window]+hits <= uint64(o.limit.Hits); ok || anyway {
		o.charged[window] += hits
	}
	return ok, uint64(o.limit.Hits) - min(uint64(o.limit.Hits), o.charged[window]), reset, window
}

func (o *owner) giveBack(window int64, hits uint64) {
	if o.charged[window] < hits {
		hits = o.charged[window]
	}
	o.charged[window] -= hits
}

// event is something that happens at a time.
type event struct {
	at int64
	do func()
}

// world runs sidecars, each with its Envoys, against one owner.
type world struct {
	now      int64
	events   []event
	rng      *rand.Rand
	owner    *owner
	sidecars []*sidecar
	admitted map[int64]uint64 // by the window of the world's time
	offered  map[int64]uint64
	without  uint64 // hits that were admitted without a call
	asks     uint64
	stray    int // hits that were spent in another window than that in which they were charged
	sabotage func(*BookWork)
	faults   []string
}

type sidecar struct {
	w       *world
	book    *TokenBook
	skew    int64
	started int // increases with each start
	envoys  []*modelEnvoy
}

type modelEnvoy struct {
	s        *sidecar
	conn     uint64
	memory   *memory // nil: not connected
	rate     float64
	interest uint32
	sentAt   int64
}

var print = Print{1, 2}

const key = "key"

func newWorld(seed uint64, l Limit, members int, rates ...float64) *world {
	w := &world{
		now: int64(1e18), rng: rand.New(rand.NewPCG(seed, 1)), owner: &owner{limit: l, charged: map[int64]uint64{}},
		admitted: map[int64]uint64{}, offered: map[int64]uint64{},
	}
	for i := range members {
		s := &sidecar{w: w, skew: w.rng.Int64N(int64(200*time.Millisecond)) - int64(100*time.Millisecond)}
		w.sidecars = append(w.sidecars, s)
		for j := i; j < len(rates); j += members {
			s.envoys = append(s.envoys, &modelEnvoy{s: s, rate: rates[j]})
		}
		s.start()
	}
	for _, s := range w.sidecars {
		for _, e := range s.envoys {
			w.request(e)
		}
	}
	return w
}

func (w *world) after(d time.Duration, do func()) {
	w.events = append(w.events, event{w.now + int64(d), do})
	for i := len(w.events) - 1; i > 0 && w.less(i, (i-1)/2); i = (i - 1) / 2 {
		w.events[i], w.events[(i-1)/2] = w.events[(i-1)/2], w.events[i]
	}
}

func (w *world) less(i, j int) bool { return w.events[i].at < w.events[j].at }

func (w *world) pop() event {
	e, last := w.events[0], len(w.events)-1
	w.events[0] = w.events[last]
	w.events = w.events[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			return e
		}
		if c+1 < last && w.less(c+1, c) {
			c++
		}
		if !w.less(c, i) {
			return e
		}
		w.events[i], w.events[c] = w.events[c], w.events[i]
		i = c
	}
}

func (w *world) run(d time.Duration) {
	for end := w.now + int64(d); len(w.events) > 0 && w.events[0].at <= end; {
		e := w.pop()
		w.now = e.at
		e.do()
	}
}

// start starts a sidecar, whose former boot has ended without a word.
func (s *sidecar) start() {
	s.started++
	s.book = NewBook(Options{Members: func() int { return len(s.w.sidecars) }})
	for _, e := range s.envoys {
		e.connect()
	}
	s.loop(s.started)
}

func (s *sidecar) loop(boot int) {
	if boot != s.started {
		return
	}
	s.tick()
	s.w.after(TickInterval, func() { s.loop(boot) })
}

func (s *sidecar) clock() int64 { return s.w.now + s.skew }

func (s *sidecar) tick() {
	w, boot := s.w, s.started
	work := s.book.Tick(s.clock())
	if w.sabotage != nil {
		w.sabotage(work)
	}
	if held := s.book.held(); held != s.book.Totals().Held {
		w.faults = append(w.faults, fmt.Sprintf("%d hits in leases and between them, of %+v", held, s.book.Totals()))
	}
	for _, h := range work.Returns {
		w.after(w.delay(), func() { w.owner.giveBack(h.Window, h.Hits) })
	}
	for _, h := range work.Asks {
		w.asks++
		sent := s.clock()
		w.after(w.delay(), func() {
			ok, left, reset, window := w.owner.take(w.now, h.Hits, false)
			w.after(w.delay(), func() {
				if boot != s.started {
					return
				}
				l := Lot{KeyHits: KeyHits{Key: h.Key, Window: h.Window}, Left: left}
				l.Known = w.owner.limit.ChargedTo(h.Window, sent, s.clock(), reset)
				switch {
				case ok && l.Known:
					l.Hits = h.Hits
				case ok:
					w.owner.giveBack(window, h.Hits)
				}
				s.book.Granted(s.clock(), l)
				s.tick()
			})
		})
	}
}

func (w *world) delay() time.Duration {
	return time.Duration(w.rng.ExpFloat64() * float64(time.Millisecond))
}

func (e *modelEnvoy) connect() {
	e.conn = e.s.w.rng.Uint64()
	e.memory = newMemory()
	e.s.book.Opened(e.conn, e.memory)
}

// request makes one request now and the next one later.
func (w *world) request(e *modelEnvoy) {
	w.after(time.Duration(w.rng.ExpFloat64()/max(0.01, e.rate)*float64(time.Second)), func() {
		e.ask()
		w.request(e)
	})
}

func (e *modelEnvoy) ask() {
	w := e.s.w
	window := w.owner.limit.rule().Index(w.now)
	w.offered[window]++
	if e.memory != nil {
		if expires, ok := e.memory.spend(e.s.clock(), print); ok {
			w.spent(expires)
			return
		}
	}
	e.interest++
	if e.memory != nil && w.now-e.sentAt > int64(100*time.Millisecond) {
		if e.s.book.Interest(e.s.clock(), e.conn, print, e.interest) {
			e.s.book.Lease(e.s.clock(), e.conn, print, key, w.owner.limit)
		}
		e.sentAt, e.interest = w.now, 0
	}
	w.call()
}

// spent counts a hit that was spent from a lease, in the window by which callers and owners count: the clocks of the world
// differ, so near its ends the hit may also be one of the window next to it.
func (w *world) spent(expires int64) {
	r := w.owner.limit.rule()
	charged := r.Index(expires)
	if now := w.now; r.Index(now+int64(100*time.Millisecond)) != charged && r.Index(now-int64(100*time.Millisecond)) != charged {
		w.stray++
	}
	w.admitted[charged]++
	w.without++
}

// call is a call of the rate limit service.
func (w *world) call() {
	w.after(w.delay(), func() {
		if ok, _, _, window := w.owner.take(w.now, 1, true); ok {
			w.admitted[window]++
		}
	})
}

// held returns the hits in leases and between them.
func (b *TokenBook) held() (n uint64) {
	for _, a := range b.accounts {
		n += a.stock
		for _, l := range a.lines {
			n += uint64(l.given - l.counted)
		}
	}
	return n
}

// check returns which laws the world has broken: no window admitted more than its limit and its charges, and no book has
// lost a hit.
func (w *world) check() []string {
	faults := w.faults
	if w.stray > 0 {
		faults = append(faults, fmt.Sprintf("%d hits were spent in another window than that in which they were charged", w.stray))
	}
	for window, n := range w.admitted {
		if n > uint64(w.owner.limit.Hits) || n > w.owner.charged[window] {
			faults = append(faults, fmt.Sprintf("window %d admitted %d of %d, and %d are charged", window, n, w.owner.limit.Hits, w.owner.charged[window]))
		}
	}
	return faults
}
