package main

import (
	"regexp"
	"strconv"
	"strings"
	"time"
)

// result is the result of one test.
type result struct {
	pkg, name string
	verdict   string // PASS, FAIL or SKIP
	took      time.Duration
	output    string // of a test that failed, or why it was skipped
}

var (
	verdictLine = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)`)
	testLine    = regexp.MustCompile(`^=== (RUN|NAME|CONT|PAUSE)\s+(\S+)`)
	packageLine = regexp.MustCompile(`^(ok|FAIL|---|\?)\s*\t(\S+)\t`)
)

// parser reads the output of `go test -v`, or of anything else, line by line, and collects the results of top-level
// tests.
type parser struct {
	results []result
	open    int                         // results of the package whose name has not come yet
	current string                      // top-level test that prints
	lines   map[string]*strings.Builder // output of the tests that run
}

func newParser() *parser { return &parser{lines: map[string]*strings.Builder{}} }

// line parses one line, without its end.
func (p *parser) line(s string) {
	if m := testLine.FindStringSubmatch(s); m != nil {
		p.current, _, _ = strings.Cut(m[2], "/")
		return
	}
	if m := verdictLine.FindStringSubmatch(s); m != nil {
		seconds, _ := strconv.ParseFloat(m[3], 64)
		r := result{name: m[2], verdict: m[1], took: time.Duration(seconds * float64(time.Second))}
		if out := p.lines[r.name]; out != nil && r.verdict != "PASS" {
			r.output = out.String()
		}
		delete(p.lines, r.name)
		p.results = append(p.results, r)
		p.current = r.name
		return
	}
	if m := packageLine.FindStringSubmatch(s); m != nil {
		for i := p.open; i < len(p.results); i++ {
			p.results[i].pkg = m[2]
		}
		p.open, p.current = len(p.results), ""
		return
	}
	if p.current == "" || s == "PASS" || s == "FAIL" {
		return
	}
	if n := len(p.results); n > p.open && p.results[n-1].name == p.current && p.lines[p.current] == nil {
		if p.results[n-1].verdict != "PASS" { // subtests' verdicts and output follow their parent's
			p.results[n-1].output += s + "\n"
		}
		return
	}
	out := p.lines[p.current]
	if out == nil {
		out = &strings.Builder{}
		p.lines[p.current] = out
	}
	out.WriteString(s)
	out.WriteByte('\n')
}

// unfinished returns the tests that began and did not end: the program ended during them.
func (p *parser) unfinished() (out []result) {
	for name, lines := range p.lines {
		if strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") {
			out = append(out, result{name: name, verdict: "FAIL", output: lines.String() + "(ended without a verdict)\n"})
		}
	}
	return out
}

var reasonLine = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)$`)

// reason returns why a test was skipped.
func (r result) reason() string {
	for _, s := range strings.Split(r.output, "\n") {
		if m := reasonLine.FindStringSubmatch(s); m != nil {
			return m[1]
		}
	}
	return "no reason given"
}
