package translate

import (
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"gopkg.in/yaml.v2"

	"github.com/keyward/keyward/internal/config"
)

// FuzzTranslate requires that no file makes Translate panic, and that its rules load whatever the file contains.
func FuzzTranslate(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	for _, text := range []string{
		"", "- a", "kind: [", "&a [*a]", "kind: List\nitems: &a\n- kind: List\n  items: *a\n",
		"apiVersion: kuadrant.io/v1\nkind: RateLimitPolicy\nmetadata: &m {name: a, labels: *m}\nspec: {<<: [*m, *m], limits: {\"*\": {rates: [{limit: 1e3, window: 1s}]}}}\n",
		"apiVersion: projectcontour.io/v1\nkind: HTTPProxy\nspec: {virtualhost: {rateLimitPolicy: {global: {descriptors: [{entries: [{genericKey: {key: a, value: b_c}}]}, {entries: [{genericKey: {key: a_b, value: \"c\\n# x\"}}]}]}}}}\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if len(content) > 1<<14 {
			return
		}
		for _, o := range []Options{{}, {Actions: true, Domain: "d", Reserve: 5, Envoys: 3, Limits: map[string]Amount{"": {7, "day"}}}} {
			g := Translate([]config.File{{Name: "f.yaml", Content: content}}, o)
			loads(t, "fuzz", g)
			for _, d := range g.Findings {
				if d.Text == "" || d.Kind == "" {
					t.Errorf("an empty finding: %+v", d)
				}
			}
		}
	})
}

// FuzzScalar requires that the loader of rules reads each string as it was.
func FuzzScalar(f *testing.F) {
	for _, text := range []string{"", "a", "yes", "~", "1e3", "0x10", "a: b", "a #b", "- a", "*", "\u0085\u2028\ufeff", "\x00\x7f\t\r\n", "\"\\", "\U0001f600", "null", "2001:db8::/32"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			return // the parser of the policies rejects it
		}
		var got struct{ Key string }
		if err := yaml.Unmarshal([]byte("key: "+scalar(text)+"\n"), &got); err != nil || got.Key != text {
			t.Errorf("%q becomes %q: %v", text, got.Key, err)
		}
	})
}
