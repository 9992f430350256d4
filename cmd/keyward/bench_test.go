package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/ops/loadtest"
)

func runBench(t *testing.T, args ...string) (out, messages string, err error) {
	t.Helper()
	cmd := newBench()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(args)
	var o, m bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&m)
	err = cmd.ExecuteContext(t.Context())
	return o.String(), m.String(), err
}

// Two sidecars are compared: both receive calls for all keys, and the report has the answers of both.
func TestBench(t *testing.T) {
	t.Parallel()
	const open = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 4000000000}}\n"
	const shut = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 0}}\n"
	a, b := startSidecar(t, open), startSidecar(t, shut)
	out, messages, err := runBench(t, "--compare", a+","+b, "--domain", "shop", "--descriptor", "user=u-{}", "--keys", "5",
		"--inflight", "2", "--rate", "80", "--seconds", "0.5", "--rounds", "2", "-o", "json")
	if err != nil {
		t.Fatal(err, messages)
	}
	var rep loadtest.Report
	if err := json.Unmarshal([]byte(out), &rep); err != nil {
		t.Fatal(err)
	}
	if len(rep.Lines) != 4 {
		t.Fatalf("%d lines: %s", len(rep.Lines), out)
	}
	for i, l := range rep.Lines {
		refused := 0
		if l.Name == b {
			refused = l.Calls
		}
		if l.Calls == 0 || l.Errors > 0 || l.Over != refused || l.Throughput == 0 || l.P999 < l.P50 || (i%2 == 1) != (l.P99Ratio != nil) {
			t.Errorf("%+v", l)
		}
	}
	if got := rep.Lines[2].Calls; got != 80 {
		t.Errorf("%d calls in two rounds of 0.5 s at 80 a second", got)
	}
}

func TestBenchText(t *testing.T) {
	t.Parallel()
	a := startSidecar(t, "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 4000000000}}\n")
	out, _, err := runBench(t, "--compare", a, "--domain", "shop", "--descriptor", "user=u", "--inflight", "1", "--rate", "0", "--seconds", "0.1", "--rounds", "1")
	if err != nil || !strings.Contains(out, "1 in flight") || !strings.Contains(out, a) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestBenchRefuses(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"--compare 10.0.0.1:1", "--yes-remote"},
		{"--compare shop.example:8081", "--yes-remote"},
		{"--compare nowhere", "want host:port"},
		{"--compare 127.0.0.1:1 --inflight 0", "--inflight 0"},
		{"--compare 127.0.0.1:1 --inflight 5000", "want 1 to 1024"},
		{"--compare 127.0.0.1:1 --seconds 3600", "at most 30 minutes"},
		{"--compare 127.0.0.1:1 --seconds 0", "must be positive"},
		{"--compare 127.0.0.1:1 --pid x", "want ADDRESS=PID"},
		{"--compare 127.0.0.1:1 --descriptor y", "want NAME=VALUE"},
		{"--compare 127.0.0.1:1", "connect to 127.0.0.1:1"},
	} {
		args := append(strings.Fields(tt.args), "--domain", "d", "--descriptor", "k=v")
		if _, _, err := runBench(t, args...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.args, err, tt.want)
		}
	}
}
