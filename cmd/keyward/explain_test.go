package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/keyward/keyward/envoy/xds"
	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/ring"
)

// TestExplainGolden compares explanations from files.
func TestExplainGolden(t *testing.T) {
	t.Chdir("testdata/check")
	for file, args := range map[string][]string{
		"explain.rule.txt": {"shop", "plan=gold-7"},
		"explain.none.txt": {"shop", "plan=gold-7", "user=bob"},
		"explain.json":     {"shop", "tenant=acme", "-o", "json"},
		"explain.all.txt":  {"shop", "plan=gold-7", "+", "user=bob", "+", "plan=gold-7", "user=bob"},
	} {
		out, err := run(t, append([]string{"explain", "--rules", "suspicious", "--members", "pod-0,pod-1,pod-2"}, args...)...)
		if err != nil {
			t.Errorf("%q: %v", args, err)
		}
		golden(t, file, out)
	}
	for want, args := range map[string][]string{
		"want KEY=VALUE":               {"explain", "shop", "plan", "--rules", "suspicious"},
		"before and after each +":      {"explain", "shop", "plan=x", "+", "--rules", "suspicious"},
		"read rules":                   {"explain", "shop", "plan=x", "--rules", "nowhere"},
		"the weight is a whole number": {"explain", "shop", "tenant=x", "--rules", "suspicious", "--members", "a=0"},
	} {
		if _, err := run(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// page serves one answer at one path.
func page(t *testing.T, pages map[string]any) (addr string) {
	t.Helper()
	mux := http.NewServeMux()
	for path, v := range pages {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) })
	}
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// TestExplainLive asks a member that does not answer, then one that does.
func TestExplainLive(t *testing.T) {
	addr := page(t, map[string]any{"/v1/explain": api.Explanation{
		Domain: "edge", Matched: true, Rule: &api.ExplainRule{Path: []string{"edge", "api_key"}, File: "a.yaml", Line: 3, Limit: 5, Window: "1m0s", Algorithm: "fixed_window", Mechanism: "owner", Degraded: "local_share"},
		OwnerString: "alice", Position: "00000000000000aa", Owner: "pod-1", Successor: "pod-2", Verdict: api.VerdictOver, Why: "It \x1b[2Jis over.",
		Counter: &api.CounterStatus{Count: 5, Limit: 5, Reset: 12, Owner: "pod-1", Authority: "full"}, Headers: map[string]string{"retry-after": "12"},
	}})
	out, err := run(t, "explain", "edge", "api_key=alice", "--member", "127.0.0.1:1,"+addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"edge > api_key (a.yaml:3): 5 in 1m0s", "pod-1, its successor is pod-2 (owner string alice", "5 of 5, 0 left, resets in 12 s", "over_limit", "retry-after: 12"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Errorf("writes to the screen: %q", out)
	}
	for want, addr := range map[string]string{"connection refused": "127.0.0.1:1", "not served there": page(t, nil), "want host:port": "nowhere"} {
		if _, err := run(t, "explain", "edge", "api_key=alice", "--member", addr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

// TestExplainFair requires that an explanation distinguishes a tenant above its share from a limit that is used up, and
// that it lists the tenants.
func TestExplainFair(t *testing.T) {
	rules, err := config.Load([]config.File{{Name: "a.yaml", Content: []byte("domain: edge\ndescriptors:\n" +
		"- key: tenant\n  rate_limit: {unit: minute, requests_per_unit: 50}\n  metadata: {keyward: {fair: {entry: tenant, weights: {gold: 4}}}}\n")}},
		config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, m := admin.NewExplanation(rules, "edge", []config.Entry{{Key: "tenant", Value: "gold"}})
	tenants := []api.TenantStatus{{Tenant: "gold", Weight: 4, Used: 20, Asked: 30, Remaining: 0}}
	admin.SetDecision(&e, &m, admin.KeyDecision{
		Counter: api.CounterStatus{Count: 20, Limit: 50, Reset: 12, Authority: "full", Tenants: tenants}, Over: true, FairShare: true,
	})
	var b strings.Builder
	if err := writeExplain(&b, &e); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"fair by tenant (gold 4, others 1)", "gold: weight 4, 20 admitted of 30, 0 more now", "over_limit",
		"20 of 50 hits are counted in the current window, and the rest is left to other tenants (fair)",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// TestExplainRequest requires that a call is denied by exactly the descriptors that are over their limit.
func TestExplainRequest(t *testing.T) {
	rules, err := config.Load([]config.File{{Name: "a.yaml", Content: []byte("domain: edge\ndescriptors:\n" +
		"- {key: user, rate_limit: {unit: minute, requests_per_unit: 5, name: users}}\n- {key: path, rate_limit: {unit: minute, requests_per_unit: 5}}\n" +
		"- {key: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}\n")}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(admin.Handler(admin.Options{
		Gatherer: prometheus.NewRegistry(), Cluster: func() api.ClusterStatus { return api.ClusterStatus{} }, Ready: func() error { return nil },
		Explain: func(domain string, entries []config.Entry) (api.Explanation, error) {
			e, m := admin.NewExplanation(rules, domain, entries)
			if m.Kind == config.Limited {
				over := entries[0].Value == "busy"
				admin.SetDecision(&e, &m, admin.KeyDecision{Counter: api.CounterStatus{Count: 5, Limit: 5, Reset: 12, Authority: "full"}, Over: over, Lenient: false})
			}
			return e, nil
		},
	}))
	defer srv.Close()
	for args, want := range map[string]string{
		"user=bob + path=busy": "request  over_limit\nwhy      descriptor 2 (path=busy) denies it. The other descriptors are still charged, " +
			"unless STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT is set. Rules that replace others by name are not considered here.\n",
		"path=busy + trial=busy + path=busy": "request  over_limit\nwhy      descriptor 1 (path=busy) and descriptor 3 (path=busy) deny it. The other descriptors are still charged, " +
			"unless STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT is set.\n",
		"path=bob + trial=busy": "request  ok\nwhy      No descriptor is over its limit.\n",
		"a=b + c=d":             "request  no_rule\nwhy      No rule matches any of its descriptors.\n",
	} {
		out, err := run(t, append([]string{"explain", "edge", "--member", srv.URL}, strings.Fields(args)...)...)
		if err != nil || !strings.HasSuffix(out, "\n\n"+want) || strings.Count(out, "descriptor 1 of ") != 1 || strings.Count(out, "verdict ") != 1+strings.Count(args, "+") {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
	out, err := run(t, "explain", "edge", "user=bob", "+", "path=busy", "-o", "json", "--member", srv.URL)
	var r explainedRequest
	if err != nil || json.Unmarshal([]byte(out), &r) != nil || r.Verdict != api.VerdictOver || len(r.RefusedBy) != 1 || r.RefusedBy[0] != 1 || len(r.Descriptors) != 2 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestKeysReset sends what a person says to the socket of a sidecar.
func TestKeysReset(t *testing.T) {
	var got api.ResetOrder
	socket := serve(t, admin.SocketOptions{Reset: func(domain string, entries []config.Entry) (api.ResetResult, error) {
		got.Domain = domain
		for _, e := range entries {
			got.Descriptor.Entries = append(got.Descriptor.Entries, api.KeyValue(e))
		}
		if domain == "none" {
			return api.ResetResult{}, api.ErrNoCounter
		}
		return api.ResetResult{Before: 9, After: 2, Owner: "pod-1"}, nil
	}})
	out, err := run(t, "keys", "reset", "edge", "plan=gold", "user=a=b", "--admin", socket)
	if err != nil || out != "7 hits refunded at pod-1; 2 remain\n" {
		t.Errorf("%q %v", out, err)
	}
	if len(got.Descriptor.Entries) != 2 || got.Descriptor.Entries[1] != (api.KeyValue{Key: "user", Value: "a=b"}) {
		t.Errorf("%+v", got)
	}
	if _, err := run(t, "keys", "reset", "none", "plan=gold", "--admin", socket); err == nil || !strings.Contains(err.Error(), "no rule limits this descriptor") {
		t.Error(err)
	}
}

// TestXDSStatus compares the output for clients that are in step, behind, and that reject a version.
func TestXDSStatus(t *testing.T) {
	since := time.Now().Add(-time.Hour)
	served := []xdsServed{{"pod-0", xds.ServerStatus{
		Versions: map[string]string{"Cluster": "c2", "Listener": "l2", "RouteConfiguration": "r1"},
		Clients: []xds.Client{{Node: "envoy-1", Delta: true, Since: since, Types: map[string]xds.TypeStatus{
			"Cluster":            {Accepted: "c2", Sent: "c2"},
			"Listener":           {Accepted: "l1", Sent: "l2", Refused: "l2", Why: "address in use", RefusedAt: since},
			"RouteConfiguration": {Accepted: "r0", Sent: "r1"},
		}}},
	}}, {"xds", xds.ServerStatus{Versions: map[string]string{"Cluster": "c2"}}}}
	var b bytes.Buffer
	if err := writeXDS(&b, served, since.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"pod-0 ", "1 client\n", "envoy-1", "delta, for 1h0m0s", "in step  accepted c2", "REFUSED  accepted l1", "address in use", "behind  accepted r0", "all servers serve the same versions"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	if refused(served) != 1 {
		t.Errorf("%d refuse", refused(served))
	}
	served[1].Versions["Cluster"] = "c3"
	if !differ(served) {
		t.Error("they differ")
	}
}

// TestDiscover requires that each member in the answer of the first is asked once, and that silent ones are reported.
func TestDiscover(t *testing.T) {
	b := page(t, map[string]any{"/cluster": api.ClusterStatus{Self: "b", Inst: "2"}, "/v1/self": api.Self{Node: "b"}})
	a := page(t, map[string]any{"/cluster": api.ClusterStatus{Self: "a", Inst: "1", Members: []api.MemberStatus{{ID: "a", Page: "127.0.0.1:2"}, {ID: "b", Page: b}, {ID: "c", Page: "127.0.0.1:1"}}}})
	c, err := discover(t.Context(), []string{a, a})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.procs) != 2 || c.procs[0].cluster.Self != "a" || c.procs[0].self != nil || c.procs[1].self == nil {
		t.Errorf("%+v", c.procs)
	}
	if len(c.silent) != 1 || c.silent[0].Name != "c" {
		t.Errorf("%+v", c.silent)
	}
	if _, err := discover(t.Context(), []string{"127.0.0.1:1"}); err == nil {
		t.Error("no member answers, and no error")
	}
}

// TestRingShares holds the figures of show, plot and diff against each other.
func TestRingShares(t *testing.T) {
	three, err1 := ringOf([]string{"a", "b", "c=2"})
	four, err2 := ringOf([]string{"a", "b", "c=2", "d"})
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	sum := 0.0
	for _, m := range sharesOf(three) {
		sum += m.Share
		if m.Share < 0.9*m.Ideal || m.Share > 1.1*m.Ideal {
			t.Errorf("%+v", m)
		}
	}
	if sum < 1-1e-9 || sum > 1+1e-9 {
		t.Errorf("all own %v", sum)
	}
	c := changeOf(three, four)
	d := c.Members[3]
	if c.Ideal != 0.2 || d.ID != "d" || d.Before != 0 || d.Gives != 0 || d.Gets != d.After || d.Gets < c.Moved-1e-9 || c.Moved < 0.18 || c.Moved > 0.22 {
		t.Errorf("%+v", c)
	}
	back := changeOf(four, three)
	if back.Moved != c.Moved || back.Members[3].Gives < d.Gets-1e-9 {
		t.Errorf("there and back: %+v, %+v", c, back)
	}
	if same := changeOf(three, three); same.Moved != 0 || same.Ideal != 0 {
		t.Errorf("%+v", same)
	}
	for i, owner := range sectorsOf(three, 512) {
		if h := uint64((float64(i) + 0.5) / 512 * (1 << 63) * 2); three.Owner(h) != owner {
			t.Fatalf("sector %d", i)
		}
	}
	if names := sharesOf(new(ring.Ring)); len(names) != 0 {
		t.Errorf("%v", names)
	}
}

// TestRingPlot holds that a picture names every member, closes its elements and has no name that is markup.
func TestRingPlot(t *testing.T) {
	out, err := run(t, "ring", "plot", "--members", "pod-0,<b>&,pod-2", "-o", "svg")
	if err != nil || strings.Contains(out, "<b>") || !strings.Contains(out, "&lt;b&gt;&amp;") || strings.Count(out, "<path ") < 100 || !strings.HasSuffix(out, "</svg>\n") {
		t.Errorf("%v\n%.500s", err, out)
	}
	out, err = run(t, "ring", "plot", "--members", "pod-0")
	if err != nil || strings.Count(out, strings.Repeat("a", 64)) != 8 || !strings.Contains(out, "100.00 %  pod-0") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMan holds that every command that can be called has a page, and that the page holds its examples.
func TestMan(t *testing.T) {
	dir := t.TempDir()
	if _, err := run(t, "man", "--dir", dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "keyward-ring-diff.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`.TH KEYWARD\-RING\-DIFF 1`, `\-\-to`, ".SH EXAMPLES", `pod\-0,pod\-1`, `.BR keyward\-ring (1)`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if got := roff("a\n.b 'c' -d\\"); got != "a\n\\&.b \\(aqc\\(aq \\-d\\e" {
		t.Errorf("%q", got)
	}
}

// TestEveryCommandTeaches holds the house's rule about --help: each command says what it is for, and what prints has an
// example.
func TestEveryCommandTeaches(t *testing.T) {
	for _, c := range allCommands(newRoot()) {
		if c.Short == "" || c.Runnable() && c.Long == "" && c.Example == "" {
			t.Errorf("%s teaches nothing", c.CommandPath())
		}
	}
}

// allCommands is cmd and all commands below it, cobra's own left out.
func allCommands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		all = append(all, allCommands(sub)...)
	}
	return all
}
