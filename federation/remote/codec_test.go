package remote

import (
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

var update = flag.Bool("update", false, "rewrite the golden encodings; never for a version that has been released")

// sampleRequest has distinct values in all fields.
func sampleRequest() federation.PoolRequest {
	return federation.PoolRequest{
		Key:  federation.Key{0x0102030405060708, 0x1112131415161718},
		Rule: limit.Rule{Window: time.Hour, Limit: 0x21222324, Burst: 0x31323334, Algorithm: limit.SlidingWindow},
		Pool: 0x4142434445464748, Epoch: 0x51525354, Boot: 0x6162636465666768, Seq: 0x7172737475767778,
		Window: 0x0182838485868788, Have: 0x9192939495969798, Left: 0xa1a2a3a4a5a6a7a8, Tokens: 0xb1b2b3b4b5b6b7b8,
		Past: federation.Past{Window: -2, Have: 0xc1c2c3c4c5c6c7c8}, Note: []byte("a note"), Name: "edge_key_value_",
	}
}

// sampleGrant has distinct values in all fields.
func sampleGrant() federation.PoolGrant {
	return federation.PoolGrant{
		Key: federation.Key{0x0102030405060708, 0x1112131415161718}, Seq: 0x2122232425262728, Window: 0x3132333435363738,
		Total: 0x4142434445464748, Used: 0x5152535455565758, Usable: 0x6162636465666768, Left: 90 * time.Second,
		Others: []federation.RegionLine{
			{Region: "b", Granted: 0x7172737475767778, Left: 0x8182838485868788, Age: 1500 * time.Millisecond, Note: []byte("of b")},
			{Region: "c", Granted: 1},
		},
	}
}

// TestGolden requires that the layout of version 1 never changes.
func TestGolden(t *testing.T) {
	rs := []federation.PoolRequest{sampleRequest()}
	for name, b := range map[string][]byte{
		"hello":   helloFrame(hello{1, 1, 7, "eu"}),
		"welcome": welcomeFrame(welcome{version: 1}),
		"refused": welcomeFrame(welcome{reason: "no"}),
		"call":    callFrame(&call{0x0102030405060708, 3 * time.Second, opLease, rs}),
		"reply":   replyFrames(0x0102030405060708, []federation.PoolGrant{sampleGrant()})[0],
		"error":   errorFrame(9, errors.New("store is away")),
		"ping":    simpleFrame(framePing),
		"goaway":  goAwayFrame("shutting down"),
	} {
		file := filepath.Join("testdata", "v1-"+name+".hex")
		got := hex.Dump(b)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || got != string(want) {
			t.Errorf("%s is now\n%swant\n%s%v", name, got, want, err)
		}
	}
}

// payload returns what follows the type of a frame.
func payload(frame []byte) []byte { return frame[frameLength+1:] }

func TestCallRoundTrip(t *testing.T) {
	long := sampleRequest()
	long.Note, long.Name = make([]byte, federation.MaxNote), strings.Repeat("n", maxName)
	for _, c := range []call{
		{id: 1, timeout: time.Microsecond, op: opHealthy},
		{id: math.MaxUint64, timeout: math.MaxUint32 * time.Microsecond, op: opReconcile, requests: []federation.PoolRequest{{}}},
		{op: opLease, timeout: time.Second, requests: []federation.PoolRequest{sampleRequest(), {}, long}},
	} {
		got, err := parseCall(payload(callFrame(&c)))
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%+v %v, want %+v", got, err, c)
		}
	}
	long.Name += "n"
	got, err := parseCall(payload(callFrame(&call{op: opLease, requests: []federation.PoolRequest{long}})))
	if err != nil || got.requests[0].Name != "" || got.timeout != time.Microsecond {
		t.Errorf("a long name: %d bytes of it, timeout %v, %v", len(got.requests[0].Name), got.timeout, err)
	}
}

