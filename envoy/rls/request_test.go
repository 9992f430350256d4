package rls

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keyward/keyward/internal/config"
)

// descriptor returns a descriptor with alternating keys and values.
func descriptor(kvs ...string) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	for i := 0; i < len(kvs); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: kvs[i], Value: kvs[i+1]})
	}
	return d
}

func request(domain string, ds ...*common.RateLimitDescriptor) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: domain, Descriptors: ds}
}

func with(d *common.RateLimitDescriptor, change func(*common.RateLimitDescriptor)) *common.RateLimitDescriptor {
	change(d)
	return d
}

func override(d *common.RateLimitDescriptor, limit uint32, unit typev3.RateLimitUnit) *common.RateLimitDescriptor {
	d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: limit, Unit: unit}
	return d
}

func addend(d *common.RateLimitDescriptor, n uint64) *common.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(n)
	return d
}

func encodeRequest(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sameRequest compares the results of Decode and proto.Unmarshal.
func sameRequest(t *testing.T, got *RateLimitRequest, want *pb.RateLimitRequest) {
	t.Helper()
	if got.Domain != want.Domain || got.HitsAddend != want.HitsAddend || len(got.Descriptors) != len(want.Descriptors) {
		t.Fatalf("decoded %q, addend %d, %d descriptors; want %v", got.Domain, got.HitsAddend, len(got.Descriptors), want)
	}
	for i, w := range want.Descriptors {
		g := got.Descriptors[i]
		var entries []config.Entry
		for _, e := range w.Entries {
			entries = append(entries, config.Entry{Key: e.Key, Value: e.Value})
		}
		if !slices.Equal(g.Entries, entries) {
			t.Errorf("descriptor %d has entries %q, want %q", i, g.Entries, entries)
		}
		l := w.GetLimit()
		o := limitOverride{
			Set: l != nil, Limit: l.GetRequestsPerUnit(), Unit: int32(l.GetUnit()),
			Multiplied: l.GetUnitMultiplier() != nil, Multiplier: l.GetUnitMultiplier().GetValue(),
		}
		if g.Override != o {
			t.Errorf("descriptor %d has override %+v, want %+v", i, g.Override, o)
		}
		if g.HasAddend != (w.HitsAddend != nil) || g.Addend != w.HitsAddend.GetValue() || g.Refund != w.IsNegativeHits {
			t.Errorf("descriptor %d has addend %d, %v, refund %v; want %v", i, g.Addend, g.HasAddend, g.Refund, w)
		}
	}
}

func decodeSeeds(t testing.TB) [][]byte {
	plain := encodeRequest(t, request("basic", descriptor("key1", "foo", "key2", "")))
	full := request("d", override(descriptor("k", "v"), 42, typev3.RateLimitUnit_MINUTE), addend(descriptor("a", "b"), 1<<63), descriptor())
	full.HitsAddend = 7
	full.Descriptors[0].Limit.UnitMultiplier = wrapperspb.UInt32(30)
	full.Descriptors[1].IsNegativeHits = true
	group := protowire.AppendTag(nil, 9, protowire.StartGroupType)
	group = protowire.AppendVarint(protowire.AppendTag(group, 1, protowire.VarintType), 5)
	group = protowire.AppendTag(group, 9, protowire.EndGroupType)
	twice := append(encodeRequest(t, &common.RateLimitDescriptor{Limit: &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3}}),
		encodeRequest(t, override(addend(descriptor(), 0), 0, typev3.RateLimitUnit_DAY))...)
	merged := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), twice)
	mistyped := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 9)
	return [][]byte{
		nil, plain, encodeRequest(t, full), append(group, plain...), merged, append(mistyped, plain...), plain[:len(plain)-1],
		{0}, {0x0b}, {0x0c}, bytes.Repeat([]byte{0xff}, 11), {0x1a, 0},
	}
}

