package peer

import (
	"reflect"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
)

func samplePoolRequests() PoolMessage {
	return PoolMessage{ID: 0x1112131415161718, Region: "eu", Requests: []federation.PoolRequest{
		{
			Key: federation.Key{0x2122232425262728, 0x3132333435363738}, Pool: 0x41424344, Epoch: 0x51525354, Boot: 6, Seq: 7,
			Rule: limit.Rule{Window: time.Minute, Limit: 0x81828384, Algorithm: limit.SlidingWindow}, Window: 9, Have: 10, Left: 8,
			Tokens: 11, Past: federation.Past{Window: 8, Have: 12}, Note: []byte("note"), Name: "d_k_v_",
		},
		{Key: federation.Key{1, 2}, Rule: limit.Rule{Window: time.Second, Limit: 3}},
	}}
}

func samplePoolGrants() PoolMessage {
	return PoolMessage{ID: 0x1112131415161718, Reply: true, Grants: []federation.PoolGrant{{
		Key: federation.Key{0x2122232425262728, 0x3132333435363738}, Seq: 4, Window: 5, Total: 6, Used: 7, Usable: 8, Left: time.Hour,
		Others: []federation.RegionLine{{Region: "us", Granted: 9, Left: 10, Age: time.Second, Note: []byte{1, 2, 3}}},
	}}}
}

// encodePool returns the frame of a message that fits into one.
func encodePool(t *testing.T, m PoolMessage) []byte {
	t.Helper()
	b, more := appendPool(nil, &m, 0x0a0b0c0d0e0f1011)
	if more {
		t.Fatal("the message does not fit into one frame")
	}
	return b
}

func TestGoldenPools(t *testing.T) {
	move := lease.Batch{Kind: lease.Notify, Notices: []lease.Notice{
		{Key: [2]uint64{1, 2}, Window: 3, Limit: 4, Left: time.Second, Kind: lease.Move, Boot: 0x5152535455565758, EndsAt: 0x6162636465666768},
	}}
	b, err := appendLease(nil, &move, 9, new(counterwire.Writers))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, map[string][]byte{
		"pool-requests": encodePool(t, samplePoolRequests()), "pool-grants": encodePool(t, samplePoolGrants()), "lease-move": b,
	})
}

// What a member sends, another one reads: also messages that need several frames.
func TestPoolMessages(t *testing.T) {
	large := PoolMessage{ID: 1, Region: "ap"}
	for i := range 3 * maxPoolItems {
		r := samplePoolRequests().Requests[0]
		r.Seq = uint64(i + 1)
		large.Requests = append(large.Requests, r)
	}
	for name, sent := range map[string]PoolMessage{"requests": samplePoolRequests(), "grants": samplePoolGrants(), "large": large, "empty": {ID: 3, Reply: true}} {
		got := PoolMessage{ID: sent.ID, Reply: sent.Reply, Region: sent.Region}
		rest, frames := sent, 0
		for more := true; more; frames++ {
			var b []byte
			b, more = appendPool(nil, &rest, 9)
			typ, payload, _, ok, err := nextFrame(b)
			if err != nil || !ok || typ != framePool {
				t.Fatalf("%s: frame %d of type %d: %v", name, frames, typ, err)
			}
			m, at, err := parsePool(payload)
			if err != nil || at != 9 || m.More != more || m.ID != sent.ID {
				t.Fatalf("%s: frame %d: %+v, %v", name, frames, m, err)
			}
			got.Requests, got.Grants = append(got.Requests, m.Requests...), append(got.Grants, m.Grants...)
		}
		if !reflect.DeepEqual(got, sent) {
			t.Errorf("%s: read\n%+v, not\n%+v", name, got, sent)
		}
	}
}

// The lines of more regions than a frame has room for are left out, and the grant remains.
func TestGrantWithTooManyLines(t *testing.T) {
	m := samplePoolGrants()
	for range 250 {
		m.Grants[0].Others = append(m.Grants[0].Others, federation.RegionLine{Region: "a region", Note: make([]byte, federation.MaxNote)})
	}
	_, payload, _, ok, err := nextFrame(encodePool(t, m))
	if err != nil || !ok {
		t.Fatal(err)
	}
	got, _, err := parsePool(payload)
	if err != nil || len(got.Grants) != 1 || got.Grants[0].Total != 6 || len(got.Grants[0].Others) == 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// A message that ends too early, or has more items than a message may have, is refused.
func TestMalformedPoolMessages(t *testing.T) {
	for _, m := range []PoolMessage{samplePoolRequests(), samplePoolGrants()} {
		_, payload, _, _, err := nextFrame(encodePool(t, m))
		if err != nil {
			t.Fatal(err)
		}
		for n := range payload {
			if _, _, err := parsePool(payload[:n]); err == nil {
				t.Errorf("%d of %d bytes are read without an error", n, len(payload))
			}
		}
	}
}

func FuzzParsePool(f *testing.F) {
	a, b := samplePoolRequests(), samplePoolGrants()
	for _, m := range []*PoolMessage{&a, &b} {
		frame, _ := appendPool(nil, m, 9)
		f.Add(frame[5:])
	}
	f.Fuzz(func(_ *testing.T, payload []byte) {
		m, _, err := parsePool(payload)
		if err == nil && len(m.Requests)+len(m.Grants) > maxPoolItems {
			panic("more items than a message may have")
		}
	})
}
