//go:build !race

package quota

import (
	"math"
	"slices"
	"time"

	"github.com/keyward/keyward/test/rlqs/model"
)

// connections is how many requests wait at an Envoy that is stopped.
const connections = 64

// envoy is one Envoy and its connection to the sidecar.
type envoy struct {
	w       *world
	index   int
	sidecar *sidecar
	proxy   *model.Proxy
	rate    float64
	stopped bool
	silent  int64 // no requests until then
	waiting []Key // requests of a stopped Envoy
	wakeAt  int64 // of the scheduled wake

	stream Stream // at the sidecar; 0: none
	serial uint64 // of the newest response
	number int    // of the proxy's stream
	cut    bool   // messages are lost
	down   []delivery
	downAt int64 // arrival of the last response: they arrive in order
	upAt   int64
}

// delivery is a response that a stopped Envoy has not read.
type delivery struct {
	stream Stream
	r      Response
}

func newEnvoy(w *world, i int) *envoy {
	e := &envoy{w: w, index: i, sidecar: w.sidecars[i%len(w.sidecars)], wakeAt: math.MaxInt64}
	e.proxy = model.NewProxy(model.ProxyOptions{
		Workers: 2, NoAssignment: model.Strategy{Kind: model.DenyAll}, Delay: func(int) time.Duration {
			if w.faults && w.r.IntN(50) == 0 {
				return time.Duration(w.r.Int64N(681e6))
			}
			return time.Duration(w.r.Int64N(1e6))
		},
	})
	return e
}

// arrive is one request.
func (e *envoy) arrive() {
	w := e.w
	if w.now < e.silent {
		w.at(e.silent, e.arrive)
		return
	}
	w.at(w.now+w.exponential(e.rate), e.arrive)
	key := w.key()
	w.offered[w.slot(key)]++
	switch {
	case !e.stopped:
		e.hit(key)
	case len(e.waiting) < connections:
		e.waiting = append(e.waiting, key)
	}
}

// hit is the decision of one request. It reports whether it was admitted.
func (e *envoy) hit(key Key) bool {
	w := e.w
	ok := e.proxy.Hit(w.now, w.r.IntN(2), key)
	if ok {
		w.admitted[w.slot(key)]++
	}
	if w.counts() {
		w.requests++
		if !ok {
			w.refused++
		}
	}
	e.after()
	return ok
}

// phase returns when the Envoy's first pause begins, after that of the first Envoy.
func (e *envoy) phase() int64 {
	if !e.w.apart {
		return 0
	}
	return int64(e.w.pause+e.w.busy) / int64(e.w.plan.envoys) * int64(e.index)
}

// rest begins a pause.
func (e *envoy) rest() {
	w := e.w
	w.rested = true
	e.silent = w.now + int64(w.pause)
	w.at(e.silent+int64(w.busy), e.rest)
}

// after sends what the proxy has reported and schedules what it does next.
func (e *envoy) after() {
	w := e.w
	for _, r := range e.proxy.Sent() {
		e.report(r)
	}
	if next := e.proxy.Next(); !e.stopped && next < e.wakeAt {
		e.wakeAt = next
		w.at(next, func() {
			if e.wakeAt == next {
				e.wakeAt = math.MaxInt64
			}
			if !e.stopped {
				e.proxy.Advance(w.now)
			}
			e.after()
		})
	}
}

// report carries a report to the sidecar.
func (e *envoy) report(r model.UsageReport) {
	w := e.w
	w.messages++
	if e.number != r.Stream {
		e.number, e.cut = r.Stream, false
		e.upAt, e.downAt = w.now, w.now
		if w.sabotage != sameStream || e.stream == 0 {
			w.opened++
			e.stream = w.opened
			w.streams[e.stream] = e
			id := e.stream
			e.up(func() { e.sidecar.ledger.Opened(w.now, id, "") })
		} else { // what was sent on the stream before is taken for received
			id, serial := e.stream, e.serial
			e.up(func() { e.sidecar.ledger.Acked(w.now, id, serial) })
		}
	}
	if e.cut {
		return
	}
	id := e.stream
	e.up(func() {
		for _, u := range r.Usages {
			e.sidecar.ledger.Report(w.now, BucketReport{
				Stream: id, Key: u.ID, Allowed: u.Allowed, Denied: u.Denied, Elapsed: u.Elapsed,
			}, w.quota())
		}
		e.sidecar.drive()
	})
}

