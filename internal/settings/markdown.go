package settings

import (
	"fmt"
	"strings"
)

// Markdown is the manual's page of the environment.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# The environment of envoyproxy/ratelimit

Keyward reads the variables of ` + "`envoyproxy/ratelimit`" + `, by the same rules: booleans are ` + "`1`, `t`, `true`, `0`, `f`, `false`" + ` in any usual
case, durations are like ` + "`10s`" + `, maps like ` + "`name:value,name:value`" + `. A value that cannot be read stops the start, and all such values are
named at once. This page is generated from the table in ` + "`internal/settings`" + `; a test keeps it up to date.

| variable | kind | default | what becomes of it | |
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
Libraries of ` + "`envoyproxy/ratelimit`" + ` read some more:

| variable | what becomes of it | |
|---|---|---|
`)
	for _, o := range Others() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.Join(o.Names, "`, `"), o.Fate, o.Note)
	}
	b.WriteString(`
## Files that variables name

What becomes of a file that is not there:

| variable | read | when the file is not there |
|---|---|---|
`)
	for _, f := range Files() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Name, f.When, f.Absent)
	}
	return b.String()
}
