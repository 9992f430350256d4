package rlqs

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keyward/keyward/test/rlqs/model"
)

// server is an RLQS server. It records what Envoy reports and sends what a test wants.
type server struct {
	rlqsv3.UnimplementedRateLimitQuotaServiceServer
	addr    string
	grpc    *grpc.Server
	mu      sync.Mutex
	changed chan struct{} // guarded by mu; closed at the next change
	opened  int           // guarded by mu; streams so far
	streams map[string]*stream
	reports map[string][]report
	answer  map[string]func(model.ReportedUsage) []model.Action // by domain: the answer to each report of an id
}

// report is a message of a domain.
type report struct {
	at     time.Time
	stream int
	usages []model.ReportedUsage
	exact  bool // no elapsed time has a part of a second
}

// stream is an open stream.
type stream struct {
	id       int
	metadata metadata.MD
	send     chan *rlqsv3.RateLimitQuotaResponse
	end      chan struct{}
	domain   string
}

func startServer(addr string) (*server, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &server{
		addr: ln.Addr().String(), grpc: grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20)), changed: make(chan struct{}),
		streams: map[string]*stream{}, reports: map[string][]report{}, answer: map[string]func(model.ReportedUsage) []model.Action{},
	}
	rlqsv3.RegisterRateLimitQuotaServiceServer(s.grpc, s)
	go func() { _ = s.grpc.Serve(ln) }()
	return s, nil
}

// StreamRateLimitQuotas serves a stream.
func (s *server) StreamRateLimitQuotas(g rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
	md, _ := metadata.FromIncomingContext(g.Context())
	s.mu.Lock()
	s.opened++
	st := &stream{id: s.opened, metadata: md, send: make(chan *rlqsv3.RateLimitQuotaResponse, 10_000), end: make(chan struct{})}
	s.mu.Unlock()
	received, failed := make(chan *rlqsv3.RateLimitQuotaUsageReports), make(chan error, 1)
	go receive(g, received, failed)
	defer s.close(st)
	for {
		var err error
		select {
		case m := <-received:
			s.record(st, m)
		case r := <-st.send:
			err = g.Send(r)
		case err = <-failed:
		case <-st.end:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// receive reads a stream until it ends.
func receive(g rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasServer, received chan<- *rlqsv3.RateLimitQuotaUsageReports, failed chan<- error) {
	for {
		m, err := g.Recv()
		if err != nil {
			failed <- err
			return
		}
		select {
		case received <- m:
		case <-g.Context().Done():
			return
		}
	}
}

func (s *server) close(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[st.domain] == st {
		delete(s.streams, st.domain)
	}
	s.changeLocked()
}

func (s *server) changeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// record records a message and answers it if the test wants that.
func (s *server) record(st *stream, m *rlqsv3.RateLimitQuotaUsageReports) {
	r := report{at: time.Now(), stream: st.id, exact: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Domain != "" { // only the first message of a stream must have it
		st.domain = m.Domain
		s.streams[st.domain] = st
	}
	var answers []model.Action
	for _, u := range m.BucketQuotaUsages {
		usage := model.ReportedUsage{ID: u.BucketId.GetBucket()["key"], Allowed: u.NumRequestsAllowed, Denied: u.NumRequestsDenied, Elapsed: u.TimeElapsed.AsDuration()}
		r.usages = append(r.usages, usage)
		r.exact = r.exact && u.TimeElapsed.GetNanos() == 0
		if answer := s.answer[st.domain]; answer != nil {
			answers = append(answers, answer(usage)...)
		}
	}
	s.reports[st.domain] = append(s.reports[st.domain], r)
	if len(answers) > 0 {
		st.send <- response(answers)
	}
	s.changeLocked()
}

// response returns the message with these assignments.
func response(as []model.Action) *rlqsv3.RateLimitQuotaResponse {
	r := &rlqsv3.RateLimitQuotaResponse{}
	for _, a := range as {
		action := &rlqsv3.RateLimitQuotaResponse_BucketAction{BucketId: &rlqsv3.BucketId{Bucket: map[string]string{"name": "k", "key": a.ID}}}
		if a.Abandon {
			action.BucketAction = &rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction_{AbandonAction: &rlqsv3.RateLimitQuotaResponse_BucketAction_AbandonAction{}}
		} else {
			quota := &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{RateLimitStrategy: strategy(a.Strategy)}
			if a.TTL != unsetTTL {
				quota.AssignmentTimeToLive = durationpb.New(a.TTL)
			}
			action.BucketAction = &rlqsv3.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{QuotaAssignmentAction: quota}
		}
		r.BucketAction = append(r.BucketAction, action)
	}
	return r
}

// unsetTTL is the TTL of an assignment that has none in the message.
const unsetTTL = -1

func strategy(s model.Strategy) *typev3.RateLimitStrategy {
	switch s.Kind {
	case model.AllowAll:
		return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: typev3.RateLimitStrategy_ALLOW_ALL}}
	case model.DenyAll:
		return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: typev3.RateLimitStrategy_DENY_ALL}}
	case model.TokenBucket:
		return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
			MaxTokens: s.Max, TokensPerFill: wrapperspb.UInt32(s.PerFill), FillInterval: durationpb.New(s.Every),
		}}}
	case model.PerUnit:
		return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_RequestsPerTimeUnit_{RequestsPerTimeUnit: &typev3.RateLimitStrategy_RequestsPerTimeUnit{
			RequestsPerTimeUnit: uint64(s.Max), TimeUnit: typev3.RateLimitUnit_SECOND,
		}}}
	}
	return nil
}

// await blocks until cond is true for the messages of a domain, and returns them.
func (s *server) await(t testing.TB, domain, what string, cond func([]report) bool) []report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		s.mu.Lock()
		got, changed := s.reports[domain], s.changed
		s.mu.Unlock()
		if cond(got) {
			return got
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("%s: waited a minute for %s; %d messages so far", domain, what, len(got))
		}
	}
}

// stream returns the open stream of a domain and waits until there is one.
func (s *server) stream(t testing.TB, domain string) *stream {
	t.Helper()
	var st *stream
	s.await(t, domain, "a stream", func([]report) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		st = s.streams[domain]
		return st != nil
	})
	return st
}

// total returns the usage of an id in the messages.
func total(reports []report, id string) (u model.ReportedUsage) {
	u.ID = id
	for _, r := range reports {
		for _, x := range r.usages {
			if x.ID == id {
				u.Allowed += x.Allowed
				u.Denied += x.Denied
			}
		}
	}
	return u
}

// find returns what a message has about an id.
func (r report) find(id string) (model.ReportedUsage, bool) {
	for _, u := range r.usages {
		if u.ID == id {
			return u, true
		}
	}
	return model.ReportedUsage{}, false
}
