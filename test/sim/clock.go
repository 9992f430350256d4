package sim

import "time"

// event is scheduled for a time, for one member or for the world.
type event struct {
	at  int64
	seq uint64 // order among events of the same time
	who *member
	fn  func()
}

// agenda is a heap of events.
type agenda struct {
	heap []event
	seq  uint64
}

func (a *agenda) before(i, j int) bool {
	x, y := &a.heap[i], &a.heap[j]
	return x.at < y.at || x.at == y.at && x.seq < y.seq
}

func (a *agenda) push(at int64, who *member, fn func()) {
	a.seq++
	a.heap = append(a.heap, event{at, a.seq, who, fn})
	for i := len(a.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !a.before(i, up) {
			break
		}
		a.heap[i], a.heap[up] = a.heap[up], a.heap[i]
		i = up
	}
}

func (a *agenda) pop() event {
	top, last := a.heap[0], len(a.heap)-1
	a.heap[0] = a.heap[last]
	a.heap[last] = event{}
	a.heap = a.heap[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if a.before(c, least) {
				least = c
			}
		}
		if least == i {
			return top
		}
		a.heap[i], a.heap[least] = a.heap[least], a.heap[i]
		i = least
	}
}

// after runs fn in d. If who is given, fn does not run once that boot has ended, and is postponed while it is paused.
func (w *world) after(d time.Duration, who *member, fn func()) {
	w.agenda.push(w.now+int64(max(0, d)), who, fn)
}

// run advances the clock by d, or until a law is violated.
func (w *world) run(d time.Duration) {
	end := w.now + int64(d)
	for len(w.agenda.heap) > 0 && w.agenda.heap[0].at <= end && w.failure == "" {
		w.step()
	}
	if w.failure == "" {
		w.now = end
	}
}

// step runs the next event.
func (w *world) step() {
	e := w.agenda.pop()
	w.now = e.at
	w.events++
	switch m := e.who; {
	case m == nil:
		e.fn()
	case m.gone:
	case m.paused:
		m.backlog = append(m.backlog, e.fn)
	default:
		m.do(e.fn)
	}
}

// clock returns the member's own time.
func (m *member) clock() int64 {
	return m.w.now + m.skew + int64(m.drift*float64(m.w.now-m.startedAt))
}
