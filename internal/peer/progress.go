package peer

import (
	"fmt"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/membership"
)

// progress is the state of progressLoop.
type progress struct {
	last      membership.Progress
	ring      uint64 // version
	adoptedAt int64  // by the monotonic clock
	revoked   bool   // the ring was complete, and then ownership was revoked
	first     bool   // nothing has been reported yet
}

// progressLoop logs changes of the progress and calls OnProgress. It has its own goroutine, so OnProgress may call
// methods of p.
func (p *Peer) progressLoop() {
	g := progress{first: true}
	for {
		select {
		case <-p.progressChanged:
		case <-p.ctx.Done():
			return
		}
		p.reportProgress(&g, p.o.Node.Progress(), p.clock.mono())
	}
}

// reportProgress logs the differences between h and the last progress, and calls OnProgress.
func (p *Peer) reportProgress(g *progress, h handoff.RingProgress, mono int64) {
	if h.RingVersion != g.ring {
		g.ring, g.adoptedAt, g.revoked = h.RingVersion, mono, false
	}
	next := g.last
	next.Prefetched, next.HandedOff, next.Unconfirmed = h.Prefetched, h.HandedOff, h.Unconfirmed
	switch {
	case h.Complete && next.CompleteRing != h.RingVersion:
		next.CompleteRing = h.RingVersion
		what := "ring complete"
		if g.revoked {
			what = "ownership regained"
		}
		g.revoked = false
		p.log.Info(what, "ring", fingerprint(h.RingVersion), "duration", time.Duration(mono-g.adoptedAt))
	case !h.Complete && next.CompleteRing == h.RingVersion && h.RingVersion != 0:
		next.CompleteRing, g.revoked, g.adoptedAt = 0, true, mono
		p.log.Warn("ownership revoked; peers may take over", "ring", fingerprint(h.RingVersion), "missing", h.MissingAcks)
	}
	changed := g.first || next != g.last
	g.last, g.first = next, false
	if changed && p.o.OnProgress != nil {
		p.o.OnProgress(next)
	}
}

// fingerprint returns the text of a ring version for logs.
func fingerprint(f uint64) string { return fmt.Sprintf("%016x", f) }
