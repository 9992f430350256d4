package peer

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	silentChecks = 3  // checks without a sign of life after which a member is silent: 1.5 s by default
	idleChecks   = 10 // checks after which a stream with nothing but heartbeats is pinged: 5 s by default
)

// keepaliveEvery returns the time between two checks: the interval of heartbeats.
func (l *link) keepaliveEvery() time.Duration { return l.detection.Heartbeat() }

// keepalive is the state of the checks of whether a link's member is alive. The member answers the heartbeats that this
// link carries over another stream. While it does, and no request waits for a reply, this link sends no pings: one for
// each link and check would cost as much as everything else that an idle member does. Every idleChecks it sends one
// nevertheless, because heartbeats do not prove that this stream's way back works.
type keepalive struct {
	mu                 sync.Mutex
	cancel             context.CancelCauseFunc // guarded by mu: closes the connection; nil: there is none
	lastRead           int64                   // guarded by mu: link.lastRead at the last check
	lastHeartbeatReply int64                   // guarded by mu: link.lastHeartbeatReply at the last check
	missed             int                     // guarded by mu: checks without a sign of life
	idle               int                     // guarded by mu: checks since bytes last arrived over this stream
	unanswered         int                     // guarded by mu: pings since bytes last arrived over this stream
}

// begin starts the checks of a connection.
func (u *keepalive) begin(lastRead int64, cancel context.CancelCauseFunc) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cancel, u.lastRead = cancel, lastRead
	u.missed, u.idle, u.unanswered = -1, -1, 0 // the first check may come at once
}

// end stops the checks.
func (u *keepalive) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cancel = nil
}

// checkKeepalive is called once in keepaliveEvery. It pings the member or closes the connection if necessary. It counts
// checks and does not measure time: after a pause of this process, replies may be there that nothing has read.
func (l *link) checkKeepalive() {
	u := &l.keepalive
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.cancel == nil {
		return
	}
	read, confirmed := l.lastRead.Load(), l.lastHeartbeatReply.Load()
	u.missed, u.idle = u.missed+1, u.idle+1
	if read != u.lastRead {
		u.missed, u.idle, u.unanswered = 0, 0, 0
	}
	if confirmed != u.lastHeartbeatReply {
		u.missed = 0
	}
	u.lastRead, u.lastHeartbeatReply = read, confirmed
	switch {
	case u.missed >= silentChecks || u.unanswered >= silentChecks:
		silence := time.Duration(l.clock.mono() - max(read, confirmed))
		u.cancel(fmt.Errorf("%w for %v", errSilent, silence.Round(l.keepaliveEvery()/10)))
	case u.missed > 0 || confirmed == 0 || l.timeouts.Load() > 0 || u.idle >= idleChecks:
		u.unanswered++
		l.ping()
	}
}

// handleHeartbeatReply records that the member answered at now a heartbeat that this link carried at sent. Both times
// are of this member's clock. A reply that took long is no sign of life.
func (l *link) handleHeartbeatReply(sent, now int64) {
	l.mu.Lock()
	l.acked.confirm(sent)
	l.mu.Unlock()
	if now-sent < int64(l.keepaliveEvery()) {
		l.lastHeartbeatReply.Store(l.clock.mono())
	}
}

// checkKeepalives checks all links.
func (p *Peer) checkKeepalives() {
	for _, l := range *p.links.Load() {
		l.checkKeepalive()
	}
}
