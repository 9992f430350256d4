package rls

import (
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/connguard"
)

// lean serves ShouldRateLimit where the connection's loop reads it: the request is decoded in place and the response built
// in the connection's output. A call that waits for another member is answered from the goroutine that brings its answer.
type lean struct {
	service *Service
	options GRPCOptions
	gate    *connguard.Surface
	traces  []string // headers that the Tracer looks at; they follow callHeaders
}

// callHeaders are the headers that a call is read for.
const (
	headerKey = iota
	headerTry
	callHeaders
)

// NewLean makes the lean door for s, and for h unless it is nil.
func (s *Service) NewLean(o GRPCOptions, h *Health) *h2.InlineServer {
	d := &lean{service: s, options: o, gate: o.Gate}
	if s.tracer != nil {
		d.traces = s.tracer.Headers()
	}
	methods := map[string]h2.Handler{method: d}
	if h != nil {
		h.serve(methods, s.store)
	}
	return h2.NewInlineServer(h2.Options{
		Methods: methods,
		Headers: d.headers(),
		Refuse:  o.Gate.Refuse, Served: connguard.Answered,
		TLS: o.TLS, TLSReason: certs.Reason,
		MaxAge: o.ConnectionAge, MaxAgeGrace: o.ConnectionAgeMore,
		Limits: h2.Limits{
			Streams: maxStreams, HeaderList: maxHeaders, Message: maxReceive, KeepMessage: s.bounds.Message + 1, Unfinished: maxUnfinished,
			HandshakeTimeout: handshakeTime, StallTimeout: connguard.StallTime, MessageTimeout: questionTime,
		},
		Account: o.Gate.Account(),
	})
}

// headers are those that a call is read for, and how much of each is kept. What a key is made of may be no longer than
// Bounds.Value, or the call is over its limit.
func (d *lean) headers() []h2.KeptHeader {
	hs := []h2.KeptHeader{headerKey: {Name: KeyHeader, Max: d.service.bounds.Value}, headerTry: {Name: tryHeader, Max: maxTry}}
	for _, name := range d.traces {
		hs = append(hs, h2.KeptHeader{Name: name, Max: maxTrace})
	}
	return hs
}

const (
	maxTry   = 16      // bytes of tryHeader, which is a number; a longer one is none
	maxTrace = 8 << 10 // bytes of a header for the Tracer; a longer one is left out
)

// maxUnfinished is what all clients of a lean door may make it keep, in bytes: calls that are not whole, buffers, streams
// that stay open. As of a message only what may be used is kept, it is enough for some.
const maxUnfinished = 8 << 20

// Serve implements h2.Handler.
func (d *lean) Serve(k *h2.Stream) {
	s := d.service
	c := s.NewCall()
	if err := c.Request.Decode(k.Message(), s.bounds); err != nil {
		s.Release(c)
		d.gate.Refuse("question_internal")
		k.Fail(codes.Internal, "grpc: failed to unmarshal the received message: "+err.Error())
		return
	}
	d.options.withhold(&c.Request, k.RemoteAddr())
	now := time.Now() // once for both: reading the clock costs a hundredth of a call
	from := Caller{Key: k.Header(headerKey), Came: now, Timeout: k.Timeout(now)}
	if try := k.Header(headerTry); try != "" && len(try) <= maxTry {
		from.Timeout = shorter(from.Timeout, try)
	}
	if s.tracer != nil {
		s.trace(c, func(name string) string { return d.traceHeader(k, name) })
	}
	c.lean = k
	if s.Begin(c, from, d) {
		d.Answered(c)
	}
}

// traceHeader is a header for the Tracer, which may keep it.
func (d *lean) traceHeader(k *h2.Stream, name string) string {
	for i, h := range d.traces {
		if v := k.Header(callHeaders + i); strings.EqualFold(h, name) && len(v) <= maxTrace {
			return strings.Clone(v)
		}
	}
	return ""
}

// Answered sends the answer.
func (d *lean) Answered(c *Call) {
	s, k := d.service, c.lean
	s.traced(c)
	s.counts.served(c.took)
	if c.Err != nil {
		k.Fail(codes.Unknown, c.Err.Error())
	} else {
		k.Reply(&c.Response)
	}
	s.Release(c)
}
