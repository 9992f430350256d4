package sim

import (
	"slices"
	"time"

	"github.com/keyward/keyward/internal/quota"
	"github.com/keyward/keyward/test/rlqs/model"
)

const (
	quotaPoll        = 250 * time.Millisecond // between looks at the sidecar of an Envoy
	quotaConnections = 64                     // requests that wait at an Envoy that is stopped
)

// quotaEnvoy is one Envoy and its connection to a sidecar.
type quotaEnvoy struct {
	w       *world
	slot    int // of its sidecar
	proxy   *model.Proxy
	rate    float64
	stopped bool
	waiting int   // requests of a stopped Envoy
	wakeAt  int64 // of the scheduled advance
	absent  int   // looks at the slot that found no sidecar
	refused bool

	book   *quotaBook // at the other end of the stream; nil: none
	stream quota.Stream
	serial uint64
	number int  // of the proxy's stream
	cut    bool // messages are lost
	upAt   int64
	downAt int64
	down   []func() // what a stopped Envoy has not read

	clock *member // whose assignments it has
	lease quotaLease
}

// quotaLease is the newest assignment of an Envoy.
type quotaLease struct {
	tokens, admitted uint64 // admitted since it was received
	usedAt, until    int64
}

func newQuotaEnvoy(w *world, i int) *quotaEnvoy {
	e := &quotaEnvoy{w: w, slot: i % w.o.Members, wakeAt: noTime}
	e.proxy = model.NewProxy(model.ProxyOptions{
		Workers: 2, NoAssignment: model.Strategy{Kind: model.DenyAll},
		Delay: func(int) time.Duration { return w.randomBelow(time.Millisecond) },
	})
	e.proxy.Refuse(w.now, true)
	e.refused = true
	return e
}

// attach follows the sidecar in the Envoy's slot. If there is none for seconds, it takes that of another slot.
func (e *quotaEnvoy) attach() {
	w := e.w
	w.after(quotaPoll, nil, e.attach)
	if e.stopped {
		return
	}
	m := w.slots[e.slot].now
	if ready := m != nil && m.ready() && !m.quota.closed; !ready {
		if e.absent++; e.absent > 12 {
			if m := w.readyMember(); m != nil {
				e.slot, e.absent = m.slot, 0
			}
		}
		m = nil
	} else {
		e.absent = 0
	}
	if e.book != nil && e.book.over() {
		w.stats.count("quota: stream ended with its sidecar")
		e.book, e.cut = nil, true
		e.proxy.EndStream(w.now)
	}
	if refused := m == nil; refused != e.refused && e.book == nil {
		e.refused = refused
		e.proxy.Refuse(w.now, refused)
	}
	e.afterwards()
}

// arrive is one request.
func (e *quotaEnvoy) arrive() {
	w := e.w
	w.after(w.exponential(e.rate), nil, e.arrive)
	switch {
	case !e.stopped:
		e.hit()
	case e.waiting < quotaConnections:
		e.waiting++
	}
}

// hit is the decision of one request.
func (e *quotaEnvoy) hit() {
	w := e.w
	ok := e.proxy.Hit(w.now, w.rnd.IntN(2), quotaKey)
	if l := &e.lease; ok {
		l.admitted++
		w.stats.count("quota: admitted by an Envoy")
		w.quotaAdmitted(w.quota.admitted, w.quota.request.Rule.Index(e.now()))
	} else if w.stats.count("quota: refused by an Envoy"); w.now > l.usedAt && w.now < l.until && l.admitted < l.tokens {
		w.fail("Q2: an Envoy refuses a request after %d of %d hits of its lease", l.admitted, l.tokens)
	}
	e.afterwards()
}

// now returns the time by the clock of the member whose assignments the Envoy has.
func (e *quotaEnvoy) now() int64 {
	if e.clock == nil {
		return e.w.now
	}
	return e.clock.clock()
}

// quotaAdmitted counts an admitted hit, and checks that all of its window together are within the limit.
func (w *world) quotaAdmitted(by map[int64]uint64, window int64) {
	x := w.quota
	by[window]++
	w.mixHash(uint64(window), by[window])
	if n, most := x.admitted[window]+x.calls[window], uint64(x.request.Rule.Limit)+x.excess[window]; n > most {
		w.fail("Q1: window %d: Envoys have admitted %d hits and callers %d, limit %d, excess %d", window, x.admitted[window],
			x.calls[window], x.request.Rule.Limit, x.excess[window])
	}
}

// afterwards sends the Envoy's reports and schedules what it does next.
func (e *quotaEnvoy) afterwards() {
	w := e.w
	for _, r := range e.proxy.Sent() {
		e.report(r)
	}
	if next := e.proxy.Next(); !e.stopped && next < e.wakeAt && next < noTime {
		e.wakeAt = next
		w.after(time.Duration(next-w.now), nil, func() {
			e.wakeAt = noTime
			if !e.stopped {
				e.proxy.Advance(w.now)
			}
			e.afterwards()
		})
	}
}

// report carries a report to the sidecar, and opens the stream with the first one.
func (e *quotaEnvoy) report(r model.UsageReport) {
	w := e.w
	if e.number != r.Stream {
		e.number, e.cut = r.Stream, false
		m := w.slots[e.slot].now
		if m == nil || m.quota.over() {
			e.cut = true
			return
		}
		again := w.bug == bugSameStream && e.book == m.quota && e.stream != 0
		e.book = m.quota
		if again {
			id, serial := e.stream, e.serial
			e.up(func(b *quotaBook) { b.ledger.Acked(b.m.clock(), id, serial) })
		} else {
			w.quota.streams++
			id := w.quota.streams
			e.stream = id
			e.up(func(b *quotaBook) {
				b.open[id] = e
				b.ledger.Opened(b.m.clock(), id, "")
			})
		}
	}
	id := e.stream
	e.up(func(b *quotaBook) {
		for _, u := range r.Usages {
			b.ledger.Report(b.m.clock(), quota.BucketReport{
				Stream: id, Key: u.ID, Allowed: u.Allowed, Denied: u.Denied, Elapsed: u.Elapsed,
			}, quota.KeyQuota{Limit: w.o.Quota.Limit, Window: w.o.Quota.Window})
		}
		b.drive()
	})
}

