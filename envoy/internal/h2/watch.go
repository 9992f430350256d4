package h2

import (
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
)

// Watcher hears of the end of a connection.
type Watcher interface {
	// Ended is called once, when the connection has ended. byClient reports whether the client ended it, or answers no
	// pings any more, while this side had not announced that it would close it. The client lived at last. Ended must not
	// block.
	Ended(last time.Time, byClient bool)
}

// Pinger makes a connection ping its client, so that its end is noticed if it dies silently.
type Pinger interface {
	// Ping starts the pings. Further calls have no effect. Any goroutine may call it, also after the end.
	Ping()
}

const (
	maxWatchers  = 64 // of a connection: a proxy may share one between several clients
	missedPings  = 2  // so many unanswered pings end a connection
	pingInterval = 3 * time.Second
)

// watch holds the watchers of a connection, and the state of its pings. The loop uses it; conn.mu guards pings.
type watch struct {
	opened   time.Time
	watchers map[uint64]Watcher
	pings    bool
	missed   int // pings since the client has sent anything
}

// errSilent ends a connection whose client does not answer pings.
var errSilent = errors.New("the client answers no pings")

// watchPing is the content of pings.
var watchPing = [8]byte{'a', 'l', 'i', 'v', 'e', '?'}

// Watch returns the connection's watcher with this id. The first call with an id makes it with begin, which gets the
// time at which the connection was opened. It returns nil if the connection has too many. Only Serve may call it.
func (k *Stream) Watch(id uint64, begin func(opened time.Time, p Pinger) Watcher) Watcher {
	c := k.conn
	w := c.watch.watchers[id]
	if w != nil || len(c.watch.watchers) >= maxWatchers {
		return w
	}
	if c.watch.watchers == nil {
		c.watch.watchers = map[uint64]Watcher{}
	}
	w = begin(c.watch.opened, c)
	c.watch.watchers[id] = w
	return w
}

// Ping implements Pinger. Called without mu.
func (c *conn) Ping() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.watch.pings && c.broken == nil {
		c.startPings(time.Now())
		c.wakeLoop()
	}
}

// startPings makes the connection ping its client.
func (c *conn) startPings(now time.Time) {
	if !c.watch.pings {
		c.watch.pings = true
		c.timers.due[timerPing] = now.Add(c.server.o.PingInterval)
	}
}

// sendPing sends the next ping, or ends a connection that has not answered the last ones.
func (c *conn) sendPing() error {
	if c.watch.missed >= missedPings {
		return errSilent
	}
	c.watch.missed++
	c.out = appendHead(c.out, len(watchPing), frameKind{http2.FramePing, 0}, 0)
	c.out = append(c.out, watchPing[:]...)
	c.timers.due[timerPing] = c.now.Add(c.server.o.PingInterval)
	return nil
}

// notifyWatchers notifies the watchers that the connection has ended with err. Called without mu.
func (c *conn) notifyWatchers(err error) {
	if len(c.watch.watchers) == 0 {
		return
	}
	c.mu.Lock()
	announced, last := c.drain.requested || c.drain.stage != notDraining, c.lastRead
	c.mu.Unlock()
	silent := errors.Is(err, errSilent)
	if !silent {
		last = time.Now()
	}
	byClient := !announced && (silent || isClientsEnd(err))
	for _, w := range c.watch.watchers {
		w.Ended(last, byClient)
	}
}

// isClientsEnd reports whether err shows that the client has closed or reset the connection.
func isClientsEnd(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &op) && !op.Timeout() && !errors.Is(err, net.ErrClosed)
}
