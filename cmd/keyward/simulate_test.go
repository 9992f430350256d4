package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/tool/replay"
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
	var rep replay.Report
	if err != nil || json.Unmarshal([]byte(out), &rep) != nil || rep.New.Refused != 200 || rep.Old.Refused != 100 || rep.OnlyNew != 100 || len(rep.Buckets) != 10 {
		t.Errorf("%v %+v", err, rep)
	}
}

func TestSimulateSaysWhatIsWrong(t *testing.T) {
	log, _, rules := writeSimulation(t)
	for want, args := range map[string][]string{
		"nothing says where api_key is":   {"--log", log},
		"--from user: no rule has":        {"--log", log, "--from", "user=header:u", "--from", "api_key=header:x"},
		"is none of header:NAME":          {"--log", log, "--from", "api_key=cookie:x"},
		"read the log":                    {"--log", log + "x", "--from", "api_key=header:x"},
		"no request could be read":        {"--log", filepath.Join(rules, "edge.yaml"), "--from", "api_key=header:x"},
		"--descriptor plan: nothing says": {"--log", log, "--descriptor", "plan"},
		"the line has no time":            {"--log", log, "--time", "when", "--from", "api_key=header:x"},
		`format "x" has no operator`:      {"--log", log, "--format", "x", "--from", "api_key=header:x"},
		`required flag(s) "log" not set`:  {},
	} {
		out, err := run(t, append([]string{"simulate", "--rules", rules}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s\n%s", args, err, want, out)
		}
	}
}
