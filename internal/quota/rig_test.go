package quota

import (
	"testing"
	"time"
)

// rig drives a Ledger on a virtual clock, with a holder that grants what is left of a limit and Envoys that acknowledge
// each response after a millisecond.
type rig struct {
	t       *testing.T
	l       *Ledger
	now     int64
	quota   KeyQuota
	lent    map[int64]uint64
	asks    []WindowHits
	demands []KeyDemand
	back    []WindowHits
	sent    []sentPush
	deaf    map[Stream]bool // do not acknowledge
	broke   bool            // the holder does not answer
	acking  []acking
}

type sentPush struct {
	Push
	at     int64
	serial uint64
}

type acking struct {
	at     int64
	stream Stream
	serial uint64
}

const key = "k"

// newRig begins with a window.
func newRig(t *testing.T, limit uint32, window time.Duration) *rig {
	return &rig{
		t: t, l: NewLedger(Options{IDs: 3}), now: 1_000_000 * int64(window), quota: KeyQuota{Limit: limit, Window: window},
		lent: map[int64]uint64{}, deaf: map[Stream]bool{},
	}
}

// window returns the current window.
func (r *rig) window() int64 { return r.now / int64(r.quota.Window) }

// into returns the time since the window began.
func (r *rig) into(at int64) time.Duration { return time.Duration(at % int64(r.quota.Window)) }

// report reports hits of the key.
func (r *rig) report(s Stream, allowed, denied uint64) {
	r.t.Helper()
	if !r.l.Report(r.now, BucketReport{Stream: s, Key: key, Allowed: allowed, Denied: denied, Elapsed: 5 * time.Second}, r.quota) {
		r.t.Fatalf("report of stream %d is refused", s)
	}
	r.run()
}

// first opens a stream with a new id.
func (r *rig) first(s Stream) *line {
	r.t.Helper()
	r.l.Opened(r.now, s, "")
	r.l.Report(r.now, BucketReport{Stream: s, Key: key, Denied: 1}, r.quota)
	r.run()
	return r.l.streams[s].lines[key]
}

// run does what is due now.
func (r *rig) run() {
	for r.l.Next() <= r.now {
		work := r.l.Tick(r.now)
		for _, x := range work.Responses {
			for _, p := range x.Pushes {
				r.sent = append(r.sent, sentPush{p, r.now, x.Serial})
			}
			if !r.deaf[x.Stream] {
				r.acking = append(r.acking, acking{r.now + int64(time.Millisecond), x.Stream, x.Serial})
			}
		}
		for _, h := range work.Returns {
			r.back = append(r.back, h)
			r.lent[h.Window] -= h.Hits
		}
		r.demands = append(r.demands, work.Demands...)
		for _, h := range work.Asks {
			r.asks = append(r.asks, h)
			if !r.broke {
				h.Hits = min(h.Hits, uint64(r.quota.Limit)-r.lent[h.Window])
				r.lent[h.Window] += h.Hits
				r.l.Granted(r.now, AskResult{h, uint64(r.quota.Limit) - r.lent[h.Window]})
			}
		}
	}
}

// wait lets time pass.
func (r *rig) wait(d time.Duration) {
	for end := r.now + int64(d); ; {
		r.run()
		next := r.l.Next()
		if len(r.acking) > 0 {
			next = min(next, r.acking[0].at)
		}
		if next > end {
			r.now = end
			return
		}
		r.now = next
		for len(r.acking) > 0 && r.acking[0].at <= r.now {
			r.l.Acked(r.now, r.acking[0].stream, r.acking[0].serial)
			r.acking = r.acking[1:]
		}
	}
}

// until lets time pass until that long into the current window.
func (r *rig) until(into time.Duration) {
	r.t.Helper()
	if d := into - r.into(r.now); d > 0 {
		r.wait(d)
		return
	}
	r.t.Fatalf("%v into the window is over", into)
}

// turn lets time pass until that long into the next window.
func (r *rig) turn(into time.Duration) { r.wait(r.quota.Window - r.into(r.now) + into) }

// pushes returns what was sent since the last call.
func (r *rig) pushes() []sentPush {
	sent := r.sent
	r.sent = nil
	return sent
}

// one returns the only push sent since the last call.
func (r *rig) one(kind PushKind) sentPush {
	r.t.Helper()
	sent := r.pushes()
	if len(sent) != 1 || sent[0].Kind != kind {
		r.t.Fatalf("pushes %+v; want one of kind %d", sent, kind)
	}
	return sent[0]
}

// none requires that nothing was sent since the last call.
func (r *rig) none() {
	r.t.Helper()
	if sent := r.pushes(); len(sent) > 0 {
		r.t.Fatalf("pushes %+v; want none", sent)
	}
}

// steady brings an Envoy with that many hits per second to the begin of a window, with a lease for it.
func (r *rig) steady(rates ...float64) (lines []*line) {
	r.t.Helper()
	for i := range rates {
		lines = append(lines, r.first(Stream(i+1)))
	}
	for range int(2*r.quota.Window/(5*time.Second)) - 1 {
		r.wait(5 * time.Second)
		for i, rate := range rates {
			r.report(Stream(i+1), uint64(5*rate), 0)
		}
	}
	r.turn(time.Millisecond)
	return lines
}

func (r *rig) charged() uint64 { return r.l.allotments[key].charged }

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
