package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/ops/rulecheck"
	"github.com/keyward/keyward/internal/policy"
)

var update = flag.Bool("update", false, "write golden files and the example in docs/bounds.md")

func runBounds(args ...string) (string, error) {
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"bounds"}, args...))
	err := root.Execute()
	return out.String(), err
}

// golden compares got with a file of testdata.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test ./cmd/keyward -update):\n%s", file, got)
	}
}

func TestBoundsGolden(t *testing.T) {
	t.Chdir("testdata")
	for file, args := range map[string][]string{
		"bounds.share.txt":     {"shop.yaml", "--members", "5"},
		"bounds.available.txt": {"shop.yaml", "--members", "4", "--policy", "available", "--rate", "200"},
		"bounds.quorum.txt":    {"shop.yaml", "--members", "2", "--policy", "quorum"},
		"bounds.alone.txt":     {"shop.yaml", "--members", "1"},
		"bounds.outage.txt":    {"outage.yaml", "--members", "20", "--outage", "5m"},
		"bounds.outage.json":   {"outage.yaml", "--members", "20", "--outage", "5m", "-o", "json"},
		"bounds.calm.txt":      {"outage.yaml", "--members", "40", "--detection", "30s"},
		"bounds.json":          {"shop.yaml", "--members", "5", "-o", "json"},
		"bounds.data.txt":      {"quota.yaml", "--members", "5", "--data"},
		"bounds.data.2.txt":    {"quota.yaml", "--members", "2", "--data", "--data-window", "30m", "--rate", "50"},
		"bounds.data.1.txt":    {"quota.yaml", "--members", "1", "--data"},
		"bounds.regions.txt":   {"regions.yaml", "--members", "3", "--federation", "regions.layout.yaml", "--outage", "5m"},
		"bounds.regions.json":  {"regions.yaml", "--members", "3", "--federation", "regions.layout.yaml", "--outage", "5m", "-o", "json"},
		"bounds.regions.2.txt": {"regions.yaml", "--members", "3", "--federation", "regions.layout.yaml", "--policy", "available", "--rate", "200", "--data", "--data-window", "1m"},
		"bounds.envoys.txt":    {"envoys.yaml", "--members", "3", "--envoys", "3"},
		"bounds.envoys.2.txt":  {"envoys.yaml", "--members", "1", "--envoys", "50", "--connections", "16", "--rate", "4000"},
		"bounds.envoys.json":   {"envoys.yaml", "--members", "3", "--envoys", "3", "--detection", "10s", "-o", "json"},
		"bounds.data.json":     {"quota.yaml", "--members", "3", "--data", "-o", "json"},
	} {
		out, err := runBounds(args...)
		if err != nil {
			t.Errorf("%q: %v", args, err)
		}
		golden(t, file, out)
	}
}

// TestBoundsOfDirectory holds that a directory is read as the service reads it.
func TestBoundsOfDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.yaml", "b.yaml"} {
		text := "domain: " + name[:1] + "\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 7}}]\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := runBounds(dir, "--members", "3", "-o", "json")
	var doc struct{ Rules []struct{ Rule string } }
	if err != nil || json.Unmarshal([]byte(out), &doc) != nil || len(doc.Rules) != 2 || doc.Rules[1].Rule != "b.k" {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestBoundsFaults(t *testing.T) {
	_, err := runBounds("nowhere", "--members", "0", "--policy", "most", "--rate", "-1", "--outage", "-1s", "--detection", "31s")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"--members 0", "--policy most", "--rate -1", "--outage -1s", "--detection: 31s is not within 1s to 30s", "read rules"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not said in %v", want, err)
		}
	}
	if _, err := runBounds("testdata/shop.yaml", "--members", "3", "-o", "xml"); err == nil || !strings.Contains(err.Error(), "want one of: text, json") {
		t.Errorf("-o xml: %v", err)
	}
	if _, err := runBounds("testdata/shop.yaml"); err == nil {
		t.Error("--members is not asked for")
	}
}

