package migrate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/keyward/keyward/internal/settings"
)

// Var is one variable of the environment.
type Var struct {
	Name, Value string
	From        string // source of the value if it is not literal: Secret redis, key password
}

// Env is an environment in the order in which it was read. The last of several variables with one name applies.
type Env []Var

// get returns the value of a variable, as settings.Getenv does.
func (e Env) get(name string) (string, bool) {
	for _, v := range slices.Backward(e) {
		if v.Name == name {
			return v.Value, true
		}
	}
	return "", false
}

// on reports whether a variable is set to a true value.
func (e Env) on(name string) bool {
	v, _ := e.get(name)
	b, err := strconv.ParseBool(v)
	return err == nil && b
}

// above reports whether a variable is set to a number above 0.
func (e Env) above(name string) bool {
	v, _ := e.get(name)
	n, err := strconv.ParseFloat(v, 64)
	return err == nil && n > 0
}

// ParseEnvFile reads NAME=VALUE lines, as docker run --env-file and shells do. It ignores blank lines, comments, export
// and quotes around a value.
func ParseEnvFile(text string) (Env, error) {
	var e Env
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, fmt.Errorf("line %d: want NAME=VALUE", n)
		}
		e = append(e, Var{Name: name, Value: unquote(strings.TrimSpace(value))})
	}
	return e, nil
}

func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

// The fates of variables, in the order of the report.
const (
	native   = "native"    // has the same meaning
	noEffect = "no effect" // accepted, but not needed
	goesAway = "goes away" // ignored, with a warning in the log if it configures a store
	own      = "keyward"   // a flag of Keyward
	unknown  = "unknown"   // not a variable of envoyproxy/ratelimit
)

func fates() []string { return []string{native, noEffect, goesAway, own, unknown} }

// VariableOutcome describes the effect of a variable in Keyward. Fields are only ever added.
type VariableOutcome struct {
	Name    string `json:"name"`
	Set     bool   `json:"set"`
	Value   string `json:"value,omitempty"` // omitted if it may be a secret
	From    string `json:"from,omitempty"`
	Default string `json:"default,omitempty"`
	Fate    string `json:"fate"`
	Note    string `json:"note,omitempty"`
}

// Variables returns the outcome of the variables that are set, or of all variables of envoyproxy/ratelimit.
func (e Env) Variables(all bool) []VariableOutcome {
	var list []VariableOutcome
	for _, v := range settings.Table() {
		value, set := e.get(v.Name)
		if !set && !all {
			continue
		}
		list = append(list,
			VariableOutcome{Name: v.Name, Set: set, Value: value, Default: v.Default, Fate: fateOf(v.Fate), Note: v.Note})
	}
	for i, v := range e {
		replaced := slices.ContainsFunc(e[i+1:], func(later Var) bool { return later.Name == v.Name })
		if replaced || slices.ContainsFunc(list, func(x VariableOutcome) bool { return x.Name == v.Name }) {
			continue
		}
		fate, note := otherFate(v.Name)
		list = append(list, VariableOutcome{Name: v.Name, Set: true, Value: v.Value, Fate: fate, Note: note})
	}
	for i := range list {
		list[i].hide(e)
	}
	slices.SortStableFunc(list,
		func(a, b VariableOutcome) int { return slices.Index(fates(), a.Fate) - slices.Index(fates(), b.Fate) })
	return list
}

// hide removes a value that may be a secret, and sets its source.
func (v *VariableOutcome) hide(e Env) {
	for _, x := range e {
		if x.Name == v.Name && x.From != "" {
			v.From = x.From
		}
	}
	for _, word := range []string{"AUTH", "PASSWORD", "TOKEN", "SECRET", "HEADERS"} {
		if strings.Contains(v.Name, word) && v.Value != "" && v.Name != "LIMIT_RESPONSE_HEADERS_ENABLED" {
			v.Value = "(not shown)"
		}
	}
}

func fateOf(f settings.Fate) string {
	switch f {
	case settings.Honored, settings.Reread:
		return native
	case settings.Accepted:
		return noEffect
	default: // Ignored, Unread
		return goesAway
	}
}

// otherFate returns the fate of a variable that is not in the table of envoyproxy/ratelimit's variables.
func otherFate(name string) (fate, note string) {
	for _, o := range settings.Others() {
		for _, pattern := range o.Names {
			if strings.HasPrefix(pattern, "_") {
				begin, _, _ := strings.Cut(o.Names[0], "<N>")
				pattern = begin + "<N>" + pattern
			}
			if matches(pattern, name) {
				return fateOf(o.Fate), o.Note
			}
		}
	}
	switch {
	case strings.HasPrefix(name, "KEYWARD_"), name == "POD_NAME", name == "POD_IP", name == "POD_UID":
		return own, "A variable of Keyward."
	}
	return unknown, "Not a variable of envoyproxy/ratelimit; Keyward does not read it."
}

// matches reports whether a name matches a pattern, in which <N> and * match any text.
func matches(pattern, name string) bool {
	begin, end, any := strings.Cut(strings.Replace(pattern, "<N>", "*", 1), "*")
	if !any {
		return pattern == name
	}
	return len(name) > len(begin)+len(end) && strings.HasPrefix(name, begin) && strings.HasSuffix(name, end)
}
