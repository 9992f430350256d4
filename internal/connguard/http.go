package connguard

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/keyward/keyward/internal/budget"
)

const (
	// maxHTTPKept is the number of bytes that the clients of one HTTP listener may make the process keep.
	maxHTTPKept = 16 << 20
	// maxRequestKept is the number of bytes of one request that are kept: headers of 64 KiB and a body.
	maxRequestKept = 64<<10 + MaxBody
	// MaxBody is the number of bytes of a request's body that a handler may keep.
	MaxBody = 4 << 20
)

// Watch counts requests to srv that never reach the handler because they are too slow, too large or malformed. What
// is read of a request is charged until it is answered. Watch wraps srv.Handler and sets srv.ConnState and
// srv.ConnContext.
func (s *Guard) Watch(srv *http.Server) {
	if s == nil {
		return
	}
	var conns sync.Map // net.Conn to *pending
	account := s.Account().Child(maxHTTPKept, fairShare)
	next := srv.Handler
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p, ok := r.Context().Value(pendingKey{}).(*pending); ok {
			p.begun.Store(false)
			w = &answerWriter{ResponseWriter: w, conn: p.conn}
		}
		next.ServeHTTP(w, r)
	})
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		p := s.pending(c, account)
		conns.Store(c, p)
		return context.WithValue(ctx, pendingKey{}, p)
	}
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		p, ok := conns.Load(c)
		if !ok {
			return
		}
		switch state {
		case http.StateActive:
			p.(*pending).begun.Store(true)
			p.(*pending).meter.Start()
		case http.StateIdle:
			p.(*pending).meter.Stop()
		case http.StateClosed:
			if p.(*pending).begun.Load() && !p.(*pending).over.Load() {
				s.Refuse(Incomplete)
			}
			fallthrough
		case http.StateHijacked:
			p.(*pending).account.Close()
			conns.Delete(c)
		}
	}
}

type pendingKey struct{}

// pending tracks whether a connection has begun a request that has not reached the handler.
type pending struct {
	conn    net.Conn
	begun   atomic.Bool
	over    atomic.Bool // too much was kept of it
	account *budget.Account
	meter   *budget.Meter
}

func (s *Guard) pending(c net.Conn, of *budget.Account) *pending {
	p := &pending{conn: c, account: of.Open()}
	p.meter = budget.NewMeter(p.account, maxRequestKept, func() {
		p.over.Store(true)
		s.Refuse(Unfinished)
	})
	if c, ok := c.(*conn); ok {
		c.meter = p.meter
	}
	return p
}

// answerWriter records successful responses. /json answers 429 if a request is over its limit, which is a success,
// too.
type answerWriter struct {
	http.ResponseWriter
	conn        net.Conn
	wroteHeader bool
}

// WriteHeader begins the response.
func (a *answerWriter) WriteHeader(status int) {
	if !a.wroteHeader && status >= 200 {
		if a.wroteHeader = true; status < 400 || status == http.StatusTooManyRequests {
			MarkAnswered(a.conn)
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write writes part of the response.
func (a *answerWriter) Write(b []byte) (int, error) {
	if !a.wroteHeader {
		a.wroteHeader = true
		MarkAnswered(a.conn)
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap is used by http.ResponseController.
func (a *answerWriter) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Flush implements http.Flusher.
func (a *answerWriter) Flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }
