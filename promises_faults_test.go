package keyward

import (
	"strings"
	"testing"
	"testing/fstest"
)

const promisingText = `# A page

It is **exact**. See [this](that.md): it cannot
fail, never. Other words are no promise. "Nothing fails" is a name.

* At most 5.
* Plain.

| who | cannot |
| --- | --- |
| a caller | get past it |
| an operator | |

| what | how |
| --- | --- |
| plain | It always works. Often. |

` + "```\nnever in code\n```\n"

const promisingPage = `# Promises

| never | a row before the documents |

## README.md

| promise | test |
| --- | --- |
| It is exact. | ` + "`owner.TestA`" + ` |
| See this: it cannot … | ` + "`owner.TestA/sub_test`, `test/e2e.FuzzB`" + ` |
| At most 5. | ` + "`owner.TestA`" + ` |
| row "a caller" | ` + "`owner.TestA`" + ` |
| It always works. | ` + "`owner.TestA`" + ` |
| Plain. | ` + "`owner.TestA`" + `, which no word asks for |
`

var promisingTests = fstest.MapFS{
	"owner/a_test.go":    {Data: []byte("package owner\nfunc TestA(t *testing.T) { t.Run(\"sub test\", nil) }\n")},
	"test/e2e/b_test.go": {Data: []byte("package e2e\nfunc FuzzB(f *testing.F) {}\n")},
}

// TestPromisesAreCompared changes the page, the document or the tests and expects the one fault that this makes.
func TestPromisesAreCompared(t *testing.T) {
	for name, c := range map[string]struct{ in, old, with, want string }{
		"nothing changed":       {},
		"row removed":           {"page", "| At most 5. | `owner.TestA` |\n", "", `README.md:6: docs/promises.md has no row for this promise;`},
		"table's row removed":   {"page", "| row \"a caller\" | `owner.TestA` |\n", "", `README.md:11: docs/promises.md has no row for this promise;`},
		"promise reworded":      {"text", "It is **exact**.", "It is exactly so.", "no such sentence; correct or remove the row: It is exact."},
		"promise added":         {"text", "* Plain.", "* Plain.\n* Nothing is more.", "README.md:8: docs/promises.md has no row"},
		"cell added":            {"text", "Often.", "Not more than once.", "README.md:16: docs/promises.md has no row"},
		"sentence removed":      {"text", "* Plain.\n", "", "docs/promises.md:14: README.md has no such sentence"},
		"beginning of two":      {"text", "* Plain.", "* Plain.\n* See this: it cannot be.", "docs/promises.md:10: 2 sentences of README.md begin like this"},
		"test renamed":          {"tests", "FuzzB", "FuzzC", "docs/promises.md:10: test test/e2e.FuzzB: no test of this name in test/e2e/*_test.go;"},
		"subtest renamed":       {"tests", "sub test", "other", "docs/promises.md:10: test owner.TestA/sub_test: no subtest"},
		"folder without tests":  {"page", "test/e2e.FuzzB", "test/gone.FuzzB", "no file test/gone/*_test.go"},
		"row without test":      {"page", "| At most 5. | `owner.TestA` |", "| At most 5. | none |", "docs/promises.md:11: no test;"},
		"row of another file":   {"page", "## README.md", "## SECURITY.md", "no row for this promise"},
		"name without a folder": {"page", "`owner.TestA`, which", "`/TestA`, which", "docs/promises.md:14: test /TestA: not of the form"},
	} {
		t.Run(name, func(t *testing.T) {
			change := func(in, s string) string {
				if in == c.in {
					return strings.Replace(s, c.old, c.with, 1)
				}
				return s
			}
			root := fstest.MapFS{}
			for file, f := range promisingTests {
				root[file] = &fstest.MapFile{Data: []byte(change("tests", string(f.Data)))}
			}
			got := strings.Join(promiseFaults(root, map[string]string{"README.md": change("text", promisingText), promisesPage: change("page", promisingPage)}), "\n")
			if got != "" && c.want == "" || !strings.Contains(got, c.want) {
				t.Errorf("got:\n%s\nwant: %s", got, c.want)
			}
		})
	}
}
