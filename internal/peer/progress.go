package peer

import (
	"fmt"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/membership"
)

// progress follows one ring change after the other.
type progress struct {
	last      membership.Progress
	ring      uint64
	adoptedAt int64 // by the monotonic clock
	revoked   bool  // tokens of ring were here and are not any more
	first     bool
}

// progressLoop tells the log and OnProgress what has changed. It has a goroutine of its own, so that OnProgress may call back.
func (p *Peer) progressLoop() {
	g := progress{first: true}
	for {
		select {
		case <-p.progressChanged:
		case <-p.ctx.Done():
			return
		}
		h := p.o.Node.Progress()
		p.handoffDone.Store(h.Complete && h.Unconfirmed == 0)
		p.reportProgress(&g, h, p.clock.mono())
	}
}

// checkProgress has a change that is under way looked at.
func (p *Peer) checkProgress() {
	if !p.handoffDone.Load() {
		wake(p.progressChanged)
	}
}

func (p *Peer) reportProgress(g *progress, h handoff.RingProgress, mono int64) {
	if h.RingVersion != g.ring {
		g.ring, g.adoptedAt, g.revoked = h.RingVersion, mono, false
	}
	next := membership.Progress{CompleteRing: g.last.CompleteRing, Prefetched: h.Prefetched, HandedOff: h.HandedOff, Unconfirmed: h.Unconfirmed}
	switch {
	case h.Complete && next.CompleteRing != h.RingVersion:
		next.CompleteRing = h.RingVersion
		what := "ring complete"
		if g.revoked {
			what = "tokens regained"
		}
		g.revoked = false
		p.log.Info(what, "ring", fingerprint(h.RingVersion), "seconds", time.Duration(mono-g.adoptedAt).Seconds())
	case !h.Complete && next.CompleteRing == h.RingVersion && h.RingVersion != 0:
		next.CompleteRing, g.revoked, g.adoptedAt = 0, true, mono
		p.log.Warn("tokens void: others may have taken over", "ring", fingerprint(h.RingVersion), "missing", h.MissingAcks)
	}
	changed := g.first || next != g.last
	g.last, g.first = next, false
	if changed && p.o.OnProgress != nil {
		p.o.OnProgress(next)
	}
}

// fingerprint is how a ring's fingerprint stands in logs.
func fingerprint(f uint64) string { return fmt.Sprintf("%016x", f) }
