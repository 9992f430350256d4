//go:build !race

package keyward

import (
	"go/ast"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const glossary = "docs/glossary.md"

// maxTerms is how many terms the glossary may have: more would be a dialect again.
const maxTerms = 62

// exempt are the files that TestLanguage does not read: what others wrote, what records history, and the list of the words itself.
var exempt = regexp.MustCompile(`^(docs/glossary\.md|language_norace_test\.go|CHANGELOG\.md|LICENSE|NOTICE|docs/adr/.*|.*testdata/.*|.*go\.sum|.*\.(svg|png|json))$`)

// kept matches what may contain a refused word because others depend on it: names in metrics, flags and fields, links, and the
// simulator's traces, which are compared between versions.
var kept = regexp.MustCompile(`keyward_\w+|--[a-z][a-z-]*|json:"[^"]*"|\x60heir\x60|\.heir\b|https?://\S+|\br\.Question\b|\.trace\("[^"]*"`)

// hump matches where one word of an identifier ends and the next begins.
var hump = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// TestLanguage requires that no tracked text contains a word that the glossary's last table refuses.
func TestLanguage(t *testing.T) {
	refused := refusedWords(t)
	for _, file := range tracked(t) {
		if exempt.MatchString(file) {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil || !isText(b) {
			continue
		}
		for i, line := range strings.Split(string(b), "\n") {
			line = kept.ReplaceAllString(line, "")
			if strings.HasSuffix(file, ".go") {
				line = hump.ReplaceAllString(line, "$1 $2") // the words of an identifier
			}
			for _, word := range refused.FindAllString(line, -1) {
				t.Errorf("%s:%d: %q is on the list of words that are not used in %s", file, i+1, word, glossary)
			}
		}
	}
}

// TestGlossary requires that the glossary has at most maxTerms terms, each once.
func TestGlossary(t *testing.T) {
	terms, _, _ := strings.Cut(read(t, glossary), "\n## Words that are not used")
	seen := map[string]bool{}
	rows := slices.DeleteFunc(tableRow.FindAllStringSubmatch(terms, -1), isHead)
	for _, row := range rows {
		for term := range strings.SplitSeq(row[1], ", ") {
			if seen[term] {
				t.Errorf("%s: %q is there twice", glossary, term)
			}
			seen[term] = true
		}
	}
	if len(rows) == 0 || len(rows) > maxTerms {
		t.Errorf("%s has %d terms; 1 to %d are allowed", glossary, len(rows), maxTerms)
	}
}

// tableRow matches a row of a table that is not its head.
var tableRow = regexp.MustCompile(`(?m)^\| ([^|]+?) \| [^|]+ \|(?: [^|]+ \|)?$`)

// isHead reports whether a row is the head of a table or the line below it.
func isHead(row []string) bool { return row[1] == "term" || row[1] == "not" || row[1] == "---" }

// refusedWords compiles the words of the glossary's last table into one expression.
func refusedWords(t *testing.T) *regexp.Regexp {
	t.Helper()
	_, table, found := strings.Cut(read(t, glossary), "<!-- language_norace_test.go reads this table. -->")
	var words []string
	for _, row := range tableRow.FindAllStringSubmatch(table, -1) {
		if !isHead(row) {
			words = append(words, strings.Split(row[1], ", ")...)
		}
	}
	if !found || len(words) == 0 {
		t.Fatalf("%s has no table of words that are not used", glossary)
	}
	return regexp.MustCompile(`(?i)\b(?:` + strings.ReplaceAll(strings.Join(words, "|"), " ", `\s+`) + `)\b`)
}

// sameMeaning are the exported type names that several packages declare because they mean the same in each.
var sameMeaning = []string{"Options", "Member", "Coordinator"}

// TestTypeNames requires that an exported type name means one thing: no two packages declare it.
func TestTypeNames(t *testing.T) {
	files, fset := sources(t)
	places := map[string][]string{}
	for dir, list := range files {
		for _, f := range list {
			if ast.IsGenerated(f) {
				continue
			}
			for _, d := range f.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || f.Name.Name == "main" {
					continue
				}
				for _, s := range g.Specs {
					if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() && !s.Assign.IsValid() {
						places[s.Name.Name] = append(places[s.Name.Name], dir+" ("+path.Base(fset.Position(s.Pos()).String())+")")
					}
				}
			}
		}
	}
	for name, dirs := range places {
		if len(dirs) > 1 && !slices.Contains(sameMeaning, name) {
			slices.Sort(dirs)
			t.Errorf("type %s has several meanings: %s", name, strings.Join(dirs, ", "))
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// tracked lists the files that git knows.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// isText reports whether b looks like text.
func isText(b []byte) bool { return !strings.Contains(string(b[:min(len(b), 8000)]), "\x00") }
