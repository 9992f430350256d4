package keyward

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// promisesPage lists the promises and the tests that hold them.
const promisesPage = "docs/promises.md"

// promising are the documents whose promises promisesPage lists, in the order of the page.
var promising = []string{"README.md", "SECURITY.md", "docs/bounds.md", "docs/security.md"}

// promiseWords make a promise of the sentence that contains one of them outside quotation marks. promisesPage lists them, too.
var promiseWords = regexp.MustCompile(
	`(?i)\b(never|at most|cannot|can not|exact|exactly|no more than|not more than|always|nothing|is lost|no other client)\b`)

// TestPromises requires that docs/promises.md lists every promise, that each of its rows is about a sentence that still exists, and
// that the tests it names exist.
func TestPromises(t *testing.T) {
	texts := map[string]string{}
	for _, file := range append([]string{promisesPage}, promising...) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[file] = string(b)
	}
	for _, fault := range promiseFaults(os.DirFS("."), texts) {
		t.Error(fault)
	}
}

var (
	bareTest = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	testFile = regexp.MustCompile("`([a-z0-9/_*]+_test\\.go)`")
)

// TestNamedTestsExist requires that the tests and the files of tests that the documents themselves name exist, and that no row of a table with
// the column "test" lacks one.
func TestNamedTestsExist(t *testing.T) {
	known := allTests(t)
	for _, file := range promising {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		column := false
		for i, line := range strings.Split(string(b), "\n") {
			for _, m := range bareTest.FindAllStringSubmatch(line, -1) {
				if !known[m[1]] {
					t.Errorf("%s:%d: no folder has a test %s; name one that exists", file, i+1, m[1])
				}
			}
			for _, m := range testFile.FindAllStringSubmatch(line, -1) {
				if found, err := filepath.Glob(m[1]); err != nil || len(found) == 0 {
					t.Errorf("%s:%d: no file %s; name one that exists", file, i+1, m[1])
				}
			}
			row := cells(line)
			last := strings.TrimSpace(row[len(row)-1])
			column = strings.HasPrefix(line, "|") && (column || last == "test")
			if column && last == "" {
				t.Errorf("%s:%d: this row names no test; write one that goes beyond its bound", file, i+1)
			}
		}
	}
}

// allTests returns the names of all tests of this module.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	folders := map[string]bool{}
	for _, file := range testFiles(t) {
		folders[filepath.ToSlash(filepath.Dir(file))] = true
	}
	for folder := range folders {
		read := readTests(os.DirFS("."), folder)
		if read.err != nil {
			t.Fatal(read.err)
		}
		for name := range read.tests {
			names[name] = true
		}
	}
	return names
}

// sentence is a sentence of a document, without links and emphasis, or the name of a table's row.
type sentence struct {
	line    int
	text    string
	promise bool
}

// promiseRow is one row of promisesPage: a sentence, or its beginning and "…", the document that contains it, and the tests that would
// fail if it were false.
type promiseRow struct {
	line       int
	file, text string
	tests      []string
}

// matches reports whether the row is about the given sentence.
func (r promiseRow) matches(text string) bool {
	if beginning, ok := strings.CutSuffix(r.text, "…"); ok {
		return strings.HasPrefix(text, strings.TrimSpace(beginning))
	}
	return r.text == text
}

// promiseFaults compares the documents in texts with promisesPage, and the tests that the page names with those in root. It returns
// all faults, each with file, line, cause and remedy.
func promiseFaults(root fs.FS, texts map[string]string) (faults []string) {
	rows, tests := promiseRows(texts[promisesPage]), testNames{root: root, folders: map[string]testFolder{}}
	for _, file := range promising {
		said := sentencesOf(texts[file])
		for _, s := range said {
			if s.promise && !slices.ContainsFunc(rows, func(r promiseRow) bool { return r.file == file && r.matches(s.text) }) {
				faults = append(faults, fmt.Sprintf("%s:%d: %s has no row for this promise; add one with a test that fails if the promise is false, "+
					"or reword the promise: %s", file, s.line, promisesPage, s.text))
			}
		}
		for _, r := range rows {
			if r.file == file {
				faults = append(faults, r.faults(said, &tests)...)
			}
		}
	}
	return faults
}

// faults returns what is wrong with a row, given all sentences of its document.
func (r promiseRow) faults(said []sentence, tests *testNames) (faults []string) {
	add := func(format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%s:%d: ", promisesPage, r.line)+fmt.Sprintf(format, args...))
	}
	about := map[string]bool{}
	for _, s := range said {
		if r.matches(s.text) {
			about[s.text] = true
		}
	}
	switch {
	case len(about) == 0:
		add("%s has no such sentence; correct or remove the row: %s", r.file, r.text)
	case len(about) > 1:
		add("%d sentences of %s begin like this; quote more of the one that is meant: %s", len(about), r.file, r.text)
	}
	if len(r.tests) == 0 {
		add("no test; name one as `folder.TestName`, or reword the promise: %s", r.text)
	}
	for _, ref := range r.tests {
		if err := tests.check(ref); err != nil {
			add("test %s: %v; name a test that fails if the promise is false, or reword the promise: %s", ref, err, r.text)
		}
	}
	return faults
}

var (
	testRef  = regexp.MustCompile("`([^`]*[./](?:Test|Fuzz|Example)[^`]*)`")
	pageHead = "| promise |"
)

// promiseRows returns the rows of promisesPage. A heading of the second level names the document that its rows are about.
func promiseRows(page string) (rows []promiseRow) {
	file := ""
	for i, line := range strings.Split(page, "\n") {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			file = plain(heading)
		}
		if !slices.Contains(promising, file) || !strings.HasPrefix(line, "|") || strings.HasPrefix(line, pageHead) || tableRule.MatchString(line) {
			continue
		}
		c := cells(line)
		row := promiseRow{line: i + 1, file: file, text: plain(c[0])}
		for _, m := range testRef.FindAllStringSubmatch(strings.Join(c[1:], " "), -1) {
			row.tests = append(row.tests, m[1])
		}
		rows = append(rows, row)
	}
	return rows
}
