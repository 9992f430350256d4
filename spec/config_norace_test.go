//go:build !race

package spec

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// readConfig reads a configuration of TLC, so that the twin uses the same constants and checks the same invariants.
func readConfig(path string) (*model, []string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	m, checked, section := &model{}, []string(nil), ""
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == `\*`:
			continue
		case line[0] != ' ':
			section, words = words[0], words[1:]
		}
		switch section {
		case "SPECIFICATION", "CHECK_DEADLOCK":
		case "INVARIANTS":
			checked = append(checked, words...)
		case "VIEW":
			m.view = true
		case "CONSTANTS":
			if name, value, found := strings.Cut(line, "="); found {
				err = m.set(strings.TrimSpace(name), strings.TrimSpace(value))
			}
		default:
			err = fmt.Errorf("unknown section %s", section)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	checked = slices.DeleteFunc(checked, func(name string) bool { return name == "TypeOK" }) // Go's types
	for r := range m.regions {
		m.slice[r] = m.limit / m.regions
		if r < m.limit%m.regions {
			m.slice[r]++
		}
	}
	return m, checked, m.validate(checked)
}

// set sets a constant.
func (m *model) set(name, value string) error {
	numbers := map[string]*int8{
		"Limit": &m.limit, "Windows": &m.windows, "Batch": &m.batch, "Requests": &m.requests,
		"LostWrites": &m.lostWrites, "Moves": &m.moves,
	}
	var err error
	switch number := numbers[name]; {
	case number != nil:
		var n int64
		n, err = strconv.ParseInt(value, 10, 8)
		*number = int8(n)
	case name == "Bug":
		m.bug, err = strconv.Unquote(value)
	case name == "RegionalOnly":
		m.regionalOnly = value == "TRUE"
	case name == "Holders", name == "Regions":
		err = eachRegion(value, func(r int8) { m.regions = max(m.regions, r+1) })
	case name == "Floored":
		err = eachRegion(value, func(r int8) { m.floor[r] = 1 })
	case name == "Away":
		err = eachRegion(value, func(r int8) { m.away[r] = true })
	default:
		err = fmt.Errorf("unknown constant %s; known are the sets and %v", name, slices.Sorted(maps.Keys(numbers)))
	}
	return err
}

// eachRegion visits the regions in a set such as {1, 2}, which start at 0 here.
func eachRegion(set string, visit func(r int8)) error {
	for text := range strings.SplitSeq(strings.Trim(set, "{}"), ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		r, err := strconv.ParseInt(text, 10, 8)
		if err != nil || r < 1 || r > maxRegions {
			return fmt.Errorf("%q is no region from 1 to %d", text, maxRegions)
		}
		visit(int8(r - 1))
	}
	return nil
}

// validate returns an error if the arrays of a state are too small or an invariant is unknown.
func (m *model) validate(checked []string) error {
	for _, name := range checked {
		if invariants[name] == nil {
			return fmt.Errorf("unknown invariant %s", name)
		}
	}
	if m.windows > maxWindows || m.requests > maxRequests || m.moves >= maxBoots {
		return fmt.Errorf("constants exceed the arrays of a state: %+v", *m)
	}
	return nil
}
