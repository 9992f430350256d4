package quota

import (
	"cmp"
	"slices"
	"time"
)

// KeyView describes one key at a time.
type KeyView struct {
	Key     Key
	Quota   KeyQuota
	Window  int64  // index
	Ends    int64  // end of the window, Unix nanoseconds
	Held    uint64 // hits of the window that the holder has charged for this sidecar
	Next    uint64 // hits of the next window
	Charged uint64 // hits of the window that Envoys may have spent or may yet spend
	Calls   uint64 // demand of calls in a window
	Lines   int    // Envoys that have the key
}

// LineView describes what one Envoy has of a key.
type LineView struct {
	Stream     Stream
	Name       string   // of the Envoy
	Kind       PushKind // newest push; 0: none
	Rate       float64  // estimate of its hits per second, admitted and refused
	Lease      uint64   // hits of the newest lease
	Proven     uint64   // of them, what reports prove spent
	Charge     uint64   // what it is charged in the current window
	Reported   int64    // time of its newest report
	Ends       int64    // when the lease ends by its TTL
	Acked      int64    // when the Envoy has acknowledged the lease; 0: it has not
	Stalled    bool     // it does not acknowledge responses, so it gets no leases
	LastReport uint64   // hits in its newest report
}

// Streams returns the number of open streams.
func (b *Ledger) Streams() int { return len(b.streams) }

// IDs returns the number of keys of all open streams together.
func (b *Ledger) IDs() (n int) {
	for _, s := range b.streams {
		n += len(s.lines)
	}
	return n
}

// Waits returns the age of the oldest of the newest reports of all open streams, and of the oldest response that an Envoy
// has not acknowledged. Either is 0 if there is none.
func (b *Ledger) Waits(now int64) (report, ack time.Duration) {
	for _, s := range b.streams {
		if s.reportedAt != 0 && len(s.lines) > 0 {
			report = max(report, time.Duration(now-s.reportedAt))
		}
		if len(s.waiting) > 0 {
			ack = max(ack, time.Duration(now-s.waiting[0].at))
		}
	}
	return report, ack
}

// Keys returns a view of each key, ordered by key.
func (b *Ledger) Keys() []KeyView {
	views := make([]KeyView, 0, len(b.list))
	for _, a := range b.list {
		views = append(views, KeyView{
			Key: a.key, Quota: a.quota, Window: a.window, Ends: a.end, Held: a.held, Next: a.next, Charged: a.charged,
			Calls: uint64(a.share.calls), Lines: len(a.lines),
		})
	}
	slices.SortFunc(views, func(x, y KeyView) int { return cmp.Compare(x.Key, y.Key) })
	return views
}

// Lines returns a view of each Envoy that has the key, the one with the highest rate first.
func (b *Ledger) Lines(now int64, key Key) []LineView {
	a := b.allotments[key]
	if a == nil {
		return nil
	}
	views := make([]LineView, 0, len(a.lines))
	for _, l := range a.lines {
		v := LineView{
			Stream: l.stream.id, Name: l.stream.name, Kind: l.kind, Rate: l.rate.perSecond, Lease: l.live, Proven: l.known,
			Charge: l.charge(), Reported: l.reportedAt, Ends: l.endsAt, Stalled: l.stream.stalled(now), LastReport: l.lastHits,
		}
		if l.acked {
			v.Acked = l.ackedAt
		}
		views = append(views, v)
	}
	slices.SortFunc(views, func(x, y LineView) int {
		return cmp.Or(cmp.Compare(y.Rate, x.Rate), cmp.Compare(x.Stream, y.Stream))
	})
	return views
}
