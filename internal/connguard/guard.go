// Package connguard limits and counts the connections of listeners that other hosts can reach.
//
// [New] registers the metrics. A [Guard] protects one kind of listener: [Guard.Listen] limits its connections, and
// [Guard.Credentials] or [Guard.Watch] counts what a gRPC or an HTTP server refuses. Everything that is refused
// before it is a request is counted in keyward_refused_total, by surface (the name of the guard) and reason.
package connguard

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/internal/budget"
)

// Reasons of keyward_refused_total, in addition to those of certs.Reason and the names of HTTP/2 error codes.
const (
	CrowdedOut = "crowded_out" // the connection that had been silent longest made room for a new one
	NotHTTP2   = "preface"     // the connection did not begin with the HTTP/2 preface, or not in time
	Cut        = "cut"         // the client violated HTTP/2, or went silent in its handshake
	Unfinished = "unfinished"  // the client makes the process keep too much: incomplete calls or requests, open streams
	Stalled    = "stalled"     // the client sent part of a frame or header block and not the rest in time
	Busy       = "busy"        // too many pages were requested at the same time
	Incomplete = "incomplete"  // an HTTP request was too slow, too large or malformed
)

const (
	// maxKept is the number of bytes that the clients of all listeners may make the process keep.
	maxKept = 64 << 20
	// fairShare is the number of bytes that one connection may always make it keep, up to its equal part of maxKept.
	fairShare = 128 << 10
	// StallTime is the time for the rest of a frame or header block that has begun.
	StallTime = 5 * time.Second
)

// Guards protect the listeners of one process.
type Guards struct {
	refused *prometheus.CounterVec
	open    *prometheus.GaugeVec
	waited  *prometheus.CounterVec
	turns   *turnQueue      // for connections that cost more than they bring
	starts  *turnQueue      // for new connections
	account *budget.Account // of all listeners
	stall   time.Duration   // StallTime
}

// New registers the metrics with reg, unless reg is nil.
func New(reg prometheus.Registerer) *Guards {
	f := promauto.With(reg)
	return &Guards{
		account: budget.New(maxKept, fairShare), stall: StallTime, turns: newTurnQueue(true),
		starts: newTurnQueue(false),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_refused_total", Help: "Connections, calls and packets refused before a request was read from them, by surface and reason.",
		}, []string{"surface", "reason"}),
		open: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_connections", Help: "Open connections, by surface.",
		}, []string{"surface"}),
		waited: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_connection_wait_seconds_total",
			Help: "Time that connections with few calls have waited to be read, by surface.",
		}, []string{"surface"}),
	}
}

// Guard protects one kind of listener, such as "rls" or "metrics". A nil Guard limits and counts nothing.
type Guard struct {
	name   string
	guards *Guards
}

// Guard returns the guard with the given name.
func (g *Guards) Guard(name string) *Guard { return &Guard{name, g} }

// Account returns the account that is charged with what the clients of all listeners make the process keep. It is nil
// for a nil Guard.
func (s *Guard) Account() *budget.Account {
	if s == nil {
		return nil
	}
	return s.guards.account
}

// Refuse counts one refusal.
func (s *Guard) Refuse(reason string) {
	if s != nil {
		s.guards.refused.WithLabelValues(s.name, reason).Inc()
	}
}
