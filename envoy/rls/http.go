package rls

import (
	"errors"
	"expvar"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// HTTP is the handler of the HTTP port: /json and /healthcheck.
func (s *Service) HTTP(h *Health) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/json", s.json)
	mux.Handle("/healthcheck", h)
	return mux
}

// json answers a RateLimitRequest in protobuf's JSON, for callers without gRPC: 200, 429 when over, 400 for any error.
func (s *Service) json(w http.ResponseWriter, r *http.Request) {
	c := s.NewCall()
	defer s.Release(c)
	if err := s.decodeJSON(c, http.MaxBytesReader(w, r.Body, maxReceive)); err != nil {
		badRequest(w)
		return
	}
	s.trace(c, r.Header.Get)
	s.Decide(c, Caller{Key: r.Header.Get(KeyHeader)})
	s.traced(c)
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
	switch resp.OverallCode {
	case pb.RateLimitResponse_UNKNOWN:
		w.WriteHeader(http.StatusInternalServerError)
	case pb.RateLimitResponse_OVER_LIMIT:
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(body)
}

// decodeJSON reads a body into c's request. A body that is too long is a request beyond the bounds, not an error.
func (s *Service) decodeJSON(c *Call, body io.Reader) error {
	b, err := io.ReadAll(body)
	if tooLong := (*http.MaxBytesError)(nil); errors.As(err, &tooLong) {
		c.Request = Request{Excess: ExcessMessage}
		return nil
	}
	if err != nil {
		return err
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

// Debug is the handler of the debug port.
func (s *Service) Debug() http.Handler {
	mux := http.NewServeMux()
	index := ""
	for _, e := range []struct {
		path, help string
		serve      http.HandlerFunc
	}{
		{"/debug/pprof/", "root of various pprof endpoints. hit for help.", pprof.Index},
		{"/debug/pprof/cmdline", "command line", pprof.Cmdline},
		{"/debug/pprof/profile", "CPU profiling endpoint", pprof.Profile},
		{"/debug/pprof/symbol", "symbol look-up", pprof.Symbol},
		{"/debug/pprof/trace", "trace endpoint", pprof.Trace},
		{"/rlconfig", "print out the currently loaded configuration for debugging", s.dumpRules},
		{"/stats", "print out stats", dumpVars},
	} {
		mux.HandleFunc(e.path, e.serve)
		index += e.path + ": " + e.help + "\n"
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, index) })
	return mux
}

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