// Property: for messages in valid UTF-8, Decode agrees with proto.Unmarshal, also about malformed ones.
func FuzzDecode(f *testing.F) {
	for _, b := range decodeSeeds(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got RateLimitRequest
		err := got.Decode(b, RequestLimits{Message: 1 << 30, Value: 1 << 30, Descriptors: 1 << 30, Entries: 1 << 30})
		var want pb.RateLimitRequest
		wantErr := proto.Unmarshal(b, &want)
		if wantErr != nil && strings.Contains(wantErr.Error(), "UTF-8") {
			return // may fail there and here for other reasons, or not at all here
		}
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("error %v, want %v", err, wantErr)
		}
		if err == nil {
			sameRequest(t, &got, &want)
		}
	})
}

func TestDecodeReuse(t *testing.T) {
	var r RateLimitRequest
	for range 2 {
		for _, b := range decodeSeeds(t) {
			var want pb.RateLimitRequest
			if proto.Unmarshal(b, &want) != nil {
				continue
			}
			if err := r.Decode(b, RequestLimits{}.withDefaults()); err != nil {
				t.Fatal(err)
			}
			sameRequest(t, &r, &want)
		}
	}
}

func TestDecodeOpaque(t *testing.T) {
	const value = "a\xff\xfeb"
	b := bytes.Replace(encodeRequest(t, request("d", descriptor("k", "1234"))), []byte("1234"), []byte(value), 1)
	if proto.Unmarshal(b, &pb.RateLimitRequest{}) == nil {
		t.Fatal("the message is not hostile: proto.Unmarshal takes it")
	}
	var r RateLimitRequest
	if err := r.Decode(b, RequestLimits{}.withDefaults()); err != nil {
		t.Fatal(err)
	}
	if got := r.Descriptors[0].Entries[0].Value; got != value || utf8.ValidString(got) {
		t.Errorf("value %q, want %q", got, value)
	}
}

func TestDecodeExcess(t *testing.T) {
	repeat := func(n int, d *common.RateLimitDescriptor) (ds []*common.RateLimitDescriptor) {
		for range n {
			ds = append(ds, d)
		}
		return ds
	}
	many := descriptor(slices.Repeat([]string{"k", "v"}, 64)...)
	long := strings.Repeat("x", 64<<10)
	for _, tt := range []struct {
		name string
		req  *pb.RateLimitRequest
		want excess
	}{
		{"descriptors at the bound", request("d", repeat(256, descriptor("k", "v"))...), within},
		{"descriptors beyond", request("d", repeat(257, descriptor("k", "v"))...), excessDescriptors},
		{"descriptors far beyond", request("d", repeat(10_000, descriptor("k", "v"))...), excessDescriptors},
		{"entries at the bound", request("d", many), within},
		{"entries beyond", request("d", with(proto.CloneOf(many), func(d *common.RateLimitDescriptor) {
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{})
		})), excessEntries},
		{"value at the bound", request("d", descriptor("k", long)), within},
		{"value beyond", request("d", descriptor("k", long+"x")), excessValue},
		{"key beyond", request("d", descriptor(long+"x", "v")), excessValue},
		{"domain beyond", request(long+"x", descriptor("k", "v")), excessValue},
		{"message beyond", request("d", repeat(17, descriptor("k", long))...), excessMessage},
	} {
		var r RateLimitRequest
		if err := r.Decode(encodeRequest(t, tt.req), RequestLimits{}.withDefaults()); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if r.Excess != tt.want {
			t.Errorf("%s: excess %q, want %q", tt.name, r.Excess, tt.want)
		}
		if len(r.Descriptors) > 256 || len(r.entries) > 256*64 {
			t.Errorf("%s: kept %d descriptors, %d entries", tt.name, len(r.Descriptors), len(r.entries))
		}
	}
}

func TestDecodeAllocs(t *testing.T) {
	b := encodeRequest(t, request("basic", descriptor("key1", "foo"), addend(descriptor("key2", "bar"), 3)))
	var r RateLimitRequest
	if n := testing.AllocsPerRun(100, func() { _ = r.Decode(b, RequestLimits{}.withDefaults()) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
