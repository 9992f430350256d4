package quota

import (
	"math"
	"time"
)

// Ledger divides the hits that one sidecar holds between the Envoys on its streams. The caller serializes all calls and
// calls Tick when Next is due, and after calls that make something due at once.
type Ledger struct {
	ids        int
	shared     bool
	members    float64 // sidecars, at least 1
	allotments map[Key]*allotment
	list       []*allotment
	streams    map[Stream]*stream
	sending    []*stream // streams with pushes to send
	nextAt     int64
	work       Work
	pushes     []Push       // of the responses of work
	asks       []WindowHits // for the next Tick
	returns    []WindowHits
	demands    []KeyDemand
	stats      LedgerStats
	retiring   bool // since Retire
	left       bool // since Leave
}

// stream is one stream of an Envoy.
type stream struct {
	id     Stream
	name   string
	lines  map[Key]*line
	wants  []*line
	queued bool // in Ledger.sending
	serial uint64
	sentAt int64
	// reportedAt is when its newest report arrived; 0: never.
	reportedAt int64
	waiting    []sentResponse // unacknowledged, oldest first
	unacked    []*line        // lines with unacknowledged pushes
	ending     []endingLease  // of abandoned lines
}

// endingLease is a lease of an abandoned line. It ends when the response is acknowledged.
type endingLease struct {
	serial    uint64
	allotment *allotment
	lease     *closedLease
}

// abandoned records that the lines that were abandoned in responses up to serial have no leases.
func (s *stream) abandoned(now int64, serial uint64) {
	for len(s.ending) > 0 && s.ending[0].serial <= serial {
		e := s.ending[0]
		s.ending = s.ending[:copy(s.ending, s.ending[1:])]
		if e.allotment.dropped {
			continue
		}
		e.allotment.catchUp(now)
		e.allotment.endClosed(now, e.lease)
	}
}

type sentResponse struct {
	serial uint64
	at     int64
}

// stalled reports whether the Envoy does not acknowledge responses.
func (s *stream) stalled(now int64) bool {
	return len(s.waiting) > 0 && now-s.waiting[0].at > int64(stalledAfter)
}

// LedgerStats counts events of a Ledger since it was made.
type LedgerStats struct {
	Granted  uint64 // hits that the holder has granted
	Returned uint64 // of them hits given back to the holder
	Pushed   uint64 // hits of leases pushed
	Credited uint64 // hits of leases that were free again before their windows ended
	Stranded uint64 // hits of leases that may have been unspent when their windows or streams ended
	// Unassigned are hits that the holder had granted and that were neither given back nor part of a lease when their
	// windows ended.
	Unassigned uint64
	// Late are hits that were proven spent after their windows had ended. The grants of such windows are together Returned,
	// Unassigned, Stranded, Late, and the hits proven spent before.
	Late    uint64
	OverCap uint64 // reports of ids above the cap
}

// NewLedger returns a Ledger without keys and streams.
func NewLedger(o Options) *Ledger {
	if o.IDs <= 0 {
		o.IDs = defaultIDs
	}
	return &Ledger{
		ids: o.IDs, shared: o.Shared, members: 1, allotments: map[Key]*allotment{}, streams: map[Stream]*stream{}, nextAt: math.MaxInt64,
	}
}

// SetMembers sets the number of sidecars that share the limits. It matters while their demands are not known.
func (b *Ledger) SetMembers(n int) { b.members = float64(max(1, n)) }

// Has reports whether hits of a key are divided between Envoys, or were lately.
func (b *Ledger) Has(key Key) bool { return b.allotments[key] != nil }

// Stats returns the counts of events.
func (b *Ledger) Stats() LedgerStats { return b.stats }

// Next returns when the next Tick is due, or math.MaxInt64 if nothing is.
func (b *Ledger) Next() int64 { return b.nextAt }

// due makes a Tick due at the latest at that time.
func (b *Ledger) due(at int64) { b.nextAt = min(b.nextAt, at) }

// Opened adds a stream. The name of its Envoy is only for views.
func (b *Ledger) Opened(_ int64, id Stream, name string) {
	b.streams[id] = &stream{id: id, name: name, lines: map[Key]*line{}}
}

// Closed removes a stream. Nothing that was pushed on it is credited: its last reports may be lost.
func (b *Ledger) Closed(now int64, id Stream) {
	s := b.streams[id]
	if s == nil {
		return
	}
	for _, l := range s.lines {
		l.allotment.catchUp(now)
		l.allotment.remove(now, l)
	}
	s.lines, s.wants = nil, nil
	delete(b.streams, id)
}

