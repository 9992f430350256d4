package gate

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// Watch counts the requests of srv that never came to be: too slow, too large or malformed. It wraps srv's Handler, and
// takes its ConnState and ConnContext.
func (s *Surface) Watch(srv *http.Server) {
	if s == nil {
		return
	}
	var conns sync.Map // of net.Conn: *pending
	next := srv.Handler
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p, ok := r.Context().Value(pendingKey{}).(*pending); ok {
			p.begun.Store(false)
			Answered(p.conn)
		}
		next.ServeHTTP(w, r)
	})
	srv.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		p := &pending{conn: c}
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
		case http.StateClosed:
			if p.(*pending).begun.Load() {
				s.Refuse(Incomplete)
			}
			conns.Delete(c)
		case http.StateHijacked:
			conns.Delete(c)
		}
	}
}

type pendingKey struct{}

// pending says of a connection whether a request has begun that no handler has seen.
type pending struct {
	conn  net.Conn
	begun atomic.Bool
}
