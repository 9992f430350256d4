package holds

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/owner"
)

func jsonPath(name string) string { return "/holds/" + strings.ToLower(name) }

// jsonVerb answers one of the calls as protobuf's JSON. Its status is 200, 429 if the limits have no room, or that of an
// error, whose body is a google.rpc.Status.
type jsonVerb struct {
	*HoldServer
	verb verb
}

// ServeHTTP implements http.Handler.
func (v *jsonVerb) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, err := v.read(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	c := v.service.NewCall()
	defer v.service.Release(c)
	p.fill(c)
	from := rls.Caller{Hold: rls.HoldCaller{Caller: p.caller, Address: address(r)}}
	v.service.DecideHold(c, p.hold, from)
	if c.Err != nil {
		writeError(w, callError(c.Err))
		return
	}
	if r.Context().Err() != nil { // the caller has not waited, so it does not know of its holds
		if release := v.service.MadeHolds(c); release != nil {
			release()
		}
		return
	}
	v.sessions.record(p, c, &from)
	body, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(v.verb.answer(c, p))
	if err != nil {
		writeError(w, err)
		return
	}
	code := http.StatusOK
	if p.hold.Op == owner.Reserve && c.Response.Code == rls.OverLimit {
		code = http.StatusTooManyRequests
	}
	writeJSON(w, code, body)
}

func (v *jsonVerb) read(w http.ResponseWriter, r *http.Request) (*plan, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, errMethod
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxMessage))
	if err != nil {
		return nil, err
	}
	m := v.verb.request()
	if err := protojson.Unmarshal(body, m); err != nil {
		return nil, invalid("%v", err)
	}
	return v.verb.plan(m)
}

var errMethod = errors.New("the method must be POST")

// address returns the address of the client, or nil if it has none.
func address(r *http.Request) net.Addr {
	if a, err := net.ResolveTCPAddr("tcp", r.RemoteAddr); err == nil {
		return a
	}
	return nil
}

func writeError(w http.ResponseWriter, err error) {
	code, tooLong := http.StatusInternalServerError, (*http.MaxBytesError)(nil)
	switch st := status.Code(err); {
	case errors.Is(err, errMethod):
		code, err = http.StatusMethodNotAllowed, invalid("%v", err)
	case errors.As(err, &tooLong):
		code, err = http.StatusRequestEntityTooLarge, status.Errorf(codes.ResourceExhausted, "the request is longer than %d bytes", MaxMessage)
	case st == codes.InvalidArgument, st == codes.FailedPrecondition:
		code = http.StatusBadRequest
	case st == codes.Unavailable:
		code = http.StatusServiceUnavailable
	}
	body, _ := protojson.Marshal(status.Convert(err).Proto()) // a status has no invalid field
	writeJSON(w, code, body)
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body)
}