// Report processes the usage of one key that an Envoy has reported, with the quota that applies to the key. It returns
// false if the stream is not open or has too many ids. The Envoy then keeps to its configuration.
func (b *Ledger) Report(now int64, r BucketReport, q KeyQuota) bool {
	s := b.streams[r.Stream]
	if s == nil {
		return false
	}
	s.reportedAt = now
	l := s.lines[r.Key]
	if l == nil {
		if len(s.lines) >= b.ids {
			b.stats.OverCap++
			return false
		}
		l = b.newLine(now, s, r.Key, q)
	}
	a := l.allotment
	if a.quota != q {
		a.change(now, q)
	}
	if q.Unlimited {
		a.allow(now, l)
		return true
	}
	a.catchUp(now)
	a.report(now, l, r)
	return true
}

// newLine opens the account of a key on a stream. Hits of leases that the Envoy had before may still be reported.
func (b *Ledger) newLine(now int64, s *stream, key Key, q KeyQuota) *line {
	a := b.allotments[key]
	if a == nil {
		a = newAllotment(b, now, key, q)
		b.allotments[key] = a
		b.list = append(b.list, a)
	}
	l := &line{allotment: a, stream: s, place: len(a.lines), past: unbounded, hitAt: now}
	a.lines = append(a.lines, l)
	s.lines[key] = l
	a.schedule(now)
	return l
}

// Granted adds hits that the holder has charged to a window of a key for this sidecar, in answer to an ask.
func (b *Ledger) Granted(now int64, g AskResult) {
	b.stats.Granted += g.Hits
	if b.left {
		b.giveBack(g.WindowHits)
		return
	}
	a := b.allotments[g.Key]
	if a == nil {
		b.giveBack(g.WindowHits)
		return
	}
	a.catchUp(now)
	a.learnLeft(now, &g)
	a.granted(now, g.Window, g.Hits)
}

// Demanded records the sum of the demands of all sidecars, this one included, in answer to one of its demands; 0 if it
// is not known.
func (b *Ledger) Demanded(now int64, key Key, all uint64) {
	if a := b.allotments[key]; a != nil {
		a.catchUp(now)
		a.demanded(now, float64(all))
	}
}

// CallsDemanded records how many hits of a window callers would spend that the holder decides. Without another call, it is
// used for DemandLife.
func (b *Ledger) CallsDemanded(now int64, key Key, calls uint64) {
	if a := b.allotments[key]; a != nil {
		a.share.calls, a.share.callsAt = float64(calls), now
	}
}

// Acked records that an Envoy has answered the PING behind a response, and so uses all responses up to it. It returns the
// time since the response was sent, or 0 if it was acknowledged before.
func (b *Ledger) Acked(now int64, id Stream, serial uint64) (took time.Duration) {
	s := b.streams[id]
	if s == nil {
		return 0
	}
	stalled := s.stalled(now)
	for len(s.waiting) > 0 && s.waiting[0].serial <= serial {
		took = time.Duration(now - s.waiting[0].at)
		s.waiting = s.waiting[:copy(s.waiting, s.waiting[1:])]
	}
	open := s.unacked[:0]
	for _, l := range s.unacked {
		if l.removed {
			continue
		}
		a := l.allotment
		a.catchUp(now)
		l.ack(now, serial)
		a.settle(l)
		if l.waits() {
			open = append(open, l)
		} else if l.forced || l.hungry && a.roomy {
			a.refill(now, l)
		}
	}
	s.unacked = open
	s.abandoned(now, serial)
	if stalled && !s.stalled(now) {
		for _, l := range s.lines {
			l.allotment.refill(now, l)
		}
	}
	return took
}

// giveBack adds hits that are returned to the work of the next Tick.
func (b *Ledger) giveBack(h WindowHits) {
	if h.Hits > 0 {
		b.stats.Returned += h.Hits
		b.returns = append(b.returns, h)
		b.nextAt = math.MinInt64
	}
}

// wanted returns how many hits to ask for, to cover a need.
func (b *Ledger) wanted(need float64) float64 {
	if b.shared {
		return need
	}
	return 2 * need
}

// ask adds a request to the work of the next Tick.
func (b *Ledger) ask(h WindowHits) {
	b.asks = append(b.asks, h)
	b.nextAt = math.MinInt64
}
