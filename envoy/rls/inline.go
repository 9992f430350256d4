package rls

import (
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/connguard"
)

// inlineServer serves ShouldRateLimit where the connection's loop reads it: the request is decoded in place and the response built
// in the connection's output. A call that waits for another member is answered from the goroutine that brings its answer.
type inlineServer struct {
	service      *Service
	options      grpcOptions
	guard        *connguard.Guard
	traceHeaders []string // headers that the Tracer looks at; they follow callHeaders
}

// callHeaders are the headers that a call is read for.
const (
	headerKey = iota
	headerAttemptTimeout
	callHeaders
)

// newInlineServer makes the lean door for s, and for h unless it is nil.
func (s *Service) newInlineServer(o grpcOptions, h *HealthServer) *h2.InlineServer {
	d := &inlineServer{service: s, options: o, guard: o.Guard}
	if s.tracer != nil {
		d.traceHeaders = s.tracer.Headers()
	}
	methods := map[string]h2.Handler{method: d}
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
			Streams: maxStreams, HeaderList: maxHeaders, Message: maxMessage, KeepMessage: s.limits.Message + 1, Unfinished: maxUnfinished,
			HandshakeTimeout: handshakeTime, StallTimeout: connguard.StallTime, MessageTimeout: messageTimeout,
		},
		Account: o.Guard.Account(),
	})
}

// headers are those that a call is read for, and how much of each is kept. What a key is made of may be no longer than
// Bounds.Value, or the call is over its limit.
func (d *inlineServer) headers() []h2.KeptHeader {
	hs := []h2.KeptHeader{headerKey: {Name: names.KeyHeader, Max: d.service.limits.Value}, headerAttemptTimeout: {Name: attemptTimeoutHeader, Max: maxAttemptTimeout}}
	for _, name := range d.traceHeaders {
		hs = append(hs, h2.KeptHeader{Name: name, Max: maxTrace})
	}
	return hs
}

const (
	maxAttemptTimeout = 16      // bytes of attemptTimeoutHeader, which is a number; a longer one is none
	maxTrace          = 8 << 10 // bytes of a header for the Tracer; a longer one is left out
)

// maxUnfinished is what all clients of a lean door may make it keep, in bytes: calls that are not whole, buffers, streams
// that stay open. As of a message only what may be used is kept, it is enough for some.
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
	if s.tracer != nil {
		s.startRecording(c, func(name string) string { return d.traceHeader(k, name) })
	}
	c.stream = k
	if s.Begin(c, from, d) {
		d.Answered(c)
	}
}

// traceHeader is a header for the Tracer, which may keep it.
func (d *inlineServer) traceHeader(k *h2.Stream, name string) string {
	for i, h := range d.traceHeaders {
		if v := k.Header(callHeaders + i); strings.EqualFold(h, name) && len(v) <= maxTrace {
			return strings.Clone(v)
		}
	}
	return ""
}

// Answered sends the answer.
func (d *inlineServer) Answered(c *Call) {
	s, k := d.service, c.stream
	s.endRecording(c)
	s.counts.served(c.duration)
	if c.Err != nil {
		k.Fail(codes.Unknown, c.Err.Error())
	} else {
		k.Reply(&c.Response)
	}
	s.Release(c)
}
