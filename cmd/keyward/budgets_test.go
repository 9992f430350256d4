package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/api"
)

// budgetMembers starts the pages of two members, of which the first knows the name of a key that the second owns.
func budgetMembers(t *testing.T) (first string) {
	t.Helper()
	made := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	b := page(t, map[string]any{"/cluster": api.ClusterStatus{Self: "pod-b"}, "/v1/budgets": api.Budgets{Member: "pod-b", Total: 203, Keys: []api.BudgetStatus{
		{Digest: "02", Algorithm: "fixed_window", Limit: 1000, Window: "1h0m0s", Spent: 700, Held: 250, Left: 50, Open: 3, Oldest: &made, Reset: 1378},
		{Digest: "03", Algorithm: "token_bucket", Limit: 10, Window: "1s", Spent: 0, Held: 0, Left: 10, Reset: 1},
	}}})
	return page(t, map[string]any{
		"/cluster": api.ClusterStatus{Self: "pod-a", Members: []api.MemberStatus{{ID: "pod-b", Role: "member", Page: b}}},
		"/v1/budgets": api.Budgets{
			Member: "pod-a", Total: 1, Names: map[string]api.BudgetName{"02": {Domain: "llm", Name: "tenant=acme"}},
			Keys: []api.BudgetStatus{{Domain: "llm", Name: "streams=acme", Digest: "01", Algorithm: "in_flight", Limit: 16, Window: "10m0s", Held: 4, Left: 12, Open: 4, Oldest: &made, Reset: 600}},
		},
	})
}

func TestBudgetsGolden(t *testing.T) {
	f := lookBudgets(t.Context(), []string{"http://" + budgetMembers(t)})
	f.Time = time.Date(2026, 11, 25, 12, 1, 10, 0, time.UTC)
	for file, to := range map[string]size{"all.txt": {}, "small.txt": {60, 5}} {
		var b bytes.Buffer
		f.draw(&b, to)
		golden(t, "testdata/budgets/"+file, b.String())
	}
}

func TestBudgetsCommand(t *testing.T) {
	a := budgetMembers(t)
	for _, flag := range []string{"--json", "--output=json"} {
		out, err := run(t, "budgets", "--member", a, flag)
		var f budgetFrame
		if err != nil || json.Unmarshal([]byte(out), &f) != nil || f.Total != 204 || len(f.Keys) != 3 || !slices.Equal(f.Members, []string{"pod-a", "pod-b"}) {
			t.Fatalf("%v\n%s", err, out)
		}
		if k := f.Keys[0]; k.Name != "tenant=acme" || k.Owner != "pod-b" || k.Spent != 700 || k.Held != 250 || k.Left != 50 {
			t.Errorf("the key with most of its limit used: %+v", k)
		}
	}
	empty := page(t, map[string]any{"/cluster": api.ClusterStatus{Self: "a"}, "/v1/budgets": api.Budgets{Member: "a"}})
	if out, err := run(t, "budgets", "--member", empty); err != nil || !strings.Contains(out, "No key has holds.") {
		t.Errorf("none: %v\n%s", err, out)
	}
	for args, why := range map[string]string{
		"--member 127.0.0.1:1": "connection refused", "--every 0s": "want more than 0", "--output yaml": "want one of", "--json --output json": "none of the others can be",
	} {
		if out, err := run(t, append([]string{"budgets"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
}

// TestBudgetsWriteNothingElse requires that values of clients do not move the cursor.
func TestBudgetsWriteNothingElse(t *testing.T) {
	evil := "k=\x1b[2J\r\n\u202e"
	f := newBudgetFrame(time.Unix(1e9, 0), []said{{budgets: api.Budgets{Member: evil, Keys: []api.BudgetStatus{{Domain: evil, Name: evil, Digest: "1"}}}}})
	var b bytes.Buffer
	f.draw(&b, size{})
	if strings.ContainsAny(b.String(), "\x1b\r\u202e") {
		t.Errorf("%q", b.String())
	}
}
