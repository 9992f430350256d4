package keyward

import (
	"strings"
	"testing"
)

const coveredPage = `# Coverage

| document | works | differs | partly | missing | planned | not applicable | all |
|---|---|---|---|---|---|---|---|
| 0 | 2 | 0 | 0 | 1 | 0 | 0 | 3 |
| 1 | 0 | 1 | 0 | 0 | 1 | 1 | 3 |
| all | 2 | 1 | 0 | 1 | 1 | 1 | 6 |

| capability | what it brings |
|---|---|
| holds | budgets |

## A document

| # | statement | state | tests | manual | remark |
|---|---|---|---|---|---|
| 0.01 | one | works | ` + "`owner.TestA`" + ` | [a](a.md) | |
| 0.02 | two | works | documentation | [a](a.md#b) | |
| 0.03 | three | missing | | | not built |

| # | statement | state | tests | manual | remark |
|---|---|---|---|---|---|
| 1.01 | one | differs | ` + "`owner.TestA/sub_test`" + ` | [a](a.md) | otherwise |
| 1.02 | two | planned | | | holds |
| 1.03 | three | not applicable | | | advice |
`

// TestCoverageIsCompared changes the page and expects the one fault that this makes.
func TestCoverageIsCompared(t *testing.T) {
	for name, c := range map[string]struct{ old, with, want string }{
		"nothing changed":         {},
		"test renamed":            {"owner.TestA`", "owner.TestB`", "docs/coverage.md:17: statement 0.01: test owner.TestB: no test of this name"},
		"subtest renamed":         {"sub_test", "other", "docs/coverage.md:23: statement 1.01: test owner.TestA/other: no subtest"},
		"test removed":            {"`owner.TestA`", "", "docs/coverage.md:17: statement 0.01: no test;"},
		"link removed":            {"[a](a.md#b)", "a", "docs/coverage.md:18: statement 0.02: no link"},
		"another state":           {"| 0.02 | two | works", "| 0.02 | two | done", `docs/coverage.md:18: "done" is not a state`},
		"row removed":             {"| 0.02 | two | works | documentation | [a](a.md#b) | |\n", "", "docs/coverage.md:18: statement 0.03 follows 0.01"},
		"row added":               {"advice |\n", "advice |\n| 1.04 | four | missing | | | no |\n", "docs/coverage.md:6: the summary has"},
		"cell removed":            {"| 0.03 | three |", "| 0.03 |", "docs/coverage.md:19: 5 cells"},
		"no number":               {"| 0.03 |", "| three |", "docs/coverage.md:19: \"three\" is not the number"},
		"remark removed":          {"not built", "", "docs/coverage.md:19: statement 0.03: no remark"},
		"capability removed":      {"| holds | budgets |\n", "", "docs/coverage.md:23: statement 1.02: the remark does not begin"},
		"summary wrong":           {"| 2 | 1 | 0 | 1 |", "| 3 | 1 | 0 | 1 |", "docs/coverage.md:7: the summary has"},
		"line of a document gone": {"| 1 | 0 | 1 | 0 | 0 | 1 | 1 | 3 |\n", "", "docs/coverage.md:0: the summary has"},
	} {
		t.Run(name, func(t *testing.T) {
			got := coverageFaults(promisingTests, strings.Replace(coveredPage, c.old, c.with, 1))
			if len(got) > 0 && c.want == "" || !strings.Contains(strings.Join(got, "\n"), c.want) {
				t.Errorf("got:\n%s\nwant: %s", strings.Join(got, "\n"), c.want)
			}
		})
	}
}
