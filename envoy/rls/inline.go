package rls

import (
	"maps"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/connguard"
)

// inlineServer serves ShouldRateLimit on the goroutine of the connection. It decodes the request in place and builds
// the response in the connection's output buffer. A call that waits for another member is answered on the goroutine
// that delivers the result.
type inlineServer struct {
	service      *Service
	options      grpcOptions
	guard        *connguard.Guard
	traceHeaders []string // headers that the Tracer reads; they follow callHeaders
}

// callHeaders is the number of headers that each call keeps.
const (
	headerKey = iota
	headerAttemptTimeout
	headerHoldID
	headerCaller
	headerEnvoy
	callHeaders
)

// newInlineServer returns the inline server of s. It serves the health of h unless h is nil.
func (s *Service) newInlineServer(o grpcOptions, h *HealthServer) *h2.InlineServer {
	d := &inlineServer{service: s, options: o, guard: o.Guard}
	if s.tracer != nil {
		d.traceHeaders = s.tracer.Headers()
	}
	methods := map[string]h2.Handler{method: d}
	maps.Copy(methods, o.Methods)
	if h != nil {
		h.addMethods(methods, s.store)
	}
	return h2.NewInlineServer(h2.Options{
		Methods: methods,
		Headers: d.headers(),
		Refuse:  o.Guard.Refuse, Served: connguard.MarkAnswered,
		TLS: o.TLS, TLSReason: certs.Reason,
		MaxAge: o.ConnectionAge, MaxAgeGrace: o.ConnectionAgeGrace,
		Limits: h2.Limits{
			Streams: maxStreams, HeaderList: maxHeaders, Message: maxMessage, KeepMessage: s.limits.Message + 1,
			Unfinished:       maxUnfinished,
			HandshakeTimeout: handshakeTime, StallTimeout: connguard.StallTime, MessageTimeout: messageTimeout,
		},
		Account: o.Guard.Account(),
	})
}

// headers returns the headers to keep, with the size of each. A key's parts may be at most RequestLimits.Value bytes
// long; a longer one is over its limit.
func (d *inlineServer) headers() []h2.KeptHeader {
	hs := []h2.KeptHeader{headerKey: {Name: names.KeyHeader, Max: d.service.limits.Value},
		headerAttemptTimeout: {Name: attemptTimeoutHeader, Max: maxAttemptTimeout},
		headerHoldID:         {Name: HoldIDHeader, Max: maxHoldHeader},
		headerCaller:         {Name: CallerHeader, Max: maxHoldHeader},
		headerEnvoy:          {Name: EnvoyHeader, Max: maxHoldHeader},
	}
	for _, name := range d.traceHeaders {
		hs = append(hs, h2.KeptHeader{Name: name, Max: maxTrace})
	}
	return hs
}

const (
	maxHoldHeader     = 256     // bytes of HoldIDHeader and of CallerHeader; a longer value is ignored
	maxAttemptTimeout = 16      // bytes of attemptTimeoutHeader; a longer value is ignored
	maxTrace          = 8 << 10 // bytes of a header for the Tracer; a longer value is ignored
)

// maxUnfinished is the number of bytes that all clients of a listener may make the inline server keep: incomplete
// calls, buffers, open streams. Only the usable part of a message is kept.
const maxUnfinished = 8 << 20

// Serve implements h2.Handler.
func (d *inlineServer) Serve(k *h2.Stream) {
	s := d.service
	c := s.NewCall()
	if err := c.Request.Decode(k.Message(), s.limits); err != nil {
		s.Release(c)
		d.guard.Refuse("question_internal")
		k.Fail(codes.Internal, "grpc: failed to unmarshal the received message: "+err.Error())
		return
	}
	d.options.dropRefunds(&c.Request, k.RemoteAddr())
	now := k.Now()
	from := Caller{Key: k.Header(headerKey), ReceivedAt: now, Timeout: k.Timeout(now)}
	if try := k.Header(headerAttemptTimeout); try != "" && len(try) <= maxAttemptTimeout {
		from.Timeout = minTimeout(from.Timeout, try)
	}
	from.Hold = HoldCaller{
		ID: d.holdHeader(k, headerHoldID), Caller: d.holdHeader(k, headerCaller), Address: k.RemoteAddr(), Identity: k.Identity(),
	}
	from.Hold.conn = s.callers.track(k, from.Hold.Caller)
	if s.tracer != nil {
		s.startRecording(c, func(name string) string { return d.traceHeader(k, name) })
	}
	c.stream = k
	if s.begin(c, from, d) {
		d.Answered(c)
	}
}

// holdHeader returns a header of calls with holds, or "" if it is too long.
func (d *inlineServer) holdHeader(k *h2.Stream, i int) string {
	if v := k.Header(i); len(v) <= maxHoldHeader {
		return v
	}
	return ""
}

// traceHeader returns a header for the Tracer, which may keep it.
func (d *inlineServer) traceHeader(k *h2.Stream, name string) string {
	for i, h := range d.traceHeaders {
		if v := k.Header(callHeaders + i); strings.EqualFold(h, name) && len(v) <= maxTrace {
			return strings.Clone(v)
		}
	}
	return ""
}

// Answered sends the response.
func (d *inlineServer) Answered(c *Call) {
	s, k := d.service, c.stream
	s.endRecording(c)
	s.counts.served(c.duration)
	if c.Err != nil {
		k.Fail(codes.Unknown, c.Err.Error())
	} else if holds := s.madeHolds(c); holds != nil {
		k.ReplyOr(&c.Response, holds.release)
	} else {
		k.Reply(&c.Response)
	}
	s.Release(c)
}
