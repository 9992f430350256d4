package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/ops/replay"
)

const simulatedRules = "domain: edge\ndescriptors:\n  - key: api_key\n    rate_limit: {unit: minute, requests_per_unit: %d}\n"

// writeSimulation writes two folders of rules and a log of 30 requests a minute for ten minutes, all of one key.
func writeSimulation(t *testing.T) (log, oldRules, newRules string) {
	t.Helper()
	dir := t.TempDir()
	for name, n := range map[string]int{"old": 20, "new": 10} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "edge.yaml"), fmt.Appendf(nil, simulatedRules, n), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	for i := range 300 {
		at := time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC).Add(time.Duration(i) * 2 * time.Second)
		fmt.Fprintf(z, `{"start_time":%q,"x-api-key":"alice","response_code":200}`+"\n", at.Format(time.RFC3339))
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	log = filepath.Join(dir, "access.json.gz")
	if err := os.WriteFile(log, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return log, filepath.Join(dir, "old"), filepath.Join(dir, "new")
}

func TestSimulate(t *testing.T) {
	log, oldRules, newRules := writeSimulation(t)
	args := []string{"simulate", "--log", log, "--rules", newRules, "--against", oldRules, "--from", "api_key=header:x-api-key"}
	out, err := run(t, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"300 requests, 2026-11-01 10:00:00 to 2026-11-01 10:09:58", "new only", "33.33 %", "66.67 %", "██████████  most 20", "▄▄▄▄▄▄▄▄▄▄  most 10", "api_key=alice         edge.api_key  300    200   66.67 %\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, err = run(t, append(args, "-o", "json")...)
	var rep replay.RunReport
	if err != nil || json.Unmarshal([]byte(out), &rep) != nil || rep.New.Refused != 200 || rep.Old.Refused != 100 || rep.OnlyNew != 100 || len(rep.Buckets) != 10 {
		t.Errorf("%v %+v", err, rep)
	}
}

// TestSimulateWarns holds that a replay which asks about every request, or about none, is not taken for a good one.
func TestSimulateWarns(t *testing.T) {
	dir := t.TempDir()
	rules, log := filepath.Join(dir, "shop.yaml"), filepath.Join(dir, "access.json")
	text := "domain: shop\ndescriptors:\n- key: path\n  value: /login\n  descriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 5}\n" +
		"- key: path\n  value: /login\n  rate_limit: {unit: minute, requests_per_unit: 50}\n- key: generic_key\n  value: all\n  rate_limit: {unit: minute, requests_per_unit: 500}\n"
	text = strings.Replace(text, "- key: path\n  value: /login\n  rate_limit", "- key: plan\n  value: premium\n  rate_limit", 1)
	line := `{"start_time":"2026-11-01T10:00:00Z","method":"GET","request_headers":{"x-user":"alice"},"path":"/","response_code":200}` + "\n"
	if err := errors.Join(os.WriteFile(rules, []byte(text), 0o644), os.WriteFile(log, []byte(strings.Repeat(line, 30)), 0o644)); err != nil {
		t.Fatal(err)
	}
	const path = "warning: domain shop: assuming path=/login for every request, because the source of path is unknown: --from path=header:NAME, or --from path=value:/login if Envoy always sends this value\n"
	const plan = "warning: domain shop: assuming plan=premium for every request, because the source of plan is unknown: --from plan=header:NAME, or --from plan=value:premium if Envoy always sends this value\n"
	for _, row := range []struct{ from, want string }{
		{"user=header:x-user", path + plan},
		{"user=header:x-usr", path + plan + "warning: no request has x-usr, so no descriptor with user is made: --from user=header:x-usr; did you mean header:x-user?\n"},
		{"user=field:x-usr", path + plan + "warning: no request has x-usr, so no descriptor with user is made: --from user=field:x-usr; did you mean field:request_headers.x-user?\n"},
		{"user=header:authorization", path + plan + "warning: no request has authorization, so no descriptor with user is made: --from user=header:authorization\n"},
		{"user=query:u path=header::path", plan + "warning: no request has the query parameter u, so no descriptor with user is made: --from user=query:u\n"},
		{"user=remote_address path=header::path plan=value:premium", "warning: no request has a remote_address, so no descriptor with user is made: --from user=remote_address\n"},
		{"user=header:x-user path=header::path plan=value:premium", ""},
	} {
		args := []string{"simulate", "--log", log, "--rules", rules}
		for _, from := range strings.Fields(row.from) {
			args = append(args, "--from", from)
		}
		out, err := run(t, args...)
		_, warnings, found := strings.Cut(out, "warning: ")
		if found {
			warnings = "warning: " + warnings
		}
		if err != nil || warnings != row.want {
			t.Errorf("%s: %v\n got %s\nwant %s", row.from, err, warnings, row.want)
		}
	}
}

func TestSimulateSaysWhatIsWrong(t *testing.T) {
	log, _, rules := writeSimulation(t)
	for want, args := range map[string][]string{
		"the source of api_key is unknown":                 {"--log", log},
		"--from user: no rule has":                         {"--log", log, "--from", "user=header:u", "--from", "api_key=header:x"},
		"want one of header:NAME":                          {"--log", log, "--from", "api_key=cookie:x"},
		"read the log":                                     {"--log", log + "x", "--from", "api_key=header:x"},
		"no request that can be used":                      {"--log", filepath.Join(rules, "edge.yaml"), "--from", "api_key=header:x"},
		"--descriptor plan: the source of plan is unknown": {"--log", log, "--descriptor", "plan"},
		"the line has no time":                             {"--log", log, "--time", "when", "--from", "api_key=header:x"},
		`format "x" has no operator`:                       {"--log", log, "--format", "x", "--from", "api_key=header:x"},
		`required flag(s) "log" not set`:                   {},
	} {
		out, err := run(t, append([]string{"simulate", "--rules", rules}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s\n%s", args, err, want, out)
		}
	}
}
