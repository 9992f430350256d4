package app

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"net"
	"net/http"
	"testing"

	"github.com/keyward/keyward/internal/api"
)

// read fetches a JSON document of p.
func read[T any](t *testing.T, p *process, path string) (v T) {
	t.Helper()
	code, b := p.get(path)
	if err := json.Unmarshal(b, &v); code != http.StatusOK || err != nil {
		t.Fatalf("%s %s: %d %s %v", p.name, path, code, b, err)
	}
	return v
}

// post sends body to p's admin socket and decodes the answer into res.
func (p *process) post(t *testing.T, path string, body, res any) (status int) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", p.socket)
	}}}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Post("http://x"+path, "application/json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(res); err != nil && r.StatusCode == http.StatusOK {
		t.Fatal(err)
	}
	return r.StatusCode
}

// TestExplainAndReset has every member explain a key that is over its limit, resets the key through a member that
// does not own it, and has it explained again.
func TestExplainAndReset(t *testing.T) {
	t.Parallel()
	all := trio(t)
	all[0].hit(t, "alice", 1000)
	for _, p := range all {
		e := read[api.Explanation](t, p, "/v1/explain?domain=d&key=k=alice")
		if e.Verdict != api.VerdictOver || e.Counter == nil || e.Counter.Count != 1000 || e.Counter.Remaining != 0 || !e.Matched ||
			e.Rule.Limit != 1000 || e.Rule.Line != 4 || e.Owner == "" || e.Successor == "" || e.Owner == e.Successor || e.OwnerString != "alice" ||
			len(e.Position) != 16 || e.Headers["retry-after"] == "" || e.Headers["x-ratelimit-remaining"] != "0" {
			t.Errorf("%s: %+v", p.name, e)
		}
	}
	first := read[api.Explanation](t, all[0], "/v1/explain?domain=d&key=k=alice")
	var asked *process // not the owner
	for _, p := range all {
		if p.name != first.Owner {
			asked = p
		}
	}
	var r api.ResetResult
	order := api.ResetOrder{Domain: "d", Descriptor: first.Descriptor}
	if code := asked.post(t, "/reset", order, &r); code != http.StatusOK || r != (api.ResetResult{Before: 1000, Owner: first.Owner}) {
		t.Errorf("reset: %d %+v", code, r)
	}
	for _, p := range all {
		e := read[api.Explanation](t, p, "/v1/explain?domain=d&key=k=alice")
		if e.Verdict != api.VerdictOK || e.Counter.Count != 0 || e.Counter.Remaining != 1000 || e.Headers["x-ratelimit-remaining"] != "999" || e.Headers["retry-after"] != "" {
			t.Errorf("%s after the reset: %+v", p.name, e)
		}
	}
	if got := all[1].hit(t, "alice", 1).Statuses[0].LimitRemaining; got != 999 {
		t.Errorf("%d left of 1000 after a reset and a hit", got)
	}
	order.Descriptor.Entries[0].Key = "other"
	if code := asked.post(t, "/reset", order, &r); code != http.StatusNotFound {
		t.Errorf("reset of what nothing limits: %d", code)
	}
	if e := read[api.Explanation](t, asked, "/v1/explain?domain=d&key=other=1"); e.Verdict != api.VerdictNoRule || e.Matched || e.Counter != nil || e.Rule != nil {
		t.Errorf("no rule: %+v", e)
	}
}

func TestSelf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := launch(t, "a-0", "--join", "127.0.0.1:1", "--max-keys", "1234", "--data", dir, "--data-size", "100MiB")
	eventually(t, "ready", a.ready)
	b := launch(t, "b-1", "--join", a.gossip)
	eventually(t, "the clocks are compared", func() bool {
		if !b.ready() {
			return false
		}
		_, known := read[api.Self](t, b, "/v1/self").Offsets["a-0"]
		return known
	})
	s := read[api.Self](t, a, "/v1/self")
	if s.Node != "a-0" || s.Role != "member" || s.Flags["max-keys"] != "1234" || s.Flags["decision-timeout"] != "1s" || s.Flags["weight"] != "1" ||
		s.Addrs.Gossip != a.gossip || s.Addrs.Metrics != a.metrics || s.Cert != nil || len(s.GossipBy) != 0 || s.Memory.Used == 0 || s.Started.IsZero() {
		t.Errorf("%+v", s)
	}
	if d := s.Data; d == nil || *d != (api.SelfData{Dir: dir, Window: "1h0m0s", State: "up", Up: true, Bytes: 16 << 20, MaxBytes: 100 << 20, Generation: 1}) {
		t.Errorf("journal: %+v", s.Data)
	}
	if d := read[api.Self](t, b, "/v1/self").Data; d != nil {
		t.Errorf("a journal without --data: %+v", d)
	}
	if off := read[api.Self](t, b, "/v1/self").Offsets["a-0"]; math.Abs(off) > 5 {
		t.Errorf("one machine's clocks differ by %v s", off)
	}
	if len(s.Warnings) < 2 { // insecure, no --rls-advertise
		t.Errorf("warnings: %q", s.Warnings)
	}
}
