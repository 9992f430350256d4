package mirror

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
)

// Class states why two responses differ.
type Class string

// The classes. A difference with several causes is in the first class that explains all of it.
const (
	// known is a difference that docs/differences.md lists.
	known Class = "known"
	// firstWindow: the window began before the mirror started, so the services have not counted the same hits.
	firstWindow Class = "first_window"
	// missed: in this window a call reached only one service.
	missed Class = "missed"
	// windowEdge: the call arrived as the window ended, so one service may have counted it in the next one.
	windowEdge Class = "window_edge"
	// order: the counts differ by no more than the concurrent calls, which each service may process in a different
	// order.
	order Class = "order"
	// other: none of the above.
	other Class = "other"
)

func classes() []Class {
	return []Class{known, firstWindow, missed, windowEdge, order, other}
}

// finding states why and in which fields two responses differ.
type finding struct {
	class  Class
	fields []string
}

// edge is the time around the end of a window in which a call is in windowEdge. It covers the difference of the clocks.
const edge = 250 * time.Millisecond

// call is a rate limit call whose responses are compared.
type call struct {
	message    []byte
	request    rls.RateLimitRequest // refers to message
	hits       uint64               // of the descriptor with the most hits
	known      string               // why the services are known to differ; empty if they are not
	begin      int64                // Unix nanoseconds
	end        int64
	concurrent uint64 // hits of other calls that were in flight at the same time
}

// Limits above which Keyward rejects a call; see docs/differences.md.
const maxText, maxRequest, maxDescriptors, maxEntries = 64 << 10, 1 << 20, 256, 64

func newCall(message []byte) *call {
	c := &call{message: message, begin: time.Now().UnixNano(), hits: 1}
	err := c.request.Decode(message,
		rls.RequestLimits{Message: maxRequest, Value: maxText, Descriptors: maxDescriptors, Entries: maxEntries})
	switch {
	case err != nil:
		c.known = "a request that is not valid protobuf"
	case c.request.Excess != 0:
		c.known = "size: " + c.request.Excess.String()
	}
	for i := range c.request.Descriptors {
		c.descriptor(&c.request.Descriptors[i])
	}
	return c
}

func (c *call) descriptor(d *rls.Descriptor) {
	hits := uint64(max(1, c.request.HitsAddend))
	if d.HasAddend {
		hits = d.Addend
	}
	c.hits = max(c.hits, min(hits, math.MaxInt64))
	switch {
	case hits > math.MaxInt64:
		c.known = "2^63 or more hits"
	case d.Override.Set && d.Override.Unit == 0:
		c.known = "an override with unit UNKNOWN"
	case d.Override.Multiplied && d.Override.Multiplier > 1:
		c.known = "an override with a unit_multiplier"
	}
	for _, e := range d.Entries {
		if !utf8.ValidString(e.Key) || !utf8.ValidString(e.Value) {
			c.known = "bytes that are not UTF-8"
		}
	}
}

// decode decodes a response. The result for an invalid one has no code.
func decode(b []byte) *rlsv3.RateLimitResponse {
	r := new(rlsv3.RateLimitResponse)
	if proto.Unmarshal(b, r) != nil {
		return new(rlsv3.RateLimitResponse)
	}
	return r
}

// dropAdditions removes from b, a response of the new service, what flags of Keyward add to it and a lacks.
func dropAdditions(a, b *rlsv3.RateLimitResponse) {
	b.ResponseHeadersToAdd = slices.DeleteFunc(b.ResponseHeadersToAdd, func(h *core.HeaderValue) bool {
		return rls.IsAddition(h.Key) && !slices.ContainsFunc(a.ResponseHeadersToAdd, func(old *core.HeaderValue) bool {
			return strings.EqualFold(old.Key, h.Key)
		})
	})
	if len(a.RequestHeadersToAdd) == 0 {
		b.RequestHeadersToAdd = nil
	}
	delete(b.DynamicMetadata.GetFields(), rls.MetadataField)
	if len(b.DynamicMetadata.GetFields()) == 0 && a.DynamicMetadata == nil {
		b.DynamicMetadata = nil
	}
}

// differ returns the fields in which two responses differ, and the indexes of the statuses that differ.
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

// resetSlack is by how many seconds two resets may differ, since both services round by their own clocks.
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

// sameHeaders compares the names and values of the headers to add. If loose is set it ignores values, for responses
// whose counts differ.
func sameHeaders(a, b *rlsv3.RateLimitResponse, loose bool) bool {
	if len(a.ResponseHeadersToAdd) != len(b.ResponseHeadersToAdd) ||
		len(a.RequestHeadersToAdd) != len(b.RequestHeadersToAdd) {
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

// sameValue allows resets to differ by resetSlack.
func sameValue(a, b string) bool {
	x, err1 := strconv.Atoi(a)
	y, err2 := strconv.Atoi(b)
	return a == b || err1 == nil && err2 == nil && max(x-y, y-x) <= resetSlack
}

// class returns why a and b differ in the statuses at the given indexes.
func (m *Mirror) class(c *call, a, b *rlsv3.RateLimitResponse, at []int) Class {
	if c.known != "" {
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
			return w > 0 && then > 0 && then/w >= c.begin/w
		}
	}
	switch {
	case !explained(sameLimit):
		return other
	case explained(within(m.started)):
		return firstWindow
	case explained(func(s, _ *rlsv3.RateLimitResponse_DescriptorStatus) bool {
		w := window(s)
		return w > 0 && (c.begin-int64(edge))/w != (c.end+int64(edge))/w
	}):
		return windowEdge
	case explained(within(m.missed.Load())):
		return missed
	case explained(func(s, t *rlsv3.RateLimitResponse_DescriptorStatus) bool { return distance(s, t) <= c.concurrent }):
		return order
	}
	return other
}

// sameLimit reports whether both services apply the same limit. Only then can counts explain a difference.
func sameLimit(s, t *rlsv3.RateLimitResponse_DescriptorStatus) bool {
	return s.CurrentLimit != nil && proto.Equal(s.CurrentLimit, t.CurrentLimit)
}

// distance returns by how many hits two counts differ at least.
func distance(s, t *rlsv3.RateLimitResponse_DescriptorStatus) uint64 {
	n := uint64(max(s.LimitRemaining, t.LimitRemaining) - min(s.LimitRemaining, t.LimitRemaining))
	if n == 0 && s.Code != t.Code {
		n = 1 // one is the last hit within the limit, the other the first above it
	}
	return n
}

// window returns the length of a status's window in nanoseconds, or 0. Units have the same numbers in both protocols.
func window(s *rlsv3.RateLimitResponse_DescriptorStatus) int64 {
	return int64(config.Unit(s.GetCurrentLimit().GetUnit()).Window())
}

func encodeHealth(r *healthpb.HealthCheckRequest) *frame {
	b, _ := proto.Marshal(r) // it cannot fail
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
