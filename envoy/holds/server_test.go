package holds

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/keyward/keyward/envoy/holds/client"
	pb "github.com/keyward/keyward/envoy/holds/keywardv1"
)

// expectUsage checks the usage of one limit.
func expectUsage(t *testing.T, c *client.HoldClient, d *pb.Descriptor, spent, held uint64, left uint32) {
	t.Helper()
	u, err := c.Usage(t.Context(), "llm", d)
	if err != nil {
		t.Fatal(err)
	}
	if got := u[0]; got.Spent != spent || got.Held != held || got.Left != left {
		t.Errorf("usage: %v, want spent %d, held %d, left %d", got, spent, held, left)
	}
}

func TestHolds(t *testing.T) {
	r := start(t)
	c := client.New(r.dial(t, nil), "me")
	acme := client.Descriptor("tenant", "acme")
	reserve := func(hits uint64, ds ...*pb.Descriptor) (*client.OpenHold, error) {
		return c.Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: ds, Hits: hits})
	}
	h, err := reserve(600, acme)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.ID) != 32 || h.Statuses[0].Reserved != 600 || h.Statuses[0].Remaining != 400 || h.Statuses[0].Name != "tokens" || h.Statuses[0].Ttl.AsDuration() != 10*time.Minute {
		t.Errorf("%+v", h)
	}
	expectUsage(t, c, acme, 0, 600, 400)
	refused := (*client.RefusedError)(nil)
	if _, err := reserve(500, acme); !errors.As(err, &refused) || refused.RetryAfter() == 0 {
		t.Errorf("beyond the limit: %v", err)
	}
	second, err := reserve(0, acme) // the rule's
	if err != nil || second.Statuses[0].Reserved != 100 {
		t.Fatal(second, err)
	}
	expectUsage(t, c, acme, 0, 700, 300)
	for range 2 { // only the first one counts
		if err := h.Commit(t.Context(), 250); err != nil {
			t.Fatal(err)
		}
		expectUsage(t, c, acme, 250, 100, 650)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	expectUsage(t, c, acme, 350, 0, 650)
	third, err := reserve(50, acme)
	if err != nil {
		t.Fatal(err)
	}
	if err := third.Commit(t.Context(), 70); err != nil { // more than was reserved
		t.Fatal(err)
	}
	expectUsage(t, c, acme, 420, 0, 580)
}

func TestSetsAreHeldTogether(t *testing.T) {
	r := start(t)
	c := client.New(r.dial(t, nil), "me")
	acme, stream, plain := client.Descriptor("tenant", "acme"), client.Descriptor("streams", "acme"), client.Descriptor("plain", "acme")
	plain.Hits = proto.Uint64(1)
	ask := client.Reserve{Domain: "llm", Descriptors: []*pb.Descriptor{acme, stream, plain, client.Descriptor("other", "x")}, Hits: 300}
	var open []*client.OpenHold
	for range 2 {
		h, err := c.Reserve(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		if h.Statuses[0].Reserved != 300 || h.Statuses[1].Reserved != 1 || h.Statuses[2].Reserved != 0 || h.Statuses[3].Counted {
			t.Errorf("%v", h.Statuses)
		}
		open = append(open, h)
	}
	if _, err := c.Reserve(t.Context(), ask); err == nil { // no slot
		t.Error("a third request in flight was admitted")
	}
	expectUsage(t, c, acme, 0, 600, 400) // the refused set has charged no tokens
	expectUsage(t, c, stream, 0, 2, 0)
	expectUsage(t, c, plain, 2, 0, 3)
	if err := open[0].Commit(t.Context(), 120); err != nil { // and ends the request in flight
		t.Fatal(err)
	}
	expectUsage(t, c, acme, 120, 300, 580)
	expectUsage(t, c, stream, 0, 1, 1)
	expectUsage(t, c, plain, 2, 0, 3)
}

func TestTTL(t *testing.T) {
	r := start(t)
	c := client.New(r.dial(t, nil), "me")
	ask := client.Reserve{Domain: "llm", Descriptors: client.One("tenant", "acme"), TTL: time.Minute}
	h, err := c.Reserve(t.Context(), ask)
	if err != nil || h.Statuses[0].Ttl.AsDuration() != time.Minute {
		t.Fatal(h, err)
	}
	r.lone.advance(50 * time.Second)
	if ok, err := h.Extend(t.Context(), time.Minute); err != nil || !ok {
		t.Fatal(ok, err)
	}
	r.lone.advance(50 * time.Second)
	expectUsage(t, c, ask.Descriptors[0], 0, 100, 900)
	r.lone.advance(20 * time.Second) // lapsed; it stays charged, because the rule says so
	expectUsage(t, c, ask.Descriptors[0], 100, 0, 900)
	if ok, err := h.Extend(t.Context(), 0); err != nil || ok {
		t.Error("a hold that has lapsed was extended")
	}
	ask.TTL = 24 * time.Hour // never longer than the rule's
	if h, err = c.Reserve(t.Context(), ask); err != nil || h.Statuses[0].Ttl.AsDuration() != 10*time.Minute {
		t.Fatal(h, err)
	}
}

func TestShadowRulesHold(t *testing.T) {
	r := start(t)
	c := client.New(r.dial(t, nil), "me")
	h, err := c.Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: client.One("dark", "x"), Hits: 25})
	if err != nil || h.Statuses[0].Reserved != 25 {
		t.Fatal(h, err)
	}
}