// TestBoundsManual holds docs/bounds.md against the command: its example is the command's output, and its table has
// every event with its formulas.
func TestBoundsManual(t *testing.T) {
	const file, begin = "../../docs/bounds.md", "```text\n"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/bounds.share.txt")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(page), begin)
	got, after, found := strings.Cut(rest, "```")
	if *update && found {
		got = string(want)
		if err := os.WriteFile(file, []byte(before+begin+got+"```"+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got != string(want) {
		t.Errorf("the example in %s is not what the command prints (go test ./cmd/keyward -update)", file)
	}
	rules, err := loadPath("testdata/shop.yaml", config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, partition := range []policy.Partition{policy.PartShare, policy.PartAvailable, policy.PartQuorum} {
		for _, r := range rules.Rules() {
			for _, b := range rulecheck.BoundsOf(r, rulecheck.Conditions{Members: 5, Partition: partition}).Bounds {
				row := rowOf(before, b.Event)
				for _, formula := range []string{plain(b.OverFormula), plain(b.UnderFormula)} {
					if !strings.Contains(row, "`"+formula+"`") {
						t.Errorf("%s: the row of %q has no `%s`: %s", r.FullKey, b.Event, formula, row)
					}
				}
			}
		}
	}
}

// TestBoundsDataManual requires that docs/bounds.md has a row for each event of a rule in the journal, with the formula of
// the hits above the limit.
func TestBoundsDataManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/bounds.md")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := loadPath("testdata/quota.yaml", config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, r := range rules.Rules() {
		c := rulecheck.Conditions{Members: 5, DataWindow: time.Hour}
		all := rulecheck.BoundsOf(r, c)
		if all.NotInJournal != "" {
			continue
		}
		c.DataWindow = 0
		without := rulecheck.BoundsOf(r, c)
		for _, b := range all.Bounds {
			if slices.ContainsFunc(without.Bounds, func(x rulecheck.Bound) bool { return x.Event == b.Event }) {
				continue
			}
			rows++
			if row, formula := rowOf(string(page), b.Event), plain(b.OverFormula); !strings.Contains(row, "`"+formula+"`") {
				t.Errorf("%s: the row of %q has no `%s`: %s", r.FullKey, b.Event, formula, row)
			}
		}
	}
	if rows != 3*5 {
		t.Errorf("%d rows, want 15", rows)
	}
}

// TestBoundsRegionsManual requires that docs/bounds.md has a row for each event of a rule with federation, with its formulas.
func TestBoundsRegionsManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/bounds.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "### Rules with federation\n")
	text, _, _ = strings.Cut(text, "\n### ")
	rules, err := loadPath("testdata/regions.yaml", config.Options{})
	if !found || err != nil {
		t.Fatal(found, err)
	}
	f := regionFlags{layout: "testdata/regions.layout.yaml", lag: time.Second, roundTrip: 100 * time.Millisecond}
	regions, err := f.conditions()
	if err != nil {
		t.Fatal(err)
	}
	for _, partition := range []policy.Partition{policy.PartShare, policy.PartAvailable, policy.PartQuorum} {
		for _, r := range rules.Rules() {
			for _, b := range rulecheck.BoundsOf(r, rulecheck.Conditions{Members: 5, Partition: partition, Regions: regions}).Bounds {
				row := rowOf(text, b.Event)
				for _, formula := range []string{plain(b.OverFormula), plain(b.UnderFormula)} {
					if !strings.Contains(row, "`"+formula) {
						t.Errorf("%s: the row of %q has no `%s`: %s", r.FullKey, b.Event, formula, row)
					}
				}
			}
		}
	}
}

