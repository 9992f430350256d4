package h2

import (
	"context"
	"net"
)

// Server serves calls.
type Server struct {
	o Options
}

// NewServer makes a server; it does nothing until Serve.
func NewServer(o Options) *Server {
	o.Bounds = o.Bounds.orDefault()
	return &Server{o: o}
}

// Serve serves the connections that l accepts, and closes l. It returns nil after Shutdown, or why l failed. It may be
// called for several listeners.
func (s *Server) Serve(l net.Listener) error { return nil }

// Shutdown asks all clients to go, waits for the calls that are under way until ctx is over, and cuts what is left then.
func (s *Server) Shutdown(ctx context.Context) {}
