package translate

import (
	"fmt"
	"strings"
)

// rateLimit is one rate limit of a route in Envoy: the actions that make one descriptor.
type rateLimit struct {
	where    string // the route, or what else has it
	actions  []action
	settings []string // lines of YAML next to the actions, such as hits_addend
}

// action makes one entry of a descriptor.
type action struct {
	name   string // the field of Envoy's RateLimit.Action
	fields []pair // in the order of the file
}

func genericKey(key, value string) action {
	a := action{name: "generic_key"}
	if key != "" {
		a.fields = append(a.fields, pair{"descriptor_key", scalar(key)})
	}
	a.fields = append(a.fields, pair{"descriptor_value", scalar(value)})
	return a
}

func requestHeaders(header, key string) action {
	return action{"request_headers", []pair{{"header_name", scalar(header)}, {"descriptor_key", scalar(key)}}}
}

// matched returns a header_value_match or query_parameter_value_match. list is the field with the conditions.
func matched(name, list, key, value string, expect bool, conditions ...string) action {
	a := action{name: name}
	if key != "" {
		a.fields = append(a.fields, pair{"descriptor_key", scalar(key)})
	}
	a.fields = append(a.fields, pair{"descriptor_value", scalar(value)}, pair{"expect_match", fmt.Sprint(expect)},
		pair{list, "[" + strings.Join(conditions, ", ") + "]"})
	return a
}

func (a action) String() string {
	fields := make([]string, 0, len(a.fields))
	for _, p := range a.fields {
		fields = append(fields, p.key+": "+p.value)
	}
	return "{" + a.name + ": {" + strings.Join(fields, ", ") + "}}"
}

// renderActions returns the rate limits as lines of YAML, those of one route together.
func renderActions(list []rateLimit) (lines []string) {
	where := ""
	for i, r := range list {
		if i == 0 || r.where != where {
			where = r.where
			lines = append(lines, "Envoy's rate limits of "+where+":")
		}
		lines = append(lines, "  - actions:")
		for _, a := range r.actions {
			lines = append(lines, "      - "+a.String())
		}
		for _, s := range r.settings {
			lines = append(lines, "    "+s)
		}
	}
	return lines
}
