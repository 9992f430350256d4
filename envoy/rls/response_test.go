package rls

import (
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keyward/keyward/internal/config"
)

// messageOf returns r as a message of protobuf's own types.
func messageOf(t testing.TB, r *rateLimitResponse) *pb.RateLimitResponse {
	t.Helper()
	m := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_Code(r.Code)}
	for _, s := range r.Statuses {
		st := &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_Code(s.Code), LimitRemaining: s.Remaining}
		if s.HasLimit {
			st.CurrentLimit = &pb.RateLimitResponse_RateLimit{
				Name: s.Name, RequestsPerUnit: s.Limit, Unit: pb.RateLimitResponse_RateLimit_Unit(s.Unit),
			}
			if s.Times > 1 {
				st.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(s.Times)
			}
		}
		if s.HasLimit || s.Reset > 0 {
			st.DurationUntilReset = &durationpb.Duration{Seconds: s.Reset}
		}
		m.Statuses = append(m.Statuses, st)
	}
	for _, h := range r.Headers {
		m.ResponseHeadersToAdd = append(m.ResponseHeadersToAdd, &core.HeaderValue{Key: h.Key, Value: h.Value})
	}
	if r.Metadata != nil {
		m.DynamicMetadata = new(structpb.Struct)
		if err := proto.Unmarshal(r.Metadata, m.DynamicMetadata); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// Property: protobuf decodes the output of Append to the same response.
func FuzzAppend(f *testing.F) {
	f.Add(uint8(1), uint32(50), uint32(49), int64(1), uint8(1), "", "RateLimit-Limit", "50", false, uint32(10))
	f.Add(uint8(2), uint32(1<<31), uint32(0), int64(31_536_000), uint8(7), string(make([]byte, 300)), "", "", true, uint32(1))
	f.Add(uint8(0), uint32(0), uint32(1<<32-1), int64(0), uint8(0), "n", "k", "v", true, uint32(1<<32-1))
	f.Fuzz(func(t *testing.T, code uint8, limit, remaining uint32, reset int64, unit uint8, name, key, value string, metadata bool, times uint32) {
		r := rateLimitResponse{Code: Code(code % 3), Headers: []responseHeader{{key, value}}}
		for _, has := range []bool{true, false, true} {
			r.Statuses = append(r.Statuses, descriptorStatus{
				Code: Code(code % 3), HasLimit: has, Limit: limit, Remaining: remaining, Reset: max(reset, 0), Unit: config.Unit(unit % 8), Name: name, Times: times,
			})
		}
		if metadata {
			r.Metadata = encodeRequest(t, &structpb.Struct{Fields: map[string]*structpb.Value{"k": text(value)}})
		}
		var got pb.RateLimitResponse
		if err := proto.Unmarshal(r.Append(nil), &got); err != nil {
			if proto.Unmarshal(wireOpaque(name, key, value), &core.HeaderValue{}) != nil {
				return // names come from files, which are UTF-8
			}
			t.Fatal(err)
		}
		if want := messageOf(t, &r); !proto.Equal(&got, want) {
			t.Errorf("wrote %v, want %v", &got, want)
		}
	})
}

// wireOpaque is a message that only decodes if all of its texts are valid UTF-8.
func wireOpaque(texts ...string) (b []byte) {
	for _, s := range texts {
		b = appendString(b, 1, s)
	}
	return b
}

func TestResponseAllocs(t *testing.T) {
	r := rateLimitResponse{Code: OK, Statuses: []descriptorStatus{{Code: OK, HasLimit: true, Limit: 50, Unit: config.Second, Remaining: 49, Reset: 1}}}
	b := make([]byte, 0, 100)
	if n := testing.AllocsPerRun(100, func() { b = r.Append(b[:0]) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
