package config

import (
	"strings"
	"unicode/utf8"
)

// explainSyntax adds the column and a hint to a YAML syntax fault.
func explainSyntax(content []byte, f *Diagnostic) {
	lines := strings.Split(string(content), "\n")
	if _, rest, found := strings.Cut(f.Text, "unknown anchor '"); found {
		name, _, _ := strings.Cut(rest, "'")
		f.Line, f.Column = findText(lines, "*"+name)
		f.Hint = "a value that begins with * names an anchor: put a wildcard in quotes"
		return
	}
	if f.Line < 1 || f.Line > len(lines) {
		return
	}
	line := lines[f.Line-1]
	start := len(line) - len(strings.TrimLeft(line, " \t-"))
	if i := strings.IndexByte(line[:start], '\t'); i >= 0 {
		f.Column, f.Hint = i+1, "a tab cannot indent YAML: use spaces"
		return
	}
	for _, s := range syntaxHints() {
		if !strings.Contains(f.Text, s.text) {
			continue
		}
		if i := valueWith(line, s.begins); i >= 0 {
			f.Column = 1 + utf8.RuneCountInString(line[:i])
		}
		f.Hint = s.hint
		return
	}
}

// syntaxHint explains a message of the parser. begins are the characters with which the faulty value begins.
type syntaxHint struct{ text, begins, hint string }

func syntaxHints() []syntaxHint {
	return []syntaxHint{
		{"expected alphabetic or numeric character", "*&", "a value that begins with * or & is an alias or an anchor: put " +
			"a wildcard in quotes"},
		{"cannot start any token", "@`%", "a value that begins with this character needs quotes"},
		{"mapping values are not allowed", "", "the line is indented too far or not far enough, or a value with a colon " +
			"needs quotes"},
		{"did not find expected '-' indicator", "", "a following line is indented less than this list and more than its " +
			"parent"},
		{"did not find expected key", "", "a following line is indented differently from this mapping"},
		{"did not find expected ',' or '}'", "", "the { of this line, or of one before it, is not closed"},
		{"did not find expected ',' or ']'", "", "the [ of this line, or of one before it, is not closed"},
		{"unexpected end of stream", "", "a quote is not closed"},
	}
}

// valueWith returns the index of the first value in a line that begins with one of the characters, or -1.
func valueWith(line, begins string) int {
	for i := range line {
		if strings.ContainsRune(begins, rune(line[i])) && i > 0 && strings.IndexByte(" [{,", line[i-1]) >= 0 {
			return i
		}
	}
	return -1
}

// findText returns the line and column of the first occurrence of a text, or 0 and 0.
func findText(lines []string, text string) (line, column int) {
	for i, l := range lines {
		if at := strings.Index(l, text); at >= 0 {
			return i + 1, 1 + utf8.RuneCountInString(l[:at])
		}
	}
	return 0, 0
}