// over reports whether the member has ended its streams.
func (b *quotaBook) over() bool { return b.closed || b.m.gone }

// up delivers a message to the sidecar, unless the connection is cut before.
func (e *quotaEnvoy) up(do func(*quotaBook)) {
	if e.cut || e.book == nil {
		return
	}
	w, b, number := e.w, e.book, e.number
	e.upAt = max(e.upAt, w.now+int64(w.randomBelow(2*time.Millisecond)))
	w.after(time.Duration(e.upAt-w.now), b.m, func() {
		if e.number == number && !e.cut {
			do(b)
		}
	})
}

// respond carries a response to the Envoy.
func (e *quotaEnvoy) respond(b *quotaBook, r quota.Response) {
	w, number := e.w, e.number
	if r.Pushes, e.serial = slices.Clone(r.Pushes), r.Serial; w.bug == bugEarlyAck {
		w.after(0, b.m, func() { b.ledger.Acked(b.m.clock(), r.Stream, r.Serial) })
	}
	if e.stream != r.Stream || e.cut {
		return
	}
	e.downAt = max(e.downAt, w.now+int64(w.randomBelow(2*time.Millisecond)))
	w.after(time.Duration(e.downAt-w.now), nil, func() {
		read := func() {
			if e.number == number && !e.cut {
				e.receive(b, r)
			}
		}
		if e.stopped {
			e.down = append(e.down, read)
		} else {
			read()
		}
	})
}

// receive applies a response and answers the PING behind it.
func (e *quotaEnvoy) receive(b *quotaBook, r quota.Response) {
	w := e.w
	e.clock = b.m
	var all []model.Action
	for _, p := range r.Pushes {
		if b.over() && (p.Kind == quota.Pair || p.Kind == quota.Same && w.now >= e.lease.until) { // it has waited for an Envoy that was stopped, and lives longer than its sidecar knew
			rule := &w.quota.request.Rule
			for i := rule.Index(e.now()); i <= rule.Index(e.now()+int64(p.TTL)); i++ {
				w.quota.excess[i] += uint64(p.Tokens)
			}
		}
		a := model.Same(p.Key, p.Tokens, p.TTL)
		l := &e.lease
		if l.until = w.now + int64(p.TTL); p.Kind != quota.Same {
			*l = quotaLease{tokens: uint64(p.Tokens), until: l.until}
		}
		switch p.Kind {
		case quota.Pair:
			w.stats.count("quota: lease")
			if w.bug != bugBareBucket {
				all = append(all, model.Pair(p.Key, p.Tokens, p.TTL)...)
				continue
			}
		case quota.Same:
			w.stats.count("quota: lease extended")
		case quota.Deny:
			a.Strategy = model.Strategy{Kind: model.DenyAll}
		case quota.Allow:
			a.Strategy = model.Strategy{Kind: model.AllowAll}
		case quota.Abandon:
			a.Abandon = true
		}
		all = append(all, a)
	}
	used := e.proxy.Receive(w.now, all...)
	e.lease.usedAt = max(e.lease.usedAt, used)
	e.afterwards()
	w.after(time.Duration(used-w.now), nil, func() {
		e.up(func(b *quotaBook) {
			b.ledger.Acked(b.m.clock(), r.Stream, r.Serial)
			b.drive()
		})
	})
}

// breakStream cuts the connection. The sidecar and the Envoy notice it independently.
func (e *quotaEnvoy) breakStream(notice time.Duration) {
	w, b, id, number := e.w, e.book, e.stream, e.number
	if b == nil || e.cut || e.stopped {
		return
	}
	w.stats.count("quota: stream broken")
	e.cut = true
	if w.bug != bugSameStream {
		w.after(w.randomBelow(notice+1), b.m, func() {
			delete(b.open, id)
			b.ledger.Closed(b.m.clock(), id)
			b.drive()
		})
	}
	w.after(notice, nil, func() {
		if e.number == number && !e.stopped {
			e.proxy.EndStream(w.now)
			e.afterwards()
		}
	})
}

// stop stops the Envoy's process for some time. What waits then may be admitted before the main thread has ended an
// assignment.
func (e *quotaEnvoy) stop(d time.Duration) {
	w := e.w
	if e.stopped {
		return
	}
	w.stats.count("quota: Envoy stopped")
	e.proxy.Pause(w.now)
	until := e.lease.until
	e.stopped, e.lease = true, quotaLease{}
	w.after(d, nil, func() {
		e.stopped = false
		if w.rnd.IntN(2) == 0 {
			e.proxy.Resume(w.now)
		}
		known := e.book != nil && !e.book.m.gone && e.book.open[e.stream] != nil
		for ; e.waiting > 0; e.waiting-- {
			if !known || w.now >= until { // a lease that has ended may be charged in part
				w.quota.excess[w.quota.request.Rule.Index(e.now())]++
			}
			e.hit()
		}
		e.proxy.Resume(w.now)
		e.afterwards()
		down := e.down
		e.down = nil
		for _, read := range down {
			read()
		}
		if e.cut && e.book != nil {
			e.proxy.EndStream(w.now)
			e.afterwards()
		}
	})
}
