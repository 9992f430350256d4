package mirror

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
)

// Class says why two answers may differ.
type Class string

// The classes. A difference that has several causes gets the first that explains all of it.
const (
	// known is a difference that docs/differences.md lists.
	known Class = "known"
	// firstWindow: the services have not counted the same hits since the window began, as the mirror is younger than it.
	firstWindow Class = "first_window"
	// missed: in this window a question reached one service only.
	missed Class = "missed"
	// windowEdge: the question came as the window ended, so that one service may have counted it in the next.
	windowEdge Class = "window_edge"
	// order: no further apart than the questions that were open at the same time, which each service met in its own order.
	order Class = "order"
	// other: nothing of the above.
	other Class = "other"
)

func classes() []Class {
	return []Class{known, firstWindow, missed, windowEdge, order, other}
}

// edge is how near the end of a window a question is at its edge: what clocks may differ by.
const edge = 250 * time.Millisecond

// question is a request that is being compared.
type question struct {
	message []byte
	request rls.RateLimitRequest // points into message
	hits    uint64               // the most that one of its descriptors counts
	known   string               // why the services are known to differ about it; empty: they are not
	begin   int64                // Unix nanoseconds
	end     int64
	beside  uint64 // hits of other questions that were open at the same time
}

// Bounds beyond which Keyward refuses; see docs/differences.md.
const maxText, maxRequest, maxDescriptors, maxEntries = 64 << 10, 1 << 20, 256, 64

func newQuestion(message []byte) *question {
	q := &question{message: message, begin: time.Now().UnixNano(), hits: 1}
	err := q.request.Decode(message, rls.RequestLimits{Message: maxRequest, Value: maxText, Descriptors: maxDescriptors, Entries: maxEntries})
	switch {
	case err != nil:
		q.known = "a request that is no protobuf"
	case q.request.Excess != 0:
		q.known = "size: " + q.request.Excess.String()
	}
	for i := range q.request.Descriptors {
		q.descriptor(&q.request.Descriptors[i])
	}
	return q
}

func (q *question) descriptor(d *rls.Descriptor) {
	hits := uint64(max(1, q.request.HitsAddend))
	if d.HasAddend {
		hits = d.Addend
	}
	q.hits = max(q.hits, min(hits, math.MaxInt64))
	switch {
	case hits > math.MaxInt64:
		q.known = "hits of 2^63 and more"
	case d.Override.Set && d.Override.Unit == 0:
		q.known = "an override with unit UNKNOWN"
	case d.Override.Multiplied && d.Override.Multiplier > 1:
		q.known = "an override with a unit_multiplier"
	}
	for _, e := range d.Entries {
		if !utf8.ValidString(e.Key) || !utf8.ValidString(e.Value) {
			q.known = "bytes that are not UTF-8"
		}
	}
}

// decode reads a response; one that is none has no code.
func decode(b []byte) *rlsv3.RateLimitResponse {
	r := new(rlsv3.RateLimitResponse)
	if proto.Unmarshal(b, r) != nil {
		return new(rlsv3.RateLimitResponse)
	}
	return r
}

// differ names the fields in which two responses differ, and the statuses that do.
func differ(a, b *rlsv3.RateLimitResponse) (fields []string, at []int) {
	add := func(is bool, name string) {
		if is && !slices.Contains(fields, name) {
			fields = append(fields, name)
		}
	}
	add(a.OverallCode != b.OverallCode, "code")
	if len(a.Statuses) != len(b.Statuses) {
		return append(fields, "statuses"), nil
	}
	for i, s := range a.Statuses {
		t, before := b.Statuses[i], len(fields)
		same := statusFields(s, t, add)
		if !same || len(fields) > before {
			at = append(at, i)
		}
	}
	loose := slices.Contains(fields, "remaining") || slices.Contains(fields, "code")
	add(!sameHeaders(a, b, loose), "headers")
	add(!proto.Equal(a.DynamicMetadata, b.DynamicMetadata), "metadata")
	add(string(a.RawBody) != string(b.RawBody), "body")
	return fields, at
}

// resetSlack is how many seconds two resets may differ: both round, each by its own clock.
const resetSlack = 1

