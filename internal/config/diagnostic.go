package config

import (
	"cmp"
	"fmt"
)

// Diagnostic is a fault, a warning or a change at one position in the rules. Fields are only ever added.
type Diagnostic struct {
	Kind   string `json:"kind"` // one word, such as BadYAML or unreachable
	File   string `json:"file"`
	Line   int    `json:"line"`   // 0 if unknown
	Column int    `json:"column"` // in characters, from 1; 0 if only the line is known
	Rule   string `json:"rule,omitempty"`
	Text   string `json:"text"`
	Hint   string `json:"hint,omitempty"` // what the author may have meant, or should write instead

	// original is the message of envoyproxy/ratelimit if it differs from Text: it reports several faults in one error.
	original string
}

// The kinds of faults. A file with a fault cannot be loaded.
const (
	BadYAML      = "yaml"      // the file is not valid YAML for rules
	BadRules     = "rules"     // the rules contradict themselves or each other
	BadExtension = "extension" // metadata.keyward is invalid; envoyproxy/ratelimit would load the file
)

// Error returns a fault in the words of envoyproxy/ratelimit.
func (d Diagnostic) Error() string { return d.File + ": " + cmp.Or(d.original, d.Text) }

// String returns the diagnostic as file:line: text.
func (d Diagnostic) String() string { return fmt.Sprintf("%s:%d: %s", d.File, d.Line, d.Text) }
