// Package connguard bounds and counts the connections of a port that others can reach.
//
// [New] makes the metrics -> a [Surface] is one kind of port -> [Surface.Listen] bounds its connections, and either
// [Surface.Credentials] watches those of a gRPC server or [Surface.Watch] those of an HTTP server. Whatever is refused
// below the level of a question is counted in keyward_refused_total, by surface and reason.
package connguard

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/internal/budget"
)

// Reasons of keyward_refused_total, beside those of certs.Reason and the names of HTTP/2's error codes.
const (
	CrowdedOut = "crowded_out" // at the bound of connections, the one that was silent longest
	NotHTTP2   = "preface"     // did not begin as HTTP/2 does, or not in time
	Cut        = "cut"         // broke the rules of HTTP/2, or fell silent in its handshake
	Unfinished = "unfinished"  // made the process keep too much: calls or requests that are not whole, open streams
	Stalled    = "stalled"     // sent part of a frame or of a header block, and not the rest in time
	Busy       = "busy"        // asked for a page when too many were asked for
	Incomplete = "incomplete"  // an HTTP request that was too slow, too large or malformed
)

const (
	// maxKept is how much the clients of all ports may make a process keep, in bytes.
	maxKept = 64 << 20
	// fairShare is what a connection may make it keep whatever the others do, unless its part of maxKept is less.
	fairShare = 128 << 10
	// StallTime is how long a frame, or a header block, may take to come whole once it has begun.
	StallTime = 5 * time.Second
)

// Guards are the surfaces of one process.
type Guards struct {
	refused *prometheus.CounterVec
	open    *prometheus.GaugeVec
	waited  *prometheus.CounterVec
	turns   *turnQueue      // of connections that cost more than they bring
	starts  *turnQueue      // of new ones
	account *budget.Account // of all surfaces
	stall   time.Duration   // StallTime
}

// New registers the metrics; nil registers nothing.
func New(reg prometheus.Registerer) *Guards {
	f := promauto.With(reg)
	return &Guards{
		account: budget.New(maxKept, fairShare), stall: StallTime, turns: newTurnQueue(true), starts: newTurnQueue(false),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_refused_total", Help: "Connections, calls and packets refused before a question was read from them, by surface and reason.",
		}, []string{"surface", "reason"}),
		open: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_connections", Help: "Open connections, by surface.",
		}, []string{"surface"}),
		waited: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_connection_wait_seconds_total", Help: "Time that connections which bring few calls have waited to be read, by surface.",
		}, []string{"surface"}),
	}
}

// Guard is one kind of port, such as "rls" or "metrics". A nil Surface bounds and counts nothing.
type Guard struct {
	name   string
	guards *Guards
}

// Guard is the surface of that name.
func (g *Guards) Guard(name string) *Guard { return &Guard{name, g} }

// Account is charged with what the clients of all surfaces make the process keep; nil for a nil Surface.
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
