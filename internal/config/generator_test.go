package config

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// generator makes configurations and descriptors from few words, so that they often match.
type generator struct {
	rand     *rand.Rand
	metadata bool // may use metadata
	middle   bool // may put * anywhere
	sound    bool // makes no faults
}

func (g *generator) one(in int) bool { return g.rand.IntN(in) == 0 }

func (g *generator) pick(words ...string) string { return words[g.rand.IntN(len(words))] }

// fault reports whether the file should get a certain fault now.
func (g *generator) fault() bool { return !g.sound && g.one(250) }

func (g *generator) files() []File {
	var files []File
	for i := range 1 + g.rand.IntN(2) {
		var b strings.Builder
		domain := g.pick("d", "d2", "d3", "d.e", "d4")
		if i == 0 {
			domain = "d"
		}
		if g.fault() {
			domain = `""`
		}
		if g.fault() {
			b.WriteString(g.pick("0.5: x\n", "Domain: d\n", "? [a]\n: b\n", "~: 1\n", "unit: 1.5\n", "- a\n", "\tx: y\n", "yes: 1\n"))
		}
		fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", domain)
		if g.fault() {
			b.WriteString(g.pick("- a\n", "- [a]\n", "- 5\n", "- ~\n"))
		}
		g.descriptors(&b, "", 0)
		files = append(files, File{fmt.Sprintf("f%d.yaml", i), []byte(b.String())})
	}
	return files
}

func (g *generator) descriptors(b *strings.Builder, indent string, depth int) {
	seen := map[string]bool{}
	for range 1 + g.rand.IntN(4) {
		key, value := g.key(), g.pick("", "", "", g.value())
		if glued := key + "_" + value; seen[glued] && !g.fault() {
			continue
		} else {
			seen[glued] = true
		}
		if g.fault() {
			key = g.pick(`""`, "~", "a: b")
		}
		fmt.Fprintf(b, "%s- key: %s\n", indent, key)
		if value != "" {
			fmt.Fprintf(b, "%s  value: %s\n", indent, value)
		}
		wild := strings.HasSuffix(value, `*"`) || g.middle && strings.Contains(value+key, "*")
		if wild && g.one(2) || g.fault() {
			fmt.Fprintf(b, "%s  share_threshold: true\n", indent)
		}
		g.flags(b, indent+"  ")
		if g.one(2) {
			g.limit(b, indent+"  ")
		}
		if depth < 3 && g.one(3) {
			fmt.Fprintf(b, "%s  descriptors:\n", indent)
			g.descriptors(b, indent+"  ", depth+1)
		}
	}
}

func (g *generator) key() string {
	if g.middle && g.one(12) {
		return g.pick(`"a*"`, `"*"`, `"a*b"`)
	}
	return g.pick("a", "b", "c", "a_b", "a_", "k", "e", "f", "g", "h")
}

func (g *generator) value() string {
	if g.middle && g.one(3) {
		return g.pick(`"*x"`, `"x*y"`, `"x*y*"`, `"*x*y*z"`, `"b*_c*"`, `"**"`)
	}
	return g.pick("b", "x", "b_c", "5", "0x1F", "yes", "2026-11-21", `"x*"`, `"*"`, `"xy*"`, `"b_*"`, "true", "x1")
}

func (g *generator) flags(b *strings.Builder, indent string) {
	for _, flag := range []string{"shadow_mode", "quota_mode", "detailed_metric", "value_to_metric"} {
		if g.one(5) {
			fmt.Fprintf(b, "%s%s: %s\n", indent, flag, g.pick("true", "yes", "false", "on"))
		}
	}
	if g.fault() {
		fmt.Fprintf(b, "%s%s\n", indent, g.pick("ratelimit: {}", "shadow_mode: 5", "5: 6", "value: 1.5", "key: [1]", "name: {a: b}",
			"shadow_mode: 'true'", "descriptors: 5", "value: 18446744073709551615", "unit: {unit: 7, nope: 1, never: 2}"))
	}
	if g.metadata && g.one(4) {
		fmt.Fprintf(b, "%smetadata: %s\n", indent, g.pick("{a: b}", "{a: {b: [1, 2.5, {c: ~}]}, 5: x}", "{}", "~", "{yes: !!binary aGk=}",
			"{keyward: {algorithm: sliding_log, window: 90s, durability: strict}}", "{a: b, keyward: {algorithm: token_bucket, burst: 7, window: 500ms}}",
			"{keyward: {mechanism: lease, ttl: 3s, weight: 2, reclaim: ttl}}", "{keyward: {mechanism: approximate, epsilon: 100%, low_watermark: 0.3}}"))
	}
	if g.metadata && g.fault() {
		fmt.Fprintf(b, "%smetadata: %s\n", indent, g.pick("{a: !!binary //8=}", "[a]", "text", "{keyward: 5}"))
	}
}

