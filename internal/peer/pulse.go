package peer

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	beat        = 500 * time.Millisecond // between two looks at whether a member is alive
	silentBeats = 3                      // beats without a sign of life after which it counts as silent: 1.5 s
	proveBeats  = 10                     // beats after which a stream is pinged that only heartbeats speak for: 5 s
)

// pulse is what is known of whether the member at the other end of a link is alive. Its heartbeats come over a stream of its
// own and answer those that went over this one, so while they come, and no question is left without an answer, nothing more is
// asked here: a ping a link and beat would cost as much as all else that an idle member does. Every proveBeats one is sent
// anyway, for of this stream's way back heartbeats say nothing.
type pulse struct {
	mu       sync.Mutex
	cut      context.CancelCauseFunc // guarded by mu: ends the connection; nil: there is none
	heard    int64                   // guarded by mu: link.heard at the last beat
	proved   int64                   // guarded by mu: link.proved at the last beat
	missed   int                     // guarded by mu: beats without a sign of life
	unheard  int                     // guarded by mu: beats since bytes last came over this stream
	unponged int                     // guarded by mu: pings since
}

// begin has beats watch over a connection.
func (u *pulse) begin(heard int64, cut context.CancelCauseFunc) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cut, u.heard, u.missed, u.unheard, u.unponged = cut, heard, -1, -1, 0 // the first beat may come at once
}

func (u *pulse) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cut = nil
}

// beat is called once in every beat, and pings or gives up the connection where that is due. It counts beats and not time,
// because after a pause of this very process the answers may be there, unread.
func (l *link) beat() {
	u := &l.pulse
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.cut == nil {
		return
	}
	heard, proved := l.heard.Load(), l.proved.Load()
	u.missed, u.unheard = u.missed+1, u.unheard+1
	if heard != u.heard {
		u.missed, u.unheard, u.unponged = 0, 0, 0
	}
	if proved != u.proved {
		u.missed = 0
	}
	u.heard, u.proved = heard, proved
	switch {
	case u.missed >= silentBeats || u.unponged >= silentBeats:
		u.cut(fmt.Errorf("%w for %v", errSilent, time.Duration(l.clock.mono()-max(heard, proved)).Round(beat/10)))
	case u.missed > 0 || proved == 0 || l.timeouts.Load() > 0 || u.unheard >= proveBeats:
		u.unponged++
		l.ping()
	}
}

// alive notes that the member answered a heartbeat that went over this link at sent; now is by the same clock. An answer that
// took long proves nothing.
func (l *link) alive(sent, now int64) {
	l.mu.Lock()
	l.flow.answered(sent)
	l.mu.Unlock()
	if now-sent < int64(beat) {
		l.proved.Store(l.clock.mono())
	}
}

// beats has every link look whether its member is alive.
func (p *Peer) beats() {
	for _, l := range *p.links.Load() {
		l.beat()
	}
}
