package sublease

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// memory models the memory of an Envoy.
type memory struct {
	leases  map[uint32]*modelLease
	prints  map[Print]uint32
	next    uint32
	room    int
	corrupt bool // Left, Add and Remove fail
}

type modelLease struct {
	print   Print
	tokens  uint32
	expires int64
}

func newMemory() *memory {
	return &memory{leases: map[uint32]*modelLease{}, prints: map[Print]uint32{}, room: 1 << 14}
}

func (m *memory) Put(p Print, tokens uint32, expires int64) (uint32, bool) {
	if len(m.leases) >= m.room {
		return 0, false
	}
	m.next++
	m.leases[m.next] = &modelLease{p, tokens, expires}
	m.prints[p] = m.next
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
	delete(m.prints, m.leases[slot].print)
	delete(m.leases, slot)
	return left, ok
}

func (m *memory) Rivals(_ Print, see func(slot uint32)) {
	if len(m.leases) >= m.room {
		for slot := range m.leases {
			see(slot)
		}
	}
}

// spend takes n tokens.
func (m *memory) spend(now int64, p Print, n uint32) (expires int64, ok bool) {
	l := m.leases[m.prints[p]]
	if l == nil || now >= l.expires || l.tokens < n {
		return 0, false
	}
	l.tokens -= n
	return l.expires, true
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

// world runs sidecars, each with its Envoys, against one owner of each key.
type world struct {
	*modelKey // the first of keys
	now       int64
	events    []event
	rng       *rand.Rand
	keys      []*modelKey
	byName    map[string]*modelKey
	pick      func() *modelKey // the key of the next request
	cost      func() uint32    // its hits
	sidecars  []*sidecar
	without   uint64 // hits that were admitted without a call
	asks      uint64
	messages  uint64
	stray     int // hits that were spent in another window than that in which they were charged
	sabotage  func(*BookWork)
	faults    []string
}

// modelKey is a key with its owner.
type modelKey struct {
	name     string
	print    Print
	owner    *owner
	admitted map[int64]uint64 // by the window of the world's time
	offered  map[int64]uint64
}

func newKey(name string, p Print, l Limit) *modelKey {
	return &modelKey{name, p, &owner{limit: l, charged: map[int64]uint64{}}, map[int64]uint64{}, map[int64]uint64{}}
}

type sidecar struct {
	w       *world
	book    *TokenBook
	skew    int64
	started int // increases with each start
	envoys  []*modelEnvoy
}

type modelEnvoy struct {
	s      *sidecar
	conn   uint64
	memory *memory // nil: not connected
	rate   float64
	paces  map[Print]*modelPace
}

// modelPace is when an Envoy has sent a message about a descriptor, as in interest.rs.
type modelPace struct {
	hits         uint32
	hitAt, sends int64
}

var print = Print{1, 2}

const key = "key"

func newWorld(seed uint64, l Limit, members int, rates ...float64) *world {
	w := &world{
		modelKey: newKey(key, print, l), now: int64(1e18), rng: rand.New(rand.NewPCG(seed, 1)), byName: map[string]*modelKey{},
	}
	w.keys, w.byName[key] = []*modelKey{w.modelKey}, w.modelKey
	w.pick = func() *modelKey { return w.modelKey }
	w.cost = func() uint32 { return 1 }
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
		w.after(w.delay(), func() { w.byName[h.Key].owner.giveBack(h.Window, h.Hits) })
	}
	for _, h := range work.Asks {
		w.asks++
		sent, of := s.clock(), w.byName[h.Key].owner
		w.after(w.delay(), func() {
			ok, left, reset, window := of.take(w.now, h.Hits, false)
			w.after(w.delay(), func() {
				if boot != s.started {
					return
				}
				l := Lot{KeyHits: KeyHits{Key: h.Key, Window: h.Window}, Left: left}
				l.Known = of.limit.ChargedTo(h.Window, sent, s.clock(), reset)
				switch {
				case ok && l.Known:
					l.Hits = h.Hits
				case ok:
					of.giveBack(window, h.Hits)
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
	e.memory, e.paces = newMemory(), map[Print]*modelPace{}
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
	k, n := w.pick(), w.cost()
	k.offered[k.owner.limit.rule().Index(w.now)] += uint64(n)
	if e.memory != nil {
		if expires, ok := e.memory.spend(e.s.clock(), k.print, n); ok {
			w.spent(k, expires, n)
			return
		}
		e.missed(k, n)
	}
	w.call(k, n)
}

// missed counts hits without a token, and sends a message if one is due.
func (e *modelEnvoy) missed(k *modelKey, n uint32) {
	w, p := e.s.w, e.paces[k.print]
	if p == nil {
		p = new(modelPace)
		e.paces[k.print] = p
	}
	first := w.now-p.hitAt > int64(time.Second)
	if first {
		p.hits = 0
	}
	p.hits, p.hitAt = p.hits+n, w.now
	if first || w.now < p.sends {
		return
	}
	w.messages++
	if e.s.book.Interest(e.s.clock(), e.conn, k.print, p.hits) {
		e.s.book.Lease(e.s.clock(), e.conn, k.print, k.name, k.owner.limit)
	}
	p.sends, p.hits = w.now+int64(100*time.Millisecond), 0
}

// spent counts a hit that was spent from a lease, in the window by which callers and owners count: the clocks of the world
// differ, so near its ends the hit may also be one of the window next to it.
func (w *world) spent(k *modelKey, expires int64, n uint32) {
	r := k.owner.limit.rule()
	charged := r.Index(expires)
	if now := w.now; r.Index(now+int64(100*time.Millisecond)) != charged && r.Index(now-int64(100*time.Millisecond)) != charged {
		w.stray++
	}
	k.admitted[charged] += uint64(n)
	w.without += uint64(n)
}

// call is a call of the rate limit service.
func (w *world) call(k *modelKey, n uint32) {
	w.after(w.delay(), func() {
		if ok, _, _, window := k.owner.take(w.now, uint64(n), true); ok {
			k.admitted[window] += uint64(n)
		}
	})
}

// held returns the hits in leases and between them.
func (b *TokenBook) held() (n uint64) {
	for _, a := range b.accounts {
		n += a.stock
		for _, l := range a.lines {
			if !a.free() {
				n += uint64(l.given - l.counted)
			}
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
	for _, k := range w.keys {
		for window, n := range k.admitted {
			if n > uint64(k.owner.limit.Hits) || n > k.owner.charged[window] {
				faults = append(faults, fmt.Sprintf("%s: window %d admitted %d of %d, and %d are charged", k.name, window, n, k.owner.limit.Hits, k.owner.charged[window]))
			}
		}
	}
	return faults
}
