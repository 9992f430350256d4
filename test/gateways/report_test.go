package gateways

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the outcomes into the table of docs/gateways/README.md")

// result is the outcome of a case with a gateway.
type result struct {
	gateway string // name of its page, and of a variant
	about   string // versions
	name    string // of the case
	passed  bool
	lacks   string // why the gateway cannot run the case
	without string // the part that the gateway cannot run
	figures string
}

// verdict is the cell of the table.
func (r result) verdict() string {
	switch {
	case r.lacks != "":
		return "no: the gateway " + r.lacks
	case !r.passed:
		return "FAILED"
	case r.without != "":
		return "green, without " + r.without
	}
	return "green"
}

// results are those of this run.
var results []result

// omitted has the gateways and names of the cases that this run cannot have.
var omitted []result

// printTable prints the outcomes with what was measured.
func printTable() {
	if len(results) == 0 {
		return
	}
	fmt.Printf("\n%-28s %-24s %s\n", "gateway", "case", "outcome")
	for _, r := range results {
		fmt.Printf("%-28s %-24s %s\n", r.gateway, r.name, strings.TrimSuffix(r.verdict()+"; "+r.figures, "; "))
	}
}

// page has the table of gateways and cases. Its first row has the gateways' names, and its second the versions.
const page = "../../docs/gateways/README.md"

const versionsRow = "versions"

// table is the table of page: a column for each gateway.
type table struct {
	before, after string // the rest of the page
	gateways      []string
	rows          []string                     // names of the cases
	cells         map[string]map[string]string // by case and gateway
}

// checkTable compares the outcomes with the page, or writes them to it.
func checkTable() error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	t, err := readTable(string(text))
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range results {
		if got := t.cells[r.name][r.gateway]; got != r.verdict() && !*update {
			errs = append(errs, fmt.Errorf("%s has %q for the case %q of %s, and the outcome is %q: scripts/gateways . -update writes it", page, got, r.name, r.gateway, r.verdict()))
		}
		t.set(r.gateway, versionsRow, r.about)
		t.set(r.gateway, r.name, r.verdict())
	}
	for _, g := range t.gateways {
		if i := slices.IndexFunc(results, func(r result) bool { return r.gateway == g }); i >= 0 {
			errs = append(errs, checkGatewayPage(results[i]))
		}
	}
	if *update {
		errs = append(errs, os.WriteFile(page, []byte(t.String()), 0o644))
	}
	return errors.Join(errs...)
}

// ranAll reports whether this run has the outcomes of all cases that it can have with a gateway.
func ranAll(gateway string) bool {
	if !long() {
		return false
	}
	for _, c := range cases {
		if !slices.ContainsFunc(slices.Concat(results, omitted), func(r result) bool { return r.gateway == gateway && r.name == c.name }) {
			return false
		}
	}
	return true
}

// testedOn is how the page of a gateway begins the paragraph with what was tested, and when.
var testedOn = regexp.MustCompile(`\bTested on \d{4}-\d\d-\d\d with `)

// checkGatewayPage requires that the page of a gateway names the versions of this run and the command that repeats it, and
// writes the date of this run there with -update, if it was a run of all cases.
func checkGatewayPage(r result) error {
	name, _, _ := strings.Cut(r.gateway, " ")
	path := filepath.Join(filepath.Dir(page), name+".md")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !testedOn.Match(text) || !strings.Contains(string(text), "scripts/gateways ") {
		return fmt.Errorf("%s does not say when it was tested (%s), or by which command", path, testedOn)
	}
	flat := strings.Join(strings.Fields(string(text)), " ")
	for _, part := range strings.Split(r.about, ", ") {
		part, _, _ = strings.Cut(part, " (") // a commit
		if regexp.MustCompile(`\d`).MatchString(part) && !strings.Contains(flat, part) {
			return fmt.Errorf("%s does not name the version tested: %s", path, part)
		}
	}
	if !*update || !ranAll(r.gateway) {
		return nil
	}
	text = testedOn.ReplaceAll(text, []byte("Tested on "+time.Now().UTC().Format(time.DateOnly)+" with "))
	return os.WriteFile(path, text, 0o644)
}

// requireColumn fails if the page does not list a gateway, unless the run writes the page.
func requireColumn(t *testing.T, gateway string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	known, err := readTable(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if !*update && !slices.Contains(known.gateways, gateway) {
		t.Fatalf("%s has no column of %s: scripts/gateways . -update writes it", page, gateway)
	}
}

func (t *table) set(gateway, name, cell string) {
	if !slices.Contains(t.gateways, gateway) {
		t.gateways = append(t.gateways, gateway)
	}
	if t.cells[name] == nil {
		t.cells[name] = map[string]string{}
		t.rows = append(t.rows, name)
	}
	t.cells[name][gateway] = cell
}

func readTable(text string) (*table, error) {
	const head = "| case |"
	i := strings.Index(text, head)
	if i < 0 {
		return nil, fmt.Errorf("%s has no line that begins with %s", page, head)
	}
	end := len(text)
	if j := strings.Index(text[i:], "\n\n"); j >= 0 {
		end = i + j + 1
	}
	t := &table{before: text[:i], after: text[end:], cells: map[string]map[string]string{}}
	for n, line := range strings.Split(strings.TrimSpace(text[i:end]), "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for k := range cells {
			cells[k] = strings.TrimSpace(cells[k])
		}
		if n == 1 {
			continue // the rule
		}
		for k, c := range cells[1:] {
			if n == 0 {
				name, _, _ := strings.Cut(strings.TrimPrefix(c, "["), "]")
				t.gateways = append(t.gateways, name)
				continue
			}
			t.set(t.gateways[k], cells[0], c)
		}
	}
	return t, nil
}

// String returns the page.
func (t *table) String() string {
	var b strings.Builder
	b.WriteString(t.before + "| case |")
	for _, g := range t.gateways {
		file, _, _ := strings.Cut(g, " ")
		fmt.Fprintf(&b, " [%s](%s.md) |", g, file)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(t.gateways)) + "\n")
	for _, name := range t.rows {
		fmt.Fprintf(&b, "| %s |", name)
		for _, g := range t.gateways {
			fmt.Fprintf(&b, " %s |", cmp.Or(t.cells[name][g], "-"))
		}
		b.WriteString("\n")
	}
	return b.String() + t.after
}