// TestLargeReplies requires that replies of any size are divided into frames.
func TestLargeReplies(t *testing.T) {
	var gs []federation.PoolGrant
	for n := range 100 {
		g := sampleGrant()
		g.Seq, g.Others = uint64(n), nil
		for range rand.N(256) {
			g.Others = append(g.Others, federation.RegionLine{Region: strings.Repeat("r", 64), Note: make([]byte, federation.MaxNote)})
		}
		gs = append(gs, g)
	}
	frames := replyFrames(7, gs)
	var got []federation.PoolGrant
	for i, f := range frames {
		r, err := parseReply(payload(f))
		if last := i == len(frames)-1; err != nil || len(f) > frameLength+maxFrame || r.id != 7 || (r.status == statusLast) != last {
			t.Fatalf("frame %d has %d bytes, status %d: %v", i, len(f), r.status, err)
		}
		got = append(got, r.grants...)
	}
	if len(frames) < 3 || !reflect.DeepEqual(got, gs) {
		t.Errorf("%d frames, %d grants of %d", len(frames), len(got), len(gs))
	}
	if got := replyFrames(7, nil); len(got) != 1 {
		t.Errorf("%d frames without grants", len(got))
	}
}

// TestLargeCalls requires that any requests fit into the frames of their calls.
func TestLargeCalls(t *testing.T) {
	r := sampleRequest()
	r.Note, r.Name = make([]byte, federation.MaxNote), strings.Repeat("n", maxName)
	rs := make([]federation.PoolRequest, 3000)
	for i := range rs {
		if rs[i] = sampleRequest(); i < 400 {
			rs[i] = r
		}
	}
	for len(rs) > 0 {
		n := fitting(rs)
		frame := callFrame(&call{op: opLease, requests: rs[:n]})
		if got, err := parseCall(payload(frame)); err != nil || len(frame) > frameLength+maxFrame || len(got.requests) != n || n < 100 {
			t.Fatalf("%d requests in %d bytes: %v", n, len(frame), err)
		}
		rs = rs[n:]
	}
}

// FuzzCall requires that no input makes the decoder fail or allocate much, and that what it accepts survives a round trip.
func FuzzCall(f *testing.F) {
	f.Add(payload(callFrame(&call{7, time.Second, opLease, []federation.PoolRequest{sampleRequest(), {}}})))
	f.Add(payload(callFrame(&call{op: opHealthy})))
	f.Add([]byte(strings.Repeat("\xff", 200)))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseCall(b)
		if err != nil {
			return
		}
		if len(c.requests)*requestSize > len(b) {
			t.Fatalf("%d requests from %d bytes", len(c.requests), len(b))
		}
		c.timeout = max(c.timeout, time.Microsecond)
		if again, err := parseCall(payload(callFrame(&c))); err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%+v %v, want %+v", again, err, c)
		}
	})
}

// FuzzReply is FuzzCall for replies.
func FuzzReply(f *testing.F) {
	f.Add(payload(replyFrames(7, []federation.PoolGrant{sampleGrant(), {}})[0]))
	f.Add(payload(errorFrame(7, errors.New("store is away"))))
	f.Add([]byte(strings.Repeat("\xff", 200)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseReply(b)
		if err != nil || r.status == statusError {
			return
		}
		lines := 0
		for i := range r.grants {
			lines += len(r.grants[i].Others)
		}
		if len(r.grants)*grantSize+lines*lineSize > len(b) {
			t.Fatalf("%d grants and %d lines from %d bytes", len(r.grants), lines, len(b))
		}
		var again []federation.PoolGrant
		for _, frame := range replyFrames(r.id, r.grants) {
			part, err := parseReply(payload(frame))
			if err != nil {
				t.Fatal(err)
			}
			again = append(again, part.grants...)
		}
		if !reflect.DeepEqual(again, r.grants) {
			t.Fatalf("%+v, want %+v", again, r.grants)
		}
	})
}
