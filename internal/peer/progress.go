package peer

import (
	"fmt"
	"time"

	"github.com/keyward/keyward/handoff"
)

// Progress is how far the last change of the ring has come at this member.
type Progress struct {
	Complete   uint64 // fingerprint of the last ring of which this member holds all of its keys and no other; 0: none, or not any more
	Warm       bool   // a joiner has the copies of all active members
	HandedOver bool   // a leaver holds nothing any more
	Incomplete int    // members that have not confirmed what was sent to them
}

// progress follows one ring change after the other.
type progress struct {
	last      Progress
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
	next := Progress{Complete: g.last.Complete, Warm: h.Prefetched, HandedOver: h.HandedOff, Incomplete: h.Unconfirmed}
	switch {
	case h.Complete && next.Complete != h.RingVersion:
		next.Complete = h.RingVersion
		what := "ring complete"
		if g.revoked {
			what = "tokens regained"
		}
		g.revoked = false
		p.log.Info(what, "ring", fingerprint(h.RingVersion), "seconds", time.Duration(mono-g.adoptedAt).Seconds())
	case !h.Complete && next.Complete == h.RingVersion && h.RingVersion != 0:
		next.Complete, g.revoked, g.adoptedAt = 0, true, mono
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
