package kube

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestServerAccepts has the API server judge, without making anything, what the chart renders in every mode and for every gateway, and what
// the pages about gateways tell to apply: with the real definitions of the gateways' resources, their rules in CEL included. An unknown
// field is an error.
func TestServerAccepts(t *testing.T) {
	texts := map[string]string{} // by the name of the file
	for _, name := range files(t, "../../charts/testdata/*.yaml") {
		texts[filepath.Base(name)] = read(t, name)
	}
	for _, name := range files(t, "../../envoy/snippet/testdata/for-*.yaml") { // of keyward envoy-config --for
		texts[filepath.Base(name)] = read(t, name)
	}
	for _, page := range files(t, "../../docs/gateways/*.md") {
		if objects := examples(read(t, page)); objects != "" {
			texts[filepath.Base(page)] = objects
		}
	}
	begin := time.Now()
	must(t, append([]string{"apply", "--server-side", "--force-conflicts"}, defining(t, texts)...)...)
	must(t, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinitions", "--all")
	t.Logf("definitions were there after %.1f s", time.Since(begin).Seconds())
	for _, namespace := range namespaces(texts) {
		must(t, "create", "namespace", namespace)
		for _, account := range []string{"keyward", "limits"} { // without these a pod is refused, and a dry run makes none
			must(t, "create", "serviceaccount", account, "--namespace", namespace)
		}
	}
	must(t, "create", "priorityclass", "high", "--value=1")
	dir := t.TempDir()
	for _, name := range sorted(texts) {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, name+".yaml")
			if err := os.WriteFile(file, []byte(texts[name]), 0o600); err != nil {
				t.Fatal(err)
			}
			out := must(t, "apply", "--dry-run=server", "--validate=strict", "--filename", file)
			if n := strings.Count(out, "(server dry run)"); n == 0 {
				t.Errorf("no object was judged: %s", out)
			} else {
				t.Logf("%d objects", n)
			}
		})
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// files lists the files of a pattern, of which there is one at least.
func files(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Errorf("no %s: %v", pattern, err)
	}
	return names
}

// fenced matches a block of YAML in a page.
var fenced = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")

// examples are the whole objects among a page's blocks.
func examples(page string) string {
	var objects []string
	for _, m := range fenced.FindAllStringSubmatch(page, -1) {
		if kind.MatchString(m[1]) {
			objects = append(objects, m[1])
		}
	}
	return strings.Join(objects, "\n---\n")
}

// namespaces are those that objects say they are in, but for the one that there is.
func namespaces(texts map[string]string) []string {
	found := map[string]string{}
	for _, text := range texts {
		for _, m := range regexp.MustCompile(`\bnamespace: ([a-z0-9-]+)`).FindAllStringSubmatch(text, -1) {
			found[m[1]] = ""
		}
	}
	delete(found, "default")
	return sorted(found)
}

// kind matches that of an object; defined that of a definition.
var (
	kind    = regexp.MustCompile(`(?m)^kind: (\w+)`)
	defined = regexp.MustCompile(`(?m)^    kind: (\w+)$`)
)

// defining are kubectl's arguments for the definitions of what the texts hold: all that there are would take the API server half a minute.
func defining(t *testing.T, texts map[string]string) (args []string) {
	t.Helper()
	wanted := map[string]bool{}
	for _, text := range texts {
		for _, m := range kind.FindAllStringSubmatch(text, -1) {
			wanted[m[1]] = true
		}
	}
	for _, name := range files(t, filepath.Join(definitions, "*.yaml")) {
		for _, m := range defined.FindAllStringSubmatch(read(t, name), -1) {
			if wanted[m[1]] {
				args = append(args, "--filename", name)
				break
			}
		}
	}
	return args
}
