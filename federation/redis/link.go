package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	redigo "github.com/gomodule/redigo/redis"
)

// command is a command of Redis.
type command struct {
	name string
	args []any // strings, integers
}

// link is a connection to a server. Calls share it: each sends its commands at once, and replies arrive in that order.
// A goroutine always reads, so that link ends as soon as the server closes the connection, also between calls.
type link struct {
	conn  net.Conn
	redis redigo.Conn
	turn  chan struct{} // holds a value while commands are written

	mu    sync.Mutex
	calls []*pipeline // that lack replies, in their order; guarded by mu
	err   error       // why the connection has ended; guarded by mu
}

// pipeline is the commands of one call.
type pipeline struct {
	replies []any // as redigo returns them, with errors of the server as redigo.Error
	missing int
	err     error         // if the connection has ended
	done    chan struct{} // closed when all replies have arrived, or err is set
}

// withoutReadDeadline ignores the deadlines that redigo sets before it reads each reply: link waits between calls, too.
type withoutReadDeadline struct{ net.Conn }

func (withoutReadDeadline) SetReadDeadline(time.Time) error { return nil }

// dial connects to a server within dialTimeout, and has it accept the user and the database within callTimeout. The
// connection ends with ctx.
func (s *server) dial(ctx context.Context, address string) (*link, error) {
	conn, err := s.connect(ctx, address)
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn, redis: redigo.NewConn(withoutReadDeadline{conn}, 0, 0), turn: make(chan struct{}, 1)}
	stop := context.AfterFunc(ctx, func() { l.end(errors.New("client closed")) })
	go func() {
		defer stop()
		l.read()
	}()
	within, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	setup := s.setup()
	replies, err := l.do(within, setup)
	for i := 0; i < len(replies) && err == nil; i++ {
		if e, failed := replies[i].(redigo.Error); failed && setup[i].name != "CLIENT" { // the name is only for display
			err = e
		}
	}
	if err != nil {
		l.end(err)
		return nil, err
	}
	return l, nil
}

func (s *server) connect(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	dialer := &net.Dialer{KeepAlive: callTimeout}
	if s.tls == nil {
		return dialer.DialContext(ctx, "tcp", address)
	}
	return (&tls.Dialer{NetDialer: dialer, Config: s.tls}).DialContext(ctx, "tcp", address)
}

// setup returns the first commands of a connection.
func (s *server) setup() (commands []command) {
	switch {
	case s.username != "":
		commands = append(commands, command{"AUTH", []any{s.username, s.password}})
	case s.password != "":
		commands = append(commands, command{"AUTH", []any{s.password}})
	}
	if s.database != 0 {
		commands = append(commands, command{"SELECT", []any{s.database}})
	}
	return append(commands, command{"CLIENT", []any{"SETNAME", "keyward"}})
}

// do sends commands in one write and returns their replies. An error means that the connection has ended, or ctx.
func (l *link) do(ctx context.Context, commands []command) ([]any, error) {
	p := &pipeline{replies: make([]any, 0, len(commands)), missing: len(commands), done: make(chan struct{})}
	if err := l.send(ctx, p, commands); err != nil {
		return nil, err
	}
	select {
	case <-p.done:
		return p.replies, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *link) send(ctx context.Context, p *pipeline, commands []command) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := l.expect(p); err != nil {
		return err
	}
	deadline := time.Now().Add(callTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	err := l.conn.SetWriteDeadline(deadline)
	for i := 0; i < len(commands) && err == nil; i++ {
		err = l.redis.Send(commands[i].name, commands[i].args...)
	}
	if err == nil {
		err = l.redis.Flush()
	}
	if err != nil {
		l.end(err) // a part of the commands may have been sent
	}
	return err
}

// expect adds a call that is about to be sent.
func (l *link) expect(p *pipeline) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.calls = append(l.calls, p)
	if len(l.calls) == 1 {
		return l.conn.SetReadDeadline(time.Now().Add(callTimeout))
	}
	return nil
}

func (l *link) read() {
	for {
		reply, err := l.redis.Receive()
		if e, ok := errors.AsType[redigo.Error](err); ok {
			reply, err = e, nil
		}
		if err == nil {
			err = l.deliver(reply)
		}
		if err != nil {
			l.end(fmt.Errorf("connection lost: %w", err))
			return
		}
	}
}

// deliver adds a reply to the oldest call. If that is its last one, the next call has callTimeout for its own.
func (l *link) deliver(reply any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.calls) == 0 {
		return fmt.Errorf("unexpected reply %v", reply)
	}
	p := l.calls[0]
	p.replies = append(p.replies, reply)
	if p.missing--; p.missing > 0 {
		return nil
	}
	close(p.done)
	l.calls[0], l.calls = nil, l.calls[1:]
	if len(l.calls) == 0 {
		return l.conn.SetReadDeadline(time.Time{})
	}
	return l.conn.SetReadDeadline(time.Now().Add(callTimeout))
}

// end closes the connection. All calls return err.
func (l *link) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	l.conn.Close()
	for _, p := range l.calls {
		p.err = err
		close(p.done)
	}
	l.calls = nil
}

func (l *link) usable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err == nil
}