func statusFields(s, t *rlsv3.RateLimitResponse_DescriptorStatus, add func(bool, string)) (same bool) {
	code, limit := s.Code != t.Code, !proto.Equal(s.CurrentLimit, t.CurrentLimit)
	remaining := s.LimitRemaining != t.LimitRemaining
	reset := (s.DurationUntilReset == nil) != (t.DurationUntilReset == nil) ||
		math.Abs(float64(s.DurationUntilReset.GetSeconds()-t.DurationUntilReset.GetSeconds())) > resetSlack
	add(code, "status_code")
	add(limit, "limit")
	add(remaining, "remaining")
	add(reset, "reset")
	return !code && !limit && !remaining && !reset
}

// sameHeaders compares the headers to add: their names, and what is in them. loose is for answers that differ in what
// headers tell of.
func sameHeaders(a, b *rlsv3.RateLimitResponse, loose bool) bool {
	if len(a.ResponseHeadersToAdd) != len(b.ResponseHeadersToAdd) || len(a.RequestHeadersToAdd) != len(b.RequestHeadersToAdd) {
		return false
	}
	for i, h := range a.ResponseHeadersToAdd {
		g := b.ResponseHeadersToAdd[i]
		if h.Key != g.Key || !loose && !sameValue(h.Value, g.Value) {
			return false
		}
	}
	for i, h := range a.RequestHeadersToAdd {
		if g := b.RequestHeadersToAdd[i]; h.Key != g.Key || h.Value != g.Value {
			return false
		}
	}
	return true
}

// sameValue lets a reset differ as statusFields does.
func sameValue(a, b string) bool {
	x, err1 := strconv.Atoi(a)
	y, err2 := strconv.Atoi(b)
	return a == b || err1 == nil && err2 == nil && max(x-y, y-x) <= resetSlack
}

// class finds why a and b differ in the statuses at.
func (m *Mirror) class(q *question, a, b *rlsv3.RateLimitResponse, at []int) Class {
	if q.known != "" {
		return known
	}
	if len(at) == 0 {
		return other
	}
	explained := func(is func(s, t *rlsv3.RateLimitResponse_DescriptorStatus) bool) bool {
		for _, i := range at {
			if !is(a.Statuses[i], b.Statuses[i]) {
				return false
			}
		}
		return true
	}
	within := func(then int64) func(s, t *rlsv3.RateLimitResponse_DescriptorStatus) bool {
		return func(s, _ *rlsv3.RateLimitResponse_DescriptorStatus) bool {
			w := window(s)
			return w > 0 && then > 0 && then/w >= q.begin/w
		}
	}
	switch {
	case !explained(sameLimit):
		return other
	case explained(within(m.started)):
		return firstWindow
	case explained(func(s, _ *rlsv3.RateLimitResponse_DescriptorStatus) bool {
		w := window(s)
		return w > 0 && (q.begin-int64(edge))/w != (q.end+int64(edge))/w
	}):
		return windowEdge
	case explained(within(m.missed.Load())):
		return missed
	case explained(func(s, t *rlsv3.RateLimitResponse_DescriptorStatus) bool { return apart(s, t) <= q.beside }):
		return order
	}
	return other
}

// sameLimit says that both services go by one limit: only then may counts explain a difference.
func sameLimit(s, t *rlsv3.RateLimitResponse_DescriptorStatus) bool {
	return s.CurrentLimit != nil && proto.Equal(s.CurrentLimit, t.CurrentLimit)
}

// apart is how many hits two counts differ by at least.
func apart(s, t *rlsv3.RateLimitResponse_DescriptorStatus) uint64 {
	n := uint64(max(s.LimitRemaining, t.LimitRemaining) - min(s.LimitRemaining, t.LimitRemaining))
	if n == 0 && s.Code != t.Code {
		n = 1 // the last hit that fits, and the first that does not
	}
	return n
}

// window is the length of a status's window in nanoseconds; 0 when it has none. Units have the same numbers everywhere.
func window(s *rlsv3.RateLimitResponse_DescriptorStatus) int64 {
	return int64(config.Unit(s.GetCurrentLimit().GetUnit()).Window())
}

func encodeHealth(r *healthpb.HealthCheckRequest) *frame {
	b, _ := proto.Marshal(r) // a request of two words always can
	return &frame{b}
}

func readHealth(f *frame) error {
	r := new(healthpb.HealthCheckResponse)
	if err := proto.Unmarshal(f.data, r); err != nil {
		return err
	}
	if r.Status != healthpb.HealthCheckResponse_SERVING {
		return errors.New(r.Status.String())
	}
	return nil
}
