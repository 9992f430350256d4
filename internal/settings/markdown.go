package settings

import (
	"fmt"
	"strings"
)

// Markdown returns the manual's page on the environment.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# The environment of envoyproxy/ratelimit

Keyward reads the variables of ` + "`envoyproxy/ratelimit`" + `, with the same syntax: booleans are ` + "`1`, `t`" + `,
` + "`true`, `0`, `f`, `false`" + ` in any usual case, durations such as ` + "`10s`" + `, maps such as
` + "`name:value,name:value`" + `. An invalid value stops the start, and the error lists all invalid values.
This page is generated from the table in ` + "`internal/settings`" + `; a test keeps it up to date.

| variable | kind | default | effect | |
|---|---|---|---|---|
`)
	for _, v := range Table() {
		def := ""
		if v.Default != "" {
			def = "`" + v.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", v.Name, v.Kind(), def, v.Fate, v.Note)
	}
	b.WriteString(`
Libraries of ` + "`envoyproxy/ratelimit`" + ` read further variables:

| variable | effect | |
|---|---|---|
`)
	for _, o := range Others() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.Join(o.Names, "`, `"), o.Fate, o.Note)
	}
	b.WriteString(`
## Files that variables name

What happens if a file is missing:

| variable | read | if the file is missing |
|---|---|---|
`)
	for _, f := range Files() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Name, f.When, f.Absent)
	}
	return b.String()
}
