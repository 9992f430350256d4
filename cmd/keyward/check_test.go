package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/config"
)

// rulesDir is a directory of one file with one rule, whose metadata.keyward is given.
func rulesDir(t *testing.T, extension string) string {
	t.Helper()
	dir := t.TempDir()
	text := "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: minute, requests_per_unit: 5}\n  metadata:\n    keyward: {" + extension + "}\n"
	if err := os.WriteFile(filepath.Join(dir, "d.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCheckAgainst requires that --against reports a change of how a rule counts.
func TestCheckAgainst(t *testing.T) {
	for _, row := range []struct{ old, fresh, want string }{
		{"", "window: 60s", ""},
		{"window: 10s", "window: 10s, durability: strict", "change: "},
		{"window: 10s", "window: 36h", "because its window changes"},
		{"", "algorithm: token_bucket", "because its algorithm changes: up to 15 hits"},
		{"", "window: 36h", "do not survive a restart"},
		{"", "burst: 5", "d.yaml: error in metadata.keyward of 'd.k': burst is the depth of a token_bucket or leaky_bucket; the algorithm is fixed_window (line 6)"},
		{"", "mechanism: lease", "has too low a limit to lend parts of it"},
		{"reserve: 2", "reserve: 3, all_or_nothing: true", "changes holds from 'reserve 2, lapse keep, hold_ttl 10m' to 'reserve 3, lapse keep, hold_ttl 10m, all_or_nothing'"},
		{"", "algorithm: in_flight, window: 60s", "because its algorithm changes"},
		{"", "mechanism: approximate, epsilon: 20%", "changes mechanism from owner to approximate"},
		{"", "mechanism: approximate, epsilon: 19%", "epsilon 19% of 5 hits is less than one hit: raise epsilon, or use mechanism: lease (line 6)"},
	} {
		var out bytes.Buffer
		root := newRoot()
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs([]string{"check", rulesDir(t, row.fresh), "--against", rulesDir(t, row.old)})
		err := root.Execute()
		if failed := strings.Contains(row.want, "(line"); failed != (err != nil) {
			t.Errorf("{%s}: %v", row.fresh, err)
		}
		if row.want == "" && out.String() != "all rate limit configs ok\n" || !strings.Contains(out.String(), row.want) {
			t.Errorf("from {%s} to {%s}: %q is not said in\n%s", row.old, row.fresh, row.want, out.String())
		}
	}
}

// TestCheckMembers holds that a person can ask before the cluster has so many members.
func TestCheckMembers(t *testing.T) {
	dir := rulesDir(t, "mechanism: approximate, epsilon: 60%")
	for members, want := range map[string]string{
		"3": "all rate limit configs ok", "4": "epsilon 60% of 5 hits is 3, less than one for each of 4 members", "-1": "--members -1: want 1 to",
	} {
		var out bytes.Buffer
		root := newRoot()
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs([]string{"check", dir, "--members", members})
		err := root.Execute()
		text := out.String()
		if err != nil {
			text += err.Error()
		}
		if (err == nil) != (members == "3") || !strings.Contains(text, want) {
			t.Errorf("--members %s: %v\n%s", members, err, text)
		}
	}
}

func runCheck(args ...string) (string, error) {
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"check"}, args...))
	err := root.Execute()
	return out.String(), err
}

// A file of layouts is checked with the rules.
func TestCheckLayouts(t *testing.T) {
	dir, file := rulesDir(t, ""), filepath.Join(t.TempDir(), "f.yaml")
	const one = "{name: shop, epoch: 1, coordinator: home, regions: [{name: eu}]}\n"
	for content, want := range map[string]string{one: "", one + "---\n" + one: "layout 2: epoch 1 follows epoch 1"} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := runCheck(dir, "--federation", file); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", content, err)
		}
	}
}

// TestCheckGolden holds what a person, a script and a code host are shown.
func TestCheckGolden(t *testing.T) {
	t.Chdir("testdata/check")
	for file, row := range map[string]struct {
		args []string
		fail bool
	}{
		"faulty.txt":       {[]string{"faulty"}, true},
		"faulty.json":      {[]string{"faulty", "-o", "json"}, true},
		"faulty.sarif":     {[]string{"faulty", "-o", "sarif"}, true},
		"suspicious.txt":   {[]string{"suspicious"}, false},
		"strict.txt":       {[]string{"suspicious/shop.yaml", "--strict"}, true},
		"plain.txt":        {[]string{"plain"}, true},
		"levels.txt":       {[]string{"levels"}, false},
		"levels.json":      {[]string{"levels", "--strict", "-o", "json"}, true},
		"suspicious.sarif": {[]string{"suspicious", "-o", "sarif", "--against", "../shop.yaml"}, false},
		"durable.txt":      {[]string{"durable"}, false},
		"durable.data.txt": {[]string{"durable", "--data"}, false},
		"durable.sarif":    {[]string{"durable", "--data", "-o", "sarif"}, false},
		"changes.txt":      {[]string{"suspicious", "--against", "../shop.yaml"}, false},
	} {
		out, err := runCheck(row.args...)
		if (err != nil) != row.fail {
			t.Errorf("%q: %v", row.args, err)
		}
		golden(t, file, out)
	}
}

