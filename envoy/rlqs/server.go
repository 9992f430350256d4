package rlqs

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/budget"
)

// QuotaMethod is the full name of the service's only method.
const QuotaMethod = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas"

// Options configure a QuotaServer.
type Options struct {
	Service    *rls.Service // has the rules
	Book       QuotaBook
	Registerer prometheus.Registerer // for the keyward_quota_* metrics; nil: not registered
	Limits     StreamLimits
}

// StreamLimits bound what Envoys may do. A zero field means its default.
type StreamLimits struct {
	Message int // bytes of a message; default 1 MiB
	Streams int // open streams; default 1024
	// Buckets is the number of ids that a stream may have; default 10,000. Further ids are not answered, so that the
	// Envoy keeps to its no_assignment_behavior.
	Buckets int
	// Memory is the number of bytes that the ids of all streams may take; default 64 MiB. A stream may always have 1 MiB
	// of them, which is enough for about 1,000 ids.
	Memory int
}

func (b StreamLimits) withDefaults() StreamLimits {
	or := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	or(&b.Message, 1<<20)
	or(&b.Streams, 1024)
	or(&b.Buckets, 10_000)
	or(&b.Memory, 64<<20)
	return b
}

// QuotaServer serves the rate limit quota service. It is safe for concurrent use.
type QuotaServer struct {
	service *rls.Service
	book    QuotaBook
	limits  StreamLimits
	metrics *quotaMetrics
	account *budget.Account // of the ids of all streams

	mu      sync.Mutex
	streams map[uint64]*quotaStream // guarded by mu: by number
	opened  uint64                  // guarded by mu: the last number
	closed  bool                    // guarded by mu: Close was called
}

// NewServer returns a QuotaServer. It serves nothing by itself: see Methods.
func NewServer(o Options) *QuotaServer {
	s := &QuotaServer{service: o.Service, book: o.Book, limits: o.Limits.withDefaults(), streams: map[uint64]*quotaStream{}}
	s.account = budget.New(int64(s.limits.Memory), streamMemory)
	s.metrics = newQuotaMetrics(o.Registerer, s)
	return s
}

// Methods returns the gRPC method, by full name, for rls.StartOptions.
func (s *QuotaServer) Methods() map[string]h2.Handler {
	return map[string]h2.Handler{QuotaMethod: h2.NewDuplexHandler(s.limits.Message, s.open)}
}

// Close ends all streams and refuses new ones. Envoys keep their assignments and open their streams again elsewhere,
// within 5 seconds. The book's Closed has been called for all streams when Close returns, except those that are ending
// already.
func (s *QuotaServer) Close() {
	s.mu.Lock()
	s.closed = true
	all := make([]*quotaStream, 0, len(s.streams))
	for _, k := range s.streams {
		all = append(all, k)
	}
	s.mu.Unlock()
	for _, k := range all {
		k.end(time.Now())
	}
}

// open begins a stream.
func (s *QuotaServer) open(d *h2.Duplex) h2.DuplexReceiver {
	k := s.newStream(d)
	if code, why := s.add(k); code != codes.OK {
		d.Fail(code, why)
		k.close(d.Now())
	}
	return k
}

// add adds a stream, or returns why it is refused.
func (s *QuotaServer) add(k *quotaStream) (codes.Code, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return codes.Unavailable, "the member is stopping"
	case len(s.streams) >= s.limits.Streams:
		s.metrics.rejected[rejectStreams].Inc()
		return codes.ResourceExhausted, "too many streams"
	}
	s.opened++
	k.number = s.opened
	s.streams[k.number] = k
	return codes.OK, ""
}

func (s *QuotaServer) newStream(d *h2.Duplex) *quotaStream {
	return &quotaStream{server: s, duplex: d, account: s.account.Open(), buckets: map[string]*streamBucket{}}
}

// remove forgets a stream.
func (s *QuotaServer) remove(k *quotaStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, k.number)
}

func (s *QuotaServer) stream(number uint64) *quotaStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[number]
}

var (
	// ErrClosed is the error of Send on a stream that is over.
	ErrClosed = errors.New("the stream is over")
	// ErrBucket is the error of Send for buckets that the stream does not have. Everything else was sent.
	ErrBucket = errors.New("the stream has no such bucket")
)

// Send sends one response with assignments, and a PING behind it. When the Envoy has answered that, it calls the book's
// Acked with the serial. Send does not block, and the book may call it while it holds its own lock.
//
// If the Envoy does not read what is sent to it, the stream ends: Send returns an error, and Closed is called later, on
// another goroutine.
func (s *QuotaServer) Send(stream, serial uint64, assignments []Assignment) error {
	k := s.stream(stream)
	if k == nil {
		return ErrClosed
	}
	return k.send(serial, assignments)
}
