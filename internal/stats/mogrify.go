package stats

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

// Mogrifier rewrites the name of a statistic for DogStatsD. In Name and in the values of Tags, $1 is the first group
// of Pattern.
type Mogrifier struct {
	Pattern string
	Name    string
	Tags    map[string]string
}

// mogrifiers rewrite a name with the first one whose pattern matches.
type mogrifiers struct {
	list   []mogrifier
	groups *regexp.Regexp
}

type mogrifier struct {
	Mogrifier
	pattern *regexp.Regexp
	tags    []string // names of the tags in order
}

func newMogrifiers(list []Mogrifier) (*mogrifiers, error) {
	m := &mogrifiers{groups: regexp.MustCompile(`\$[0-9]+`)}
	var faults []error
	for _, o := range list {
		re, err := regexp.Compile(o.Pattern)
		if err != nil {
			faults = append(faults, fmt.Errorf("compile mogrifier: %w", err))
			continue
		}
		m.list = append(m.list, mogrifier{o, re, slices.Sorted(maps.Keys(o.Tags))})
	}
	return m, errors.Join(faults...)
}

// rewrite returns the new name and its tags.
func (m *mogrifiers) rewrite(name string) (string, []string) {
	for _, o := range m.list {
		groups := o.pattern.FindStringSubmatch(name)
		if groups == nil {
			continue
		}
		tags := make([]string, 0, len(o.tags))
		for _, k := range o.tags {
			tags = append(tags, k+":"+m.fill(o.Tags[k], groups))
		}
		return m.fill(o.Name, groups), tags
	}
	return name, nil
}

// fill replaces $0, $1 and so on with groups of the match. References to missing groups remain.
func (m *mogrifiers) fill(text string, groups []string) string {
	return m.groups.ReplaceAllStringFunc(text, func(ref string) string {
		i, err := strconv.Atoi(ref[1:])
		if err != nil || i >= len(groups) {
			return ref
		}
		return groups[i]
	})
}
