package app

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/api"
)

// hold makes a hold of that id, or settles it with the operation op, and requires that the answer is OK. Its connection is
// open until the test ends: requests in flight end with it.
func (p *process) hold(t *testing.T, key, id, op string, hits uint64) {
	t.Helper()
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	d := &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: "v"}}}
	if op != "" {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: rls.HoldEntry, Value: op})
	}
	if hits > 0 {
		d.HitsAddend = wrapperspb.UInt64(hits)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), rls.HoldIDHeader, id)
	r, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{d}})
	if err != nil || r.GetOverallCode() != pb.RateLimitResponse_OK {
		t.Fatalf("%s %s: %v %v", key, op, r, err)
	}
}

// TestBudgetsOfASidecar requires that every reading shows what is spent, held and left, and that reaching 80 and 100 % of
// a limit is logged, or written to the audit log of a rule with audit logs.
func TestBudgetsOfASidecar(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	p := launch(t, "a", "--audit-log", path)
	eventually(t, "ready", p.up)
	p.hold(t, "budget", "1", "", 0) // the rule's 50
	p.hold(t, "budget", "1", "commit", 20)
	p.hold(t, "budget", "2", "", 60)
	p.hold(t, "streams", "1", "", 0)

	c := read[api.CounterStatus](t, p, "/v1/counters?domain=d&key=budget=v")
	if want := (api.HeldHits{Spent: 20, Held: 60, Left: 20, Open: 1}); c.Count != 80 || c.Holds == nil || *c.Holds != want {
		t.Errorf("/v1/counters: %+v %+v", c, c.Holds)
	}
	if c := read[api.CounterStatus](t, p, "/v1/counters?domain=d&key=k=v"); c.Holds != nil {
		t.Errorf("a rule without holds: %+v", c.Holds)
	}
	if e := read[api.Explanation](t, p, "/v1/explain?domain=d&key=budget=v"); e.Counter.Holds == nil || e.Counter.Holds.Held != 60 || e.Counter.Holds.Spent != 20 {
		t.Errorf("/v1/explain: %+v", e.Counter)
	}
	b := read[api.Budgets](t, p, "/v1/budgets")
	if b.Total != 2 || len(b.Keys) != 2 {
		t.Fatalf("/v1/budgets: %+v", b)
	}
	k := b.Keys[0]
	if k.Domain != "d" || k.Name != "budget=v" || k.Limit != 100 || k.Spent != 20 || k.Held != 60 || k.Left != 20 || k.Open != 1 ||
		k.Oldest == nil || k.Reset <= 0 || k.Window != "1h0m0s" || b.Names[k.Digest] != (api.BudgetName{Domain: "d", Name: "budget=v"}) {
		t.Errorf("/v1/budgets: %+v", k)
	}
	if k = b.Keys[1]; k.Name != "streams=v" || k.Algorithm != "in_flight" || k.Limit != 16 || k.Spent != 0 || k.Held != 1 || k.Left != 15 {
		t.Errorf("/v1/budgets: %+v", k)
	}
	eventually(t, "a log line", func() bool { return strings.Contains(p.log.String(), "budget used") })
	if s := p.log.String(); !strings.Contains(s, k.Digest) && !strings.Contains(s, b.Keys[0].Digest) || strings.Contains(s, "budget=v") {
		t.Errorf("the log has no digest, or a value of a client:\n%s", s)
	}

	p.hold(t, "audited", "1", "", 100)
	eventually(t, "an audit record", func() bool { return len(auditRecords(t, path)) == 1 })
	if r := auditRecords(t, path)[0]; r.Kind != "budget_100" || r.Key != "audited=v" || r.Used != 100 || r.Limit != 100 || r.Time.IsZero() {
		t.Errorf("%+v", r)
	}
	_, text := p.get("/metrics")
	for _, series := range []string{
		`keyward_budget_events_total{level="80"} 1`, `keyward_budget_events_total{level="100"} 1`, "keyward_holds_open 3", "keyward_holds_open_hits 161",
		"keyward_holds_reserved_total 4", "keyward_holds_given_back_hits_total 30",
	} {
		if !strings.Contains(string(text), "\n"+series+"\n") {
			t.Errorf("no %s in the metrics", series)
		}
	}
}

// TestEveryMemberReportsHeldHits requires that the members that do not own a key report what the owner holds.
func TestEveryMemberReportsHeldHits(t *testing.T) {
	t.Parallel()
	all := trio(t)
	all[0].hold(t, "budget", "1", "", 30)
	for _, p := range all {
		c := read[api.CounterStatus](t, p, "/v1/counters?domain=d&key=budget=v")
		if want := (api.HeldHits{Held: 30, Left: 70, Open: 1}); c.Holds == nil || *c.Holds != want {
			t.Errorf("%s: %+v %+v", p.name, c, c.Holds)
		}
	}
}

func TestNamedKeysAreBounded(t *testing.T) {
	var n namedKeys
	now := time.Unix(1e9, 0)
	for i := range uint64(maxNamedKeys + 10) {
		n.add([2]uint64{i}, api.BudgetName{Name: "k"}, now)
	}
	if got := len(n.all(now)); got != maxNamedKeys {
		t.Errorf("%d names", got)
	}
	if got := len(n.all(now.Add(namedFor + time.Second))); got != 0 {
		t.Errorf("%d old names", got)
	}
}

func TestBudgetLogsAreBounded(t *testing.T) {
	var l logBudget
	now := time.Unix(1e9, 0)
	logged := 0
	for range 3 * budgetLogsPerSecond {
		if _, ok := l.take(now); ok {
			logged++
		}
	}
	if dropped, ok := l.take(now.Add(time.Second)); logged != budgetLogsPerSecond || !ok || dropped != 2*budgetLogsPerSecond {
		t.Errorf("%d lines, then %v with %d dropped", logged, ok, dropped)
	}
}
