package peer

import (
	"fmt"
	"time"

	"github.com/keyward/keyward/internal/membership"
)

// progress is the state of progressLoop.
type progress struct {
	last    membership.Progress
	since   int64 // when the ring was adopted, or its ownership revoked, by the monotonic clock
	revoked bool  // the ring was complete, and then ownership was revoked
	first   bool  // nothing has been reported yet
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

// reportProgress logs the differences between next and the last progress, and calls OnProgress.
func (p *Peer) reportProgress(g *progress, next membership.Progress, mono int64) {
	last := g.last
	if next.Ring != last.Ring {
		g.since, g.revoked = mono, false
	}
	switch {
	case next.Complete() && last.CompleteRing != next.Ring:
		what := "ring complete"
		if g.revoked {
			what = "ownership regained"
		}
		g.revoked = false
		p.log.Info(what, "ring", fingerprint(next.Ring), "duration", time.Duration(mono-g.since))
	case next.CompleteRing == 0 && last.CompleteRing != 0:
		g.revoked, g.since = true, mono
		p.log.Warn("ownership revoked; peers may take over", "ring", fingerprint(next.Ring), "missing", next.MissingAcks)
	}
	changed := g.first || next != last
	g.last, g.first = next, false
	if changed && p.o.OnProgress != nil {
		p.o.OnProgress(next)
	}
}

// fingerprint returns the text of a ring version for logs.
func fingerprint(f uint64) string { return fmt.Sprintf("%016x", f) }
