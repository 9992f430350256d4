package peer

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	keepaliveEvery = 500 * time.Millisecond // between two looks at whether a member is alive
	silentChecks   = 3                      // beats without a sign of life after which it counts as silent: 1.5 s
	idleChecks     = 10                     // beats after which a stream is pinged that only heartbeats speak for: 5 s
)

// keepalive is what is known of whether the member at the other end of a link is alive. Its heartbeats come over a stream of its
// own and answer those that went over this one, so while they come, and no question is left without an answer, nothing more is
// asked here: a ping a link and beat would cost as much as all else that an idle member does. Every idleChecks one is sent
// anyway, for of this stream's way back heartbeats say nothing.
type keepalive struct {
	mu            sync.Mutex
	cancel        context.CancelCauseFunc // guarded by mu: ends the connection; nil: there is none
	lastRead      int64                   // guarded by mu: link.lastRead at the last beat
	lastConfirmed int64                   // guarded by mu: link.lastConfirmed at the last beat
	missed        int                     // guarded by mu: beats without a sign of life
	idle          int                     // guarded by mu: beats since bytes last came over this stream
	unanswered    int                     // guarded by mu: pings since
}

// begin has beats watch over a connection.
func (u *keepalive) begin(heard int64, cut context.CancelCauseFunc) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cancel, u.lastRead, u.missed, u.idle, u.unanswered = cut, heard, -1, -1, 0 // the first beat may come at once
}

func (u *keepalive) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cancel = nil
}

// checkKeepalive is called once in every beat, and pings or gives up the connection where that is due. It counts beats and not time,
// because after a pause of this very process the answers may be there, unread.
func (l *link) checkKeepalive() {
	u := &l.keepalive
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.cancel == nil {
		return
	}
	heard, proved := l.lastRead.Load(), l.lastConfirmed.Load()
	u.missed, u.idle = u.missed+1, u.idle+1
	if heard != u.lastRead {
		u.missed, u.idle, u.unanswered = 0, 0, 0
	}
	if proved != u.lastConfirmed {
		u.missed = 0
	}
	u.lastRead, u.lastConfirmed = heard, proved
	switch {
	case u.missed >= silentChecks || u.unanswered >= silentChecks:
		u.cancel(fmt.Errorf("%w for %v", errSilent, time.Duration(l.clock.mono()-max(heard, proved)).Round(keepaliveEvery/10)))
	case u.missed > 0 || proved == 0 || l.timeouts.Load() > 0 || u.idle >= idleChecks:
		u.unanswered++
		l.ping()
	}
}

// confirm notes that the member answered a heartbeat that went over this link at sent; now is by the same clock. An answer that
// took long proves nothing.
func (l *link) confirm(sent, now int64) {
	l.mu.Lock()
	l.acked.confirm(sent)
	l.mu.Unlock()
	if now-sent < int64(keepaliveEvery) {
		l.lastConfirmed.Store(l.clock.mono())
	}
}

// checkKeepalives has every link look whether its member is alive.
func (p *Peer) checkKeepalives() {
	for _, l := range *p.links.Load() {
		l.checkKeepalive()
	}
}
