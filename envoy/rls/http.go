package rls

import (
	"errors"
	"expvar"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/internal/names"
	"github.com/keyward/keyward/internal/browser"
	"github.com/keyward/keyward/internal/connguard"
)

// healthPath is served for every Host header.
const healthPath = "/healthcheck"

// httpHandler returns the handler of /json and /healthcheck. It does not check the Host header.
func (s *Service) httpHandler(o *StartOptions) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/json", browser.SameSite(&jsonHandler{s, o.Refunds == refundsAny, o.refuse("http")}, o.refuse("http")))
	mux.HandleFunc(healthPath, o.Health.serveHTTP)
	for path, h := range o.JSON {
		mux.Handle(path, browser.SameSite(h, o.refuse("http")))
	}
	return mux
}

// jsonHandler answers a RateLimitRequest in protobuf's JSON, for clients without gRPC: with 200, with 429 over the
// limit, and with 400 for any error.
type jsonHandler struct {
	*Service
	refunds bool // clients may refund hits
	refuse  func(reason string)
}

// ServeHTTP implements http.Handler.
func (s *jsonHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := s.NewCall()
	defer s.Release(c)
	if err := s.decodeJSON(c, http.MaxBytesReader(w, r.Body, maxMessage)); err != nil {
		badRequest(w)
		return
	}
	if !s.refunds && c.Request.zeroRefunds() {
		s.refuse(negativeHits)
	}
	s.startRecording(c, r.Header.Get)
	s.Decide(c, Caller{Key: r.Header.Get(names.KeyHeader)})
	s.endRecording(c)
	if c.Err != nil {
		badRequest(w)
		return
	}
	var resp pb.RateLimitResponse
	body, err := []byte(nil), proto.Unmarshal(c.Response.Append(nil), &resp)
	if err == nil {
		body, err = protojson.Marshal(&resp)
	}
	if err != nil {
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if s.additions.RetryAfter && resp.OverallCode == pb.RateLimitResponse_OVER_LIMIT {
		w.Header().Set(headerRetryAfter, strconv.FormatInt(c.Response.retryAfter(), 10))
	}
	switch resp.OverallCode {
	case pb.RateLimitResponse_UNKNOWN:
		w.WriteHeader(http.StatusInternalServerError)
	case pb.RateLimitResponse_OVER_LIMIT:
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(body)
}

// maxObjects is the number of JSON objects that a body may contain: enough for 256 descriptors of 64 entries. A
// decoded object may take a hundred times the size of its text.
const maxObjects = 20_000

// readJSON reads a body and keeps at most what may be used. It returns fits = false if the body is too long.
func readJSON(body io.Reader) (b []byte, fits bool, err error) {
	if b, err = io.ReadAll(io.LimitReader(body, connguard.MaxBody)); err != nil {
		return nil, false, err
	}
	rest, err := io.Copy(io.Discard, body)
	if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
		return nil, false, nil
	}
	return b, rest == 0 && objects(b) <= maxObjects, err
}

// objects counts the objects in JSON text.
func objects(b []byte) (n int) {
	for quoted := false; len(b) > 0; b = b[1:] {
		switch {
		case b[0] == '"':
			quoted = !quoted
		case b[0] == '\\' && quoted && len(b) > 1:
			b = b[1:]
		case b[0] == '{' && !quoted:
			n++
		}
	}
	return n
}

// decodeJSON decodes a body into c.Request. A body that is too long exceeds a limit; it is not an error.
func (s *Service) decodeJSON(c *Call, body io.Reader) error {
	b, fits, err := readJSON(body)
	if err != nil {
		return err
	}
	if !fits {
		c.Request = RateLimitRequest{Excess: excessMessage}
		return nil
	}
	b, hidden := hideOpaque(b)
	var req pb.RateLimitRequest
	if err := protojson.Unmarshal(b, &req); err != nil {
		return err
	}
	message, err := proto.Marshal(&req)
	if err != nil {
		return err
	}
	if err := s.Decode(c, message); err != nil {
		return err
	}
	if hidden {
		c.Request.showOpaque()
	}
	return nil
}

func badRequest(w http.ResponseWriter) {
	http.Error(w, http.StatusText(http.StatusBadRequest), http.StatusBadRequest)
}

// debugHandler returns the handler of the debug listener.
func (s *Service) debugHandler() http.Handler {
	mux := http.NewServeMux()
	index := ""
	for _, e := range []struct {
		path, help string
		serve      http.HandlerFunc
	}{
		{"/debug/pprof/", "root of various pprof endpoints. hit for help.", pprof.Index},
		{"/debug/pprof/cmdline", "command line", pprof.Cmdline},
		{"/debug/pprof/profile", "CPU profiling endpoint", pprof.Profile},
		{"/debug/pprof/symbol", "symbol lookup", pprof.Symbol},
		{"/debug/pprof/trace", "trace endpoint", pprof.Trace},
		{"/rlconfig", "print out the currently loaded configuration for debugging", s.dumpRules},
		{"/stats", "print out stats", dumpVars},
	} {
		mux.HandleFunc(e.path, withWriteDeadline(e.serve))
		index += e.path + ": " + e.help + "\n"
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, index) })
	return mux
}

// withWriteDeadline limits how long a client of the debug listener may take to read a response: the duration of the
// requested profile or trace plus writeTime. Unread responses would be kept forever.
func withWriteDeadline(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seconds, _ := strconv.ParseFloat(r.FormValue("seconds"), 64)
		if !(seconds > 0) && strings.HasSuffix(r.URL.Path, "/profile") {
			seconds = 30 // pprof's own default
		}
		duration := time.Duration(min(max(seconds, 0), 3600) * float64(time.Second))
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(duration + writeTime))
		serve(w, r)
	}
}

// writeTime is how long a client may take to read a response of the debug listener.
const writeTime = 10 * time.Second

func (s *Service) dumpRules(w http.ResponseWriter, _ *http.Request) {
	r := s.Rules()
	if r == nil {
		return
	}
	for _, line := range r.Dump() {
		_, _ = io.WriteString(w, line+"\n")
	}
}

func dumpVars(w http.ResponseWriter, _ *http.Request) {
	expvar.Do(func(kv expvar.KeyValue) { _, _ = fmt.Fprintf(w, "%s: %s\n", kv.Key, kv.Value) })
}
