package translate

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// gatewayDuration is the form of durations in Gateway API.
var gatewayDuration = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

// maxWindow is the longest window of a rule.
const maxWindow = 8760 * time.Hour

// kuadrantRate reads a rate. It returns nil if it is invalid or rules cannot express it.
func (t *translation) kuadrantRate(p *kuadrantPolicy, f field) *limit {
	m := f.open().only("limit", "window")
	amount, window := m.get("limit"), m.get("window")
	if !amount.required() || !window.required() {
		return nil
	}
	var n uint64
	if k, err := strconv.ParseInt(amount.text(), 0, 64); err != nil || k >= 0 { // Kuadrant counts a negative limit as 0
		var ok bool
		if n, ok = amount.number(math.MaxUint32); !ok {
			return nil
		}
	}
	length, err := time.ParseDuration(window.text())
	switch {
	case err != nil || !gatewayDuration.MatchString(window.text()):
		window.say(Invalid, "write it in h, m, s and ms, as in 24h", "%s is not a duration of Gateway API", quoted(window.text()))
		return nil
	case length == 0 || length > maxWindow:
		window.say(NoCounterpart, "use a window up to 8760h", "a window of %v cannot be counted", length)
		return nil
	case length%time.Second != 0:
		window.say(Note, "", "Kuadrant cuts it to %v; the rule has it as it is written", length.Truncate(time.Second))
	}
	l := windowed(n, length)
	if p.token {
		l.reserve(t.options.Reserve, false, f)
	}
	return l
}

// windowed returns a limit with a window of any length.
func windowed(n uint64, window time.Duration) *limit {
	l := &limit{requests: n, unit: "second"}
	for _, u := range []struct {
		name   string
		length time.Duration
	}{{"second", time.Second}, {"minute", time.Minute}, {"hour", time.Hour}, {"day", 24 * time.Hour}, {"week", 7 * 24 * time.Hour},
		{"month", 30 * 24 * time.Hour}, {"year", maxWindow}} {
		if window == u.length {
			return &limit{requests: n, unit: u.name}
		}
		if window > u.length {
			l.unit = u.name
		}
	}
	text := window.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	l.extra = []pair{{"window", text}}
	return l
}

// reserve adds the keys of holds, with the number of tokens that a request reserves. addend is for gateways that check
// with 0 hits and charge the tokens later.
func (l *limit) reserve(tokens uint32, addend bool, at field) {
	if tokens == 0 {
		return
	}
	if uint64(tokens) > l.requests {
		at.say(Invalid, "pass a smaller --reserve", "the limit of %d is smaller than the %d tokens that a request reserves", l.requests, tokens)
		return
	}
	l.extra = append(l.extra, pair{"reserve", strconv.FormatUint(uint64(tokens), 10)})
	if addend {
		l.extra = append(l.extra, pair{"settle", "addend"}, pair{"lapse", "release"})
	}
}

// equality matches a predicate, or a part of one, that compares an attribute with a string.
var equality = regexp.MustCompile(`^\s*([A-Za-z_][A-Za-z0-9_.]*)\s*==\s*(?:'([^'\\]*)'|"([^"\\]*)")\s*$`)

// equalities returns the strings that attributes must equal for all predicates to hold.
func equalities(predicates []string) map[string]string {
	all := map[string]string{}
	for _, p := range predicates {
		for _, part := range conjuncts(p) {
			if m := equality.FindStringSubmatch(part); m != nil {
				all[m[1]] = m[2] + m[3]
			}
		}
	}
	return all
}

// conjuncts splits a predicate at each && that is not inside of quotes or parentheses. It returns nil for alternatives.
func conjuncts(predicate string) (parts []string) {
	depth, start, quote := 0, 0, byte(0)
	for i := 0; i < len(predicate); i++ {
		c := predicate[i]
		switch {
		case quote != 0 && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case strings.IndexByte("([{", c) >= 0:
			depth++
		case strings.IndexByte(")]}", c) >= 0:
			depth--
		case depth == 0 && (c == '|' || c == '?'):
			return nil
		case depth == 0 && strings.HasPrefix(predicate[i:], "&&"):
			parts = append(parts, predicate[start:i])
			i++
			start = i + 1
		}
	}
	return append(parts, predicate[start:])
}

// disjoint reports whether no request can satisfy both lists of predicates, judged by comparisons with strings alone.
func disjoint(a, b []string) bool {
	other := equalities(b)
	for attribute, value := range equalities(a) {
		if v, ok := other[attribute]; ok && v != value {
			return true
		}
	}
	return false
}