func (w *world) quota() KeyQuota { return KeyQuota{Limit: w.limit, Window: w.window} }

// up delivers a message to the sidecar, unless the connection is cut before.
func (e *envoy) up(do func()) {
	e.upAt = max(e.upAt, e.w.now+e.w.delay())
	number := e.number
	e.w.at(e.upAt, func() {
		if e.number == number && !e.cut {
			do()
		}
	})
}

// respond carries a response to the Envoy.
func (e *envoy) respond(r Response) {
	w := e.w
	r.Pushes = slices.Clone(r.Pushes)
	e.serial = r.Serial
	if w.sabotage == earlyAck {
		w.at(w.now, func() { e.sidecar.ledger.Acked(w.now, r.Stream, r.Serial) })
	}
	if e.stream != r.Stream || e.cut {
		return
	}
	e.downAt = max(e.downAt, w.now+w.delay())
	number := e.number
	w.at(e.downAt, func() {
		if e.number != number || e.cut {
			return
		}
		if e.stopped {
			e.down = append(e.down, delivery{r.Stream, r})
		} else {
			e.receive(r)
		}
	})
}

// receive applies a response and answers the PING behind it.
func (e *envoy) receive(r Response) {
	w := e.w
	var all []model.Action
	for _, p := range r.Pushes {
		a := model.Same(p.Key, p.Tokens, p.TTL)
		switch p.Kind {
		case Pair:
			if w.sabotage != bareBucket {
				all = append(all, model.Pair(p.Key, p.Tokens, p.TTL)...)
				continue
			}
		case Deny:
			a.Strategy = model.Strategy{Kind: model.DenyAll}
		case Allow:
			a.Strategy = model.Strategy{Kind: model.AllowAll}
		case Abandon:
			a.Abandon = true
		}
		all = append(all, a)
	}
	used := e.proxy.Receive(w.now, all...)
	e.after()
	w.at(used, func() {
		e.up(func() {
			e.sidecar.ledger.Acked(w.now, r.Stream, r.Serial)
			e.sidecar.drive()
		})
	})
}

// fault makes one fault and schedules the next.
func (e *envoy) fault() {
	w := e.w
	w.at(w.now+w.exponential(1.0/60), e.fault)
	switch w.r.IntN(5) {
	case 0:
		e.breakStream(0)
	case 1:
		e.breakStream(w.r.Int64N(7 * second)) // reports of that time are lost
	case 2:
		e.proxy.Refuse(w.now, true)
		e.breakStream(0)
		w.at(w.now+w.r.Int64N(15*second), func() {
			e.proxy.Refuse(w.now, false)
			e.after()
		})
	case 3:
		e.stop(w.r.Int64N(8 * second))
	case 4: // long enough for an idle lease, or to be forgotten
		e.silent = w.now + w.r.Int64N(90*second)
	}
}

// breakStream cuts the connection. The sidecar and the Envoy notice it independently.
func (e *envoy) breakStream(notice int64) {
	w := e.w
	if e.stream == 0 || e.cut {
		return
	}
	e.cut = true
	id := e.stream
	w.at(w.now+w.r.Int64N(notice+1), func() {
		if w.sabotage != sameStream {
			e.sidecar.ledger.Closed(w.now, id)
			e.sidecar.drive()
		}
	})
	number := e.number
	w.at(w.now+notice, func() {
		if e.number == number {
			e.proxy.EndStream(w.now)
			e.after()
		}
	})
}

// stop stops the Envoy's process for some time.
func (e *envoy) stop(d int64) {
	w := e.w
	if e.stopped {
		return
	}
	e.proxy.Pause(w.now)
	e.stopped = true
	w.at(w.now+d, func() {
		e.stopped = false
		if w.r.IntN(2) == 0 {
			e.proxy.Resume(w.now)
		}
		for _, key := range e.waiting { // workers may be faster than the main thread
			if e.hit(key) && e.sidecar.ledger.streams[e.stream] == nil {
				w.late[w.slot(key)]++
			}
		}
		e.waiting = e.waiting[:0]
		e.proxy.Resume(w.now)
		e.after()
		for _, d := range e.down {
			if d.stream == e.stream && !e.cut {
				e.receive(d.r)
			}
		}
		e.down = e.down[:0]
	})
}
