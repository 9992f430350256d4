// Package holds serves APIs for callers that make and settle holds themselves: the gRPC service keyward.v1.Holds, the same
// calls as JSON, and the service of Limitador. It decides nothing: it turns each call into one of the rate limit service,
// so that a hold means the same in all of them.
package holds

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/envoy/rls"
)

// Options configure a HoldServer.
type Options struct {
	Service *rls.Service
	// SessionLife is the time after which the server ends a session, for the caller to open it again. It must be below the
	// age at which connections are closed. Default, and at most, 30 minutes.
	SessionLife time.Duration
}

// HoldServer serves the APIs of holds. It is safe for concurrent use.
type HoldServer struct {
	service  *rls.Service
	sessions sessions
}

// New returns a HoldServer for the rules of o.Service.
func New(o Options) *HoldServer {
	s := &HoldServer{service: o.Service}
	s.sessions.init(o.SessionLife)
	return s
}

// Close ends all sessions, and waits for them. Their callers open them again elsewhere, so nothing is released.
func (s *HoldServer) Close() { s.sessions.close() }

// Methods returns the gRPC methods, by full name.
func (s *HoldServer) Methods() map[string]h2.Handler {
	m := map[string]h2.Handler{holdsService + "Session": sessionMethod{s}}
	for name, v := range s.verbs() {
		m[holdsService+name] = &unary{s, name, v}
	}
	s.addLimitador(m)
	return m
}

// Handlers returns the handlers of the calls as JSON, by path.
func (s *HoldServer) Handlers() map[string]http.Handler {
	m := map[string]http.Handler{}
	for name, v := range s.verbs() {
		m[jsonPath(name)] = &jsonVerb{s, v}
	}
	return m
}

const holdsService = "/keyward.v1.Holds/"

// MaxMessage is the size in bytes of the largest request.
const MaxMessage = 128 << 10

// unary is a gRPC method.
type unary struct {
	*HoldServer
	name string
	verb verb
}

// Serve implements h2.Handler.
func (m *unary) Serve(k *h2.Stream) {
	now := k.Now()
	r := m.verb.request()
	err := decode(k.Message(), r)
	var p *plan
	if err == nil {
		p, err = m.verb.plan(r)
	}
	if err != nil {
		fail(k, err)
		return
	}
	if p.answer != nil {
		k.Reply(encoded{p.answer})
		return
	}
	c := m.service.NewCall()
	p.fill(c)
	from := rls.Caller{ReceivedAt: now, Timeout: k.Timeout(now)}
	from.Hold = rls.HoldCaller{Caller: p.caller, Address: k.RemoteAddr(), Identity: k.Identity()}
	a := &pendingCall{m, k, p, from}
	if m.service.BeginHold(c, p.hold, from, a) {
		a.Answered(c)
	}
}

// pendingCall is a gRPC call that waits for its result.
type pendingCall struct {
	*unary
	stream *h2.Stream
	plan   *plan
	from   rls.Caller
}

// Answered sends the response.
func (a *pendingCall) Answered(c *rls.Call) {
	st := a.service.MethodStats(a.name)
	st.TotalRequests.Add(1)
	st.ResponseTime.Observe(time.Since(a.from.ReceivedAt))
	if c.Err != nil {
		fail(a.stream, callError(c.Err))
	} else {
		a.sessions.record(a.plan, c, &a.from)
		if answer, release := (encoded{a.verb.answer(c, a.plan)}), a.service.MadeHolds(c); release != nil {
			a.stream.ReplyOr(answer, release)
		} else {
			a.stream.Reply(answer)
		}
	}
	a.service.Release(c)
}

// decode decodes a request of at most MaxMessage bytes.
func decode(b []byte, r proto.Message) error {
	if len(b) > MaxMessage {
		return status.Errorf(codes.ResourceExhausted, "the request is longer than %d bytes", MaxMessage)
	}
	if err := proto.Unmarshal(b, r); err != nil {
		return status.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %v", err)
	}
	return nil
}

// callError returns the status of a call that the service could not decide.
func callError(err error) error {
	switch {
	case errors.Is(err, rls.ErrNoHolds):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, rls.ErrNoRules):
		return status.Error(codes.Unavailable, err.Error())
	}
	return status.Error(codes.Unknown, err.Error())
}

func fail(k *h2.Stream, err error) {
	st := status.Convert(err)
	k.Fail(st.Code(), st.Message())
}

// encoded is a message that package proto encodes.
type encoded struct{ proto.Message }

// Append appends the message in wire format.
func (m encoded) Append(b []byte) []byte {
	b, _ = proto.MarshalOptions{}.MarshalAppend(b, m.Message) // only strings with invalid UTF-8 fail
	return b
}

// newID returns an id of 128 random bits.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