// TestCheckWithoutRules holds that a folder in which nothing limits a request is not taken for a good one.
func TestCheckWithoutRules(t *testing.T) {
	t.Chdir(t.TempDir())
	for file, content := range map[string]string{"empty/.keep/x": "", "up/config/shop.yaml": "domain: shop", "idle/shop.yaml": "domain: shop\ndescriptors:\n- key: k\n"} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll("empty/.keep"); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		"empty": "warning: empty: the directory has no files: no request is limited\nall rate limit configs ok\n",
		"up": "warning: up: the directory has no files: no request is limited\n      = subdirectories are not read: did you mean up/config?\n" +
			"all rate limit configs ok\n",
		"idle": "warning: idle: no file has a rate_limit: no request is limited\nall rate limit configs ok\n",
	} {
		if out, err := runCheck(dir); err != nil || out != want {
			t.Errorf("check %s: %v\n got %q\nwant %q", dir, err, out, want)
		}
		if _, err := runCheck(dir, "--strict"); err == nil {
			t.Errorf("check %s --strict: no error", dir)
		}
		if out, err := runCheck(dir, "-o", "sarif"); err != nil || !strings.Contains(out, `"ruleId": "no-rules"`) || strings.Contains(out, `"ruleIndex": -1`) {
			t.Errorf("check %s -o sarif: %v\n%s", dir, err, out)
		}
	}
}

// TestSARIFKnowsEveryKind holds that a result names a rule that the log explains.
func TestSARIFKnowsEveryKind(t *testing.T) {
	for _, dir := range []string{"faulty", "suspicious", "levels"} {
		r, err := checkFiles(filepath.Join("testdata/check", dir), "testdata/shop.yaml", config.Options{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		known := map[string]bool{}
		for _, rule := range sarifRules() {
			known[rule.ID] = true
		}
		for _, f := range append(append(r.Faults, r.Warnings...), r.Changes...) {
			if !known[f.Kind] {
				t.Errorf("%q has no rule: %s", f.Kind, f.Text)
			}
			if f.Line == 0 || f.Column == 0 {
				t.Errorf("where is it? %+v", f)
			}
		}
	}
}

// TestCaret requires that the caret is below the column, whatever precedes it.
func TestCaret(t *testing.T) {
	r := checkReport{lines: map[string][]string{"f": {"\t日本: x\r", "  - key: k", "\x1b[2Jk: v"}}}
	for at, want := range map[[2]int]string{
		{1, 6}: "    1 | \t日本: x\n      | \t    ^\n",
		{2, 0}: "    2 |   - key: k\n      |     ^\n",
		{2, 9}: "    2 |   - key: k\n      |         ^\n",
		{3, 1}: "    3 | ?[2Jk: v\n      | ^\n",
		{9, 1}: "",
	} {
		var b strings.Builder
		r.source(&b, config.Diagnostic{File: "f", Line: at[0], Column: at[1]})
		if b.String() != want {
			t.Errorf("%v\n got %q\nwant %q", at, b.String(), want)
		}
	}
}

// TestCheckDefaults requires that check applies the members' --rule-defaults.
func TestCheckDefaults(t *testing.T) {
	for _, row := range []struct{ keys, defaults, want string }{
		{"", "d: {reserve: 5}", "all rate limit configs ok"},
		{"", "d: {reserve: 6}", "reserve 6 is above the limit of 5"},
		{"mechanism: lease", "d: {reserve: 5}", "(defaults of domain 'd': reserve; the rule's own keys: mechanism)"},
		{"", "d: {reserv: 5}", "unknown key 'reserv'"},
		{"", "@/nowhere", "--rule-defaults: open /nowhere"},
	} {
		var out bytes.Buffer
		root := newRoot()
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs([]string{"check", rulesDir(t, row.keys), "--rule-defaults", row.defaults})
		text := ""
		if err := root.Execute(); err != nil {
			text = err.Error()
		}
		if text += out.String(); !strings.Contains(text, row.want) {
			t.Errorf("{%s} with %s: %q is not in\n%s", row.keys, row.defaults, row.want, text)
		}
	}
}

// TestCheckEnvoy requires that all faults of an Envoy configuration are printed with their lines, and that a generated
// configuration has none.
func TestCheckEnvoy(t *testing.T) {
	t.Chdir("testdata/check")
	out, err := runCheck("envoy", "--envoy", "envoy.yaml")
	if !errors.Is(err, errFailed) {
		t.Errorf("%v", err)
	}
	golden(t, "envoy.txt", out)
	generated, err := filepath.Abs("../../../../envoy/snippet/testdata/rlqs.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := runCheck("envoy", "--envoy", generated); err != nil || !strings.Contains(out, "all rate limit configs ok") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, path := range []string{"nowhere.yaml", t.TempDir()} {
		if _, err := runCheck("envoy", "--envoy", path); err == nil || !strings.Contains(err.Error(), "--envoy: ") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
