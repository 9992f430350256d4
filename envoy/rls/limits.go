package rls

import (
	"crypto/tls"
	"strconv"
	"time"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/internal/connguard"
)

// method is the full name of the only RPC.
const method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// attemptTimeoutHeader is how long Envoy waits for this attempt, in milliseconds. Its grpc-timeout covers all
// attempts together, even on the second one. If only grpc-timeout were used, the degraded policy would decide after
// Envoy has given up.
const attemptTimeoutHeader = "x-envoy-expected-rq-timeout-ms"

// maxMessage is the size in bytes of the largest message that gRPC accepts. Up to this size, a message beyond the
// RequestLimits is answered OVER_LIMIT. Beyond it, the call fails with RESOURCE_EXHAUSTED before it is decoded. Envoy
// accepts at most 8 MiB of headers (60 KiB by default), so only a route that repeats such headers in many descriptors
// reaches this size.
const maxMessage = 16 << 20

// maxStreams is the number of open calls per connection. Envoy queues further calls, and its circuit breakers admit
// 1024 by default.
const maxStreams = 1 << 12

// maxHeaders is the size of a call's headers in bytes: decoded, plus 32 for each. Envoy accepts 60 KiB of headers
// from a client by default, and one of them may be the key.
const maxHeaders = 128 << 10

const (
	handshakeTime  = 5 * time.Second  // for TLS and HTTP/2's preface and settings
	messageTimeout = 30 * time.Second // for a call's message to arrive
)

// grpcOptions configure a gRPC server of the service.
type grpcOptions struct {
	TLS                *tls.Config           // nil: plaintext
	Methods            map[string]h2.Handler // in addition to ShouldRateLimit and health
	Guard              *connguard.Guard      // counts what is refused before it is a request; nil: none
	ConnectionAge      time.Duration         // GRPC_MAX_CONNECTION_AGE; 0: unlimited
	ConnectionAgeGrace time.Duration         // GRPC_MAX_CONNECTION_AGE_GRACE; 0: unlimited
	Refunds            bool                  // all callers may refund hits
	LocalRefunds       bool                  // callers on a loopback address may
}

// minTimeout returns the lesser of timeout, where 0 is none, and a number of milliseconds in text.
func minTimeout(timeout time.Duration, millis string) time.Duration {
	n, err := strconv.ParseInt(millis, 10, 32)
	if err != nil || n <= 0 {
		return timeout
	}
	if d := time.Duration(n) * time.Millisecond; timeout <= 0 || d < timeout {
		return d
	}
	return timeout
}
