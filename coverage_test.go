package keyward

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// coveragePage maps the statements of the documents that Keyward was designed from to the tests that show them.
const coveragePage = "docs/coverage.md"

// coverageStates are the states of a statement, in the order of the columns of the page's summary.
var coverageStates = []string{"works", "differs", "partly", "missing", "planned", "not applicable"}

// TestCoverage requires that docs/coverage.md is complete and consistent, and that the tests it names exist.
func TestCoverage(t *testing.T) {
	b, err := os.ReadFile(coveragePage)
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range coverageFaults(os.DirFS("."), string(b)) {
		t.Error(fault)
	}
}

// coverageRow is a row of a table of coveragePage.
type coverageRow struct {
	line  int
	cells []string
}

// coverageTables are the tables of coveragePage. Rows are those of statements, which have six cells: number, statement,
// state, tests, manual and remark.
type coverageTables struct {
	rows         []coverageRow
	capabilities []string
	summary      map[string]coverageRow // by the first cell
}

var statementNumber = regexp.MustCompile(`^(\w)\.(\d+)$`)

// readCoverage reads the tables of a page by their heads.
func readCoverage(page string) (tables coverageTables) {
	tables.summary = map[string]coverageRow{}
	head := ""
	for i, line := range strings.Split(page, "\n") {
		switch {
		case !strings.HasPrefix(line, "|"):
			head = ""
			continue
		case tableRule.MatchString(line):
			continue
		}
		row := coverageRow{line: i + 1}
		for _, c := range cells(line) {
			row.cells = append(row.cells, strings.TrimSpace(c))
		}
		switch first := row.cells[0]; {
		case head == "":
			head = first
		case head == "#":
			tables.rows = append(tables.rows, row)
		case head == "capability":
			tables.capabilities = append(tables.capabilities, first)
		case head == "document":
			tables.summary[first] = row
		}
	}
	return tables
}

// coverageFaults returns what is wrong with a page, whose tests are those in root.
func coverageFaults(root fs.FS, page string) (faults []string) {
	add := func(line int, format string, args ...any) {
		faults = append(faults, fmt.Sprintf("%s:%d: ", coveragePage, line)+fmt.Sprintf(format, args...))
	}
	tables, tests := readCoverage(page), testNames{root: root, folders: map[string]testFolder{}}
	last, counts := map[string]int{}, map[string]map[string]int{"all": {}}
	for _, row := range tables.rows {
		if len(row.cells) != 6 {
			add(row.line, "%d cells; write number, statement, state, tests, manual and remark", len(row.cells))
			continue
		}
		number := statementNumber.FindStringSubmatch(row.cells[0])
		if number == nil {
			add(row.line, "%q is not the number of a statement, such as 0.01", row.cells[0])
			continue
		}
		document := number[1]
		last[document]++
		if n, _ := strconv.Atoi(number[2]); n != last[document] {
			add(row.line, "statement %s follows %s.%02d; every statement has one row", row.cells[0], document, last[document]-1)
			last[document] = n
		}
		state := row.cells[2]
		if !slices.Contains(coverageStates, state) {
			add(row.line, "%q is not a state; use one of %s", state, strings.Join(coverageStates, ", "))
		}
		if counts[document] == nil {
			counts[document] = map[string]int{}
		}
		counts[document][state]++
		counts["all"][state]++
		for _, fault := range row.faults(tables.capabilities, &tests) {
			add(row.line, "statement %s: %s", row.cells[0], fault)
		}
	}
	return append(faults, tables.summaryFaults(counts)...)
}

// faults returns what is wrong with the row of a statement.
func (r coverageRow) faults(capabilities []string, tests *testNames) (faults []string) {
	state, named, manual, remark := r.cells[2], r.cells[3], r.cells[4], r.cells[5]
	refs := testRef.FindAllStringSubmatch(named, -1)
	for _, m := range refs {
		if err := tests.check(m[1]); err != nil {
			faults = append(faults, fmt.Sprintf("test %s: %v; name a test that shows the statement", m[1], err))
		}
	}
	switch state {
	case "works", "differs", "partly":
		if len(refs) == 0 && named != "documentation" {
			faults = append(faults, "no test; name one as `folder.TestName`, or write documentation if it asks for text alone")
		}
		if !markdownLink.MatchString(manual) {
			faults = append(faults, "no link to the manual")
		}
	case "planned":
		if !slices.ContainsFunc(capabilities, func(c string) bool { return strings.HasPrefix(remark, c) }) {
			faults = append(faults, "the remark does not begin with a planned capability: "+strings.Join(capabilities, ", "))
		}
	}
	if state != "works" && remark == "" {
		faults = append(faults, "no remark; write what differs or is missing, or why the statement does not apply")
	}
	return faults
}

// summaryFaults compares the page's summary with the counts of states by document.
func (t coverageTables) summaryFaults(counts map[string]map[string]int) (faults []string) {
	for document, states := range counts {
		row, found := t.summary[document]
		want, sum := []string{document}, 0
		for _, s := range coverageStates {
			want, sum = append(want, strconv.Itoa(states[s])), sum+states[s]
		}
		if want = append(want, strconv.Itoa(sum)); !found || !slices.Equal(row.cells, want) {
			faults = append(faults, fmt.Sprintf("%s:%d: the summary has %q; write | %s |",
				coveragePage, row.line, row.cells, strings.Join(want, " | ")))
		}
	}
	slices.Sort(faults)
	return faults
}