// Faults of callers are errors, and charge nothing.
func TestFaults(t *testing.T) {
	r := start(t)
	conn := r.dial(t, nil)
	acme := client.One("tenant", "acme")
	long := strings.Repeat("x", maxID+1)
	for name, tc := range map[string]struct {
		method string
		r      proto.Message
		code   codes.Code
		says   string
	}{
		"no domain":       {"Reserve", &pb.ReserveRequest{Descriptors: acme}, codes.InvalidArgument, "domain must not be empty"},
		"no descriptors":  {"Usage", &pb.UsageRequest{Domain: "llm"}, codes.InvalidArgument, "descriptors must not be empty"},
		"no entries":      {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: []*pb.Descriptor{{}}}, codes.InvalidArgument, "descriptor 0 has no entries"},
		"no key":          {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: client.One("", "x")}, codes.InvalidArgument, `"" cannot be a key`},
		"an operation":    {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: client.One("keyward.hold", "commit")}, codes.InvalidArgument, `"keyward.hold" cannot be a key`},
		"many":            {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: make([]*pb.Descriptor, maxDescriptors+1)}, codes.InvalidArgument, "more than 64 descriptors"},
		"hits":            {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: acme, Hits: math.MaxUint32 + 1}, codes.InvalidArgument, "hits must be at most 4294967295"},
		"own hits":        {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: []*pb.Descriptor{{Entries: acme[0].Entries, Hits: proto.Uint64(math.MaxUint64)}}}, codes.InvalidArgument, "hits must be at most"},
		"negative ttl":    {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: acme, Ttl: durationpb.New(-time.Second)}, codes.InvalidArgument, "ttl must be from 1s to 24h0m0s"},
		"zero ttl":        {"Extend", &pb.ExtendRequest{Domain: "llm", Descriptors: acme, Id: "x", Ttl: durationpb.New(0)}, codes.InvalidArgument, "ttl must be from"},
		"broken ttl":      {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: acme, Ttl: &durationpb.Duration{Seconds: 1, Nanos: -1}}, codes.InvalidArgument, "ttl: "},
		"long id":         {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: acme, Id: long}, codes.InvalidArgument, "id is longer than 256 bytes"},
		"long caller":     {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: acme, Caller: long}, codes.InvalidArgument, "caller is longer"},
		"no id":           {"Release", &pb.ReleaseRequest{Domain: "llm", Descriptors: acme}, codes.InvalidArgument, "id must not be empty"},
		"long settled id": {"Commit", &pb.CommitRequest{Domain: "llm", Descriptors: acme, Id: long}, codes.InvalidArgument, "id is longer"},
		"actual":          {"Commit", &pb.CommitRequest{Domain: "llm", Descriptors: acme, Id: "x", Actual: proto.Uint64(1 << 40)}, codes.InvalidArgument, "hits must be at most"},
		"some actuals": {"Commit", &pb.CommitRequest{Domain: "llm", Descriptors: []*pb.Descriptor{acme[0], {Entries: acme[0].Entries, Hits: proto.Uint64(3)}}, Id: "x"},
			codes.InvalidArgument, "actual must be set"},
		"no holds": {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: client.One("plain", "acme")}, codes.FailedPrecondition, "no rule of these descriptors has holds"},
		"long":     {"Reserve", &pb.ReserveRequest{Domain: "llm", Descriptors: client.One("tenant", strings.Repeat("x", MaxMessage))}, codes.ResourceExhausted, "longer than 131072 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			err := conn.Invoke(t.Context(), holdsService+tc.method, tc.r, &pb.ReserveResponse{})
			if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %v: %s", err, tc.code, tc.says)
			}
		})
	}
	c := client.New(conn, "")
	expectUsage(t, c, acme[0], 0, 0, 1000)
	expectUsage(t, c, client.Descriptor("plain", "acme"), 0, 0, 5)
}