func (g *generator) limit(b *strings.Builder, indent string) {
	unit := g.pick("second", "MINUTE", "Hour", "day", "week", "month", "year")
	count := g.pick("0", "1", "20", "010", "1_0", "0b101", "4294967295")
	if g.fault() {
		unit = g.pick("foo", `""`, "unknown", "~", "seconds", "5")
	}
	if g.fault() {
		count = g.pick("-1", "4294967296", "'5'", "1.5", "2.0", "1e2", "ten", "[1]", "~", "true")
	}
	fmt.Fprintf(b, "%srate_limit:\n", indent)
	if unlimited := g.one(6); unlimited {
		fmt.Fprintf(b, "%s  unlimited: true\n", indent)
		if g.fault() {
			fmt.Fprintf(b, "%s  unit: %s\n", indent, unit)
		}
	} else {
		fmt.Fprintf(b, "%s  unit: %s\n", indent, unit)
	}
	fmt.Fprintf(b, "%s  requests_per_unit: %s\n", indent, count)
	name := g.pick("", "", "one", "two")
	if name != "" {
		fmt.Fprintf(b, "%s  name: %s\n", indent, name)
	}
	if g.one(5) {
		fmt.Fprintf(b, "%s  replaces: [{name: three}, {name: four}]\n", indent)
	}
	if g.fault() {
		fmt.Fprintf(b, "%s  replaces: %s\n", indent, g.pick("[{name: ''}]", "[{name: one}]", "[]", "[{}]", "[one]", "{name: one}", "[{name: one}, {name: ''}]"))
	}
}

// query makes a descriptor along the configured levels, with some deviations.
func (g *generator) query(rules *Rules) query {
	q := query{domain: g.pick("d", "d", "d", "d2", "d3", "d.e", "nope")}
	var at *node
	if d := rules.domains[q.domain]; d != nil {
		at = &d.node
	}
	for depth := 0; depth < 5 && !g.one(12); depth++ {
		if at == nil || len(at.list) == 0 || g.one(8) {
			if depth > 0 && g.one(2) {
				break
			}
			q.entries = append(q.entries, Entry{g.pick("a", "b", "a_b", "k", ""), g.pick("b", "x", "", "x1", "b_c", "*")})
			at = nil
			continue
		}
		at = at.list[g.rand.IntN(len(at.list))]
		q.entries = append(q.entries, g.entry(at))
		if at.rule != nil && g.one(2) {
			break
		}
	}
	if g.one(8) {
		q.override = &Override{g.rand.Uint32N(100), Unit(g.rand.IntN(10))}
	}
	return q
}

// entry returns an entry that n may match.
func (g *generator) entry(n *node) Entry {
	fill := func(s string) string {
		for strings.Contains(s, "*") && !g.one(6) {
			s = strings.Replace(s, "*", g.pick("", "1", "x", "y", "_", "zz", "y_c"), 1)
		}
		return s
	}
	switch {
	case g.one(8): // glued elsewhere
		if glued := fill(n.glued); strings.Contains(glued, "_") {
			i := strings.LastIndex(glued, "_")
			return Entry{glued[:i], glued[i+1:]}
		}
		return Entry{n.glued, ""}
	case n.level.Value == "":
		return Entry{fill(n.level.Key), g.pick("b", "x", "", "x1", "b_c", "any", "5")}
	}
	return Entry{n.level.Key, fill(n.level.Value)}
}
