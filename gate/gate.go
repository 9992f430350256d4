// Package gate bounds and counts the connections of a port that others can reach.
//
// [New] makes the metrics -> a [Surface] is one kind of port -> [Surface.Listen] bounds its connections, and either
// [Surface.Credentials] watches those of a gRPC server or [Surface.Watch] those of an HTTP server. Whatever is refused
// below the level of a question is counted in keyward_refused_total, by surface and reason.
package gate

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Reasons of keyward_refused_total, beside those of certs.Reason and the names of HTTP/2's error codes.
const (
	Crowded    = "crowded_out" // at the bound of connections, the one that was silent longest
	NotHTTP2   = "preface"     // did not begin as HTTP/2 does, or not in time
	Cut        = "cut"         // broke the rules of HTTP/2, or fell silent in its handshake
	Unfinished = "unfinished"  // held too much of calls that are not whole
	Incomplete = "incomplete"  // an HTTP request that was too slow, too large or malformed
)

// Gates are the surfaces of one process.
type Gates struct {
	refused *prometheus.CounterVec
	open    *prometheus.GaugeVec

	unfinished atomic.Int64 // bytes of calls that are not whole, of all connections
}

// New registers the metrics; nil registers nothing.
func New(reg prometheus.Registerer) *Gates {
	f := promauto.With(reg)
	return &Gates{
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "keyward_refused_total", Help: "Connections, calls and packets refused before a question was read from them, by surface and reason.",
		}, []string{"surface", "reason"}),
		open: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_connections", Help: "Open connections, by surface.",
		}, []string{"surface"}),
	}
}

// Surface is one kind of port, such as "rls" or "metrics". A nil Surface bounds and counts nothing.
type Surface struct {
	name  string
	gates *Gates
}

// Surface is the surface of that name.
func (g *Gates) Surface(name string) *Surface { return &Surface{name, g} }

// Refuse counts one refusal.
func (s *Surface) Refuse(reason string) {
	if s != nil {
		s.gates.refused.WithLabelValues(s.name, reason).Inc()
	}
}
