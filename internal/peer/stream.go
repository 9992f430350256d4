package peer

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// renewLinger is how long replies may still arrive over a connection that has been replaced.
const renewLinger = 5 * time.Second

var errRenewed = errors.New("replaced by a new connection")

// runStreams carries requests over conn, and over the connections that replace it before they become too old, until one
// breaks, the member is silent or ctx ends. It waits for all its goroutines.
func (l *link) runStreams(ctx context.Context, conn net.Conn, version uint16) error {
	l.lastRead.Store(l.clock.mono())
	l.timeouts.Store(0)
	l.established(version)
	l.log.Info("connected to peer", "peer", l.to, "address", l.address, "version", version)

	ctx, end := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer func() {
		end() // closes every connection
		l.disconnected()
		readers.Wait()
	}()
	for {
		next, version, err := l.runStream(ctx, conn, &readers)
		if next == nil {
			return err
		}
		conn = next
		l.mu.Lock()
		l.version = version
		l.mu.Unlock()
		l.lastVersion.Store(uint32(version))
	}
}

// runStream writes to conn until it breaks, and next is nil, or until next is there to replace it. Replies to the
// groups that were sent over conn arrive over conn, so its reader goes on for renewLinger.
func (l *link) runStream(ctx context.Context, conn net.Conn, readers *sync.WaitGroup,
) (next net.Conn, version uint16, err error) {
	forget := context.AfterFunc(ctx, func() { conn.Close() })
	ctx, cancel := context.WithCancelCause(ctx)
	readers.Go(func() { cancel(l.readReplies(conn)) })
	var wg sync.WaitGroup
	wg.Add(1)
	renewal := time.AfterFunc(l.maxAge/2+rand.N(l.maxAge/4), func() {
		defer wg.Done()
		if next, version = l.renew(ctx); next != nil {
			conn.SetWriteDeadline(time.Now().Add(renewLinger))
			cancel(errRenewed)
		}
	})
	l.writeUntil(ctx, &outbound{conn, cancel})
	if renewal.Stop() {
		wg.Done()
	}
	err = context.Cause(ctx)
	renewed := errors.Is(err, errRenewed)
	if !renewed {
		conn.Close()
	}
	wg.Wait()
	if renewed {
		time.AfterFunc(renewLinger, func() {
			forget()
			conn.Close()
		})
		return next, version, nil
	}
	forget()
	if next != nil {
		next.Close()
	}
	return nil, 0, err
}

// writeUntil writes to a connection, and checks that it is alive, until ctx ends or the connection breaks.
func (l *link) writeUntil(ctx context.Context, to *outbound) {
	defer context.AfterFunc(ctx, func() {
		if !errors.Is(context.Cause(ctx), errRenewed) {
			to.conn.Close() // ends a write
		}
	})()
	l.keepalive.begin(l.lastRead.Load(), to.cancel)
	l.attach(to)
	to.cancel(l.writeBatches(ctx, to.conn))
	l.attach(nil)
	l.keepalive.end()
}

// renew dials a new connection. It is called at half to three quarters of the age at which the owner closes the old
// one. It returns nil if ctx ends before. If the owner refuses new connections, the old one is used until it is closed.
func (l *link) renew(ctx context.Context) (net.Conn, uint16) {
	for ctx.Err() == nil {
		conn, version, err := l.dial(ctx, l, forRequests)
		if err == nil {
			return conn, version
		}
		if ctx.Err() == nil {
			l.log.Warn("peer connection not renewed; retrying", "peer", l.to, "error", err)
		}
		pause(ctx, l.maxAge/16)
	}
	return nil, 0
}