// TestBoundsQuotaManual requires that docs/bounds.md has a row for each event of Envoys that spend a limit, with its formulas.
func TestBoundsQuotaManual(t *testing.T) {
	page, err := os.ReadFile("../../docs/bounds.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "### Rules with mechanism: quota\n")
	text, _, _ = strings.Cut(text, "\n### ")
	rules, err := loadPath("testdata/envoys.yaml", config.Options{})
	if !found || err != nil {
		t.Fatal(found, err)
	}
	c := rulecheck.Conditions{Members: 5, Quota: rulecheck.QuotaConditions{Envoys: 3, Connections: 100}}
	rows := 0
	for _, r := range rules.Rules() {
		all := rulecheck.BoundsOf(r, c).Bounds
		for _, b := range all[slices.IndexFunc(all, func(b rulecheck.Bound) bool { return strings.HasPrefix(b.Event, "Envoys spend") }):] {
			row := rowOf(text, b.Event)
			for _, formula := range []string{b.OverFormula, b.UnderFormula} {
				if !strings.Contains(row, "`"+formula) {
					t.Errorf("%s: the row of %q has no `%s`: %s", r.FullKey, b.Event, formula, row)
				}
			}
			rows++
		}
	}
	if rows != 3*10 {
		t.Errorf("%d rows, want 30", rows)
	}
}

// TestBoundsQuotaFaults requires the number of Envoys for rules that do not have it, and checks the flags.
func TestBoundsQuotaFaults(t *testing.T) {
	for want, args := range map[string][]string{
		"envoys.yaml:3: Envoys spend the limit of shop.api_key: give --envoys M": {},
		"--envoys 10001: want 1 to 10000":                                        {"--envoys", "10001"},
		"--connections 0: want 1 to 1000000":                                     {"--connections", "0"},
	} {
		out, err := runBounds(append([]string{"testdata/envoys.yaml", "--members", "3"}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q\n%s", args, err, want, out)
		}
		if len(args) == 0 && err != nil && strings.Contains(err.Error(), "shop.plan") {
			t.Errorf("the rule has envoys: %v", err)
		}
	}
}

// TestBoundsRegionFaults requires that a rule with federation needs the layout.
func TestBoundsRegionFaults(t *testing.T) {
	for want, args := range map[string][]string{
		"regions.yaml:3: several regions share the limit of shop.plan: give --federation FILE": {},
		"--federation: open nowhere": {"--federation", "nowhere"},
		"--lag -1s":                  {"--federation", "testdata/regions.layout.yaml", "--lag", "-1s"},
		"name is missing":            {"--federation", "testdata/regions.yaml"},
	} {
		if want == "name is missing" {
			want = "regions.yaml:"
		}
		if out, err := runBounds(append([]string{"testdata/regions.yaml", "--members", "3"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q\n%s", args, err, want, out)
		}
	}
}

// TestBoundsOutage compares the cost of the outage in docs/bounds.md with the output of the command.
func TestBoundsOutage(t *testing.T) {
	page, err := os.ReadFile("../../docs/bounds.md")
	if err != nil {
		t.Fatal(err)
	}
	out, err := runBounds("testdata/outage.yaml", "--members", "20", "--outage", "5m")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "fail_open (this rule)  600000, and 2000 if it begins within a window  = N x local_cap x 300 ") {
		t.Errorf("not 20 x 100 x 300:\n%s", out)
	}
	for _, want := range []string{"20 x 100 x 300 = 600,000 hits", "another 2,000", "part of 301 windows"} {
		if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), want) {
			t.Errorf("docs/bounds.md does not contain %q", want)
		}
	}
}

// rowOf is the row of the page's table whose first cell is the event.
func rowOf(page, event string) string {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| "+event+" |") {
			return line
		}
	}
	return ""
}

// plain is a formula without what every row may have on top: S of what is no fixed window, open of fail_open, E of
// what is approximate.
func plain(formula string) string {
	for _, more := range []string{" + S", " + open", " + E", " + 2 E"} {
		formula = strings.TrimSuffix(strings.ReplaceAll(formula, more+" + ", " + "), more)
	}
	if formula == "S" || formula == "E" {
		formula = "0"
	}
	return formula
}

// TestBoundsHelp holds what --help and README.md say of planned changes and of a crash against the numbers.
func TestBoundsHelp(t *testing.T) {
	cmd := newBounds()
	if want := "both are 0 for fixed windows; other algorithms can add S."; !strings.Contains(strings.ReplaceAll(cmd.Long, "\n", " "), want) {
		t.Errorf("--help does not contain %q", want)
	}
	for _, a := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"} {
		file := filepath.Join(t.TempDir(), "a.yaml")
		text := "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 1000}, metadata: {keyward: {algorithm: " + a + "}}}\n"
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		all, err := boundsOf(file, config.Options{Members: 5}, rulecheck.Conditions{Members: 5, Partition: policy.PartShare})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all[0].Bounds {
			switch b.Event {
			case "nothing fails":
				if b.Over != 0 || b.Under != 0 {
					t.Errorf("%s: %s: %+v", a, b.Event, b)
				}
			case "join, leave, rolling restart":
				if b.Over != all[0].Skew || b.Under != 0 || (a == "fixed_window") != (b.Over == 0) {
					t.Errorf("%s: %s: %+v, S = %d", a, b.Event, b, all[0].Skew)
				}
			case "the owner crashes":
				if a == "fixed_window" && b.Over != 810 {
					t.Errorf("README.md says 810: %+v", b)
				}
			}
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil || !strings.Contains(strings.Join(strings.Fields(string(readme)), " "), "for a limit of 1,000 and five members, at most 810 extra hits in that window") {
		t.Errorf("README.md says something else of a crash: %v", err)
	}
}