// Who does not know the id, or has another key, can settle nothing.
func TestOnlyTheCallerSettles(t *testing.T) {
	r := start(t)
	c := client.New(r.dial(t, nil), "me")
	acme := client.One("tenant", "acme")
	h, err := c.Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: acme, Hits: 400})
	if err != nil {
		t.Fatal(err)
	}
	conn := r.dial(t, nil)
	for name, release := range map[string]*pb.ReleaseRequest{
		"another id":     {Domain: "llm", Descriptors: acme, Id: strings.Repeat("0", 32)},
		"another tenant": {Domain: "llm", Descriptors: client.One("tenant", "evil"), Id: h.ID},
		"another domain": {Domain: "other", Descriptors: acme, Id: h.ID},
	} {
		if err := conn.Invoke(t.Context(), holdsService+"Release", release, &pb.SettleResponse{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		expectUsage(t, c, acme[0], 0, 400, 600)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	expectUsage(t, c, acme[0], 0, 0, 1000)
}

// A caller that gives up releases what it has reserved.
func TestAbandonedReservesAreReleased(t *testing.T) {
	r := start(t)
	c := client.New(r.dial(t, nil), "me")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Reserve(ctx, client.Reserve{Domain: "llm", Descriptors: client.One("tenant", "acme")}); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
	expectUsage(t, c, client.Descriptor("tenant", "acme"), 0, 0, 1000)
}

// Holds count as those of Envoy do: what is used, and of what is refused the part beyond the limit as over.
func TestStatistics(t *testing.T) {
	r := start(t)
	c := client.New(r.dial(t, nil), "me")
	ask := client.Reserve{Domain: "llm", Descriptors: client.One("tenant", "acme"), Hits: 600}
	h, _ := c.Reserve(t.Context(), ask)
	c.Reserve(t.Context(), ask)
	h.Commit(t.Context(), 250)
	c.Usage(t.Context(), "llm", ask.Descriptors[0])
	s := r.stats.Rule("llm.tenant")
	if s.TotalHits.Value() != 850 || s.OverLimit.Value() != 200 || s.WithinLimit.Value() != 250 {
		t.Errorf("total %d, over %d, within %d", s.TotalHits.Value(), s.OverLimit.Value(), s.WithinLimit.Value())
	}
	if n := r.stats.Method("Reserve").TotalRequests.Value(); n != 2 {
		t.Errorf("%d calls of Reserve", n)
	}
}
