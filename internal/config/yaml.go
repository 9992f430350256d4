package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v2"
)

// The YAML of a file. It is decoded by yaml.v2, as in envoyproxy/ratelimit, so that scalars have the same meaning.
type yamlRoot struct {
	Domain      string
	Descriptors []yamlDescriptor
}

type yamlDescriptor struct {
	Key            string
	Value          string
	RateLimit      *yamlRateLimit `yaml:"rate_limit"`
	Descriptors    []yamlDescriptor
	ShadowMode     bool `yaml:"shadow_mode"`
	QuotaMode      bool `yaml:"quota_mode"`
	DetailedMetric bool `yaml:"detailed_metric"`
	ValueToMetric  bool `yaml:"value_to_metric"`
	ShareThreshold bool `yaml:"share_threshold"`
	Metadata       map[string]interface{}
}

type yamlRateLimit struct {
	RequestsPerUnit uint32 `yaml:"requests_per_unit"`
	Unit            string
	Unlimited       bool
	Name            string
	Replaces        []yamlReplaces
}

type yamlReplaces struct{ Name string }

// source is a parsed file or resource.
type source struct {
	name string
	root yamlRoot
	at   position
}

// parse reads one file. It first checks the keys in the generic form, by name alone, at any level.
func parse(f File) (source, []Diagnostic) {
	s := source{name: f.Name}
	generic := map[interface{}]interface{}{}
	if err := unmarshal(f.Content, &generic); err != nil {
		return s, decodeFaults(f, newPosition(f.Content), err)
	}
	s.at = newPosition(f.Content)
	c := keyChecker{file: f.Name}
	c.check(generic, s.at)
	if err := unmarshal(f.Content, &s.root); err != nil {
		c.faults = append(c.faults, decodeFaults(f, s.at, c.fresh(err))...)
	}
	return s, c.faults
}

// fresh returns the decoder's error without the lines that have a faulty key. It returns nil if nothing is left.
func (c *keyChecker) fresh(err error) error {
	types := (*yaml.TypeError)(nil)
	if !errors.As(err, &types) {
		return err
	}
	fresh := slices.DeleteFunc(slices.Clone(types.Errors), func(text string) bool {
		return slices.ContainsFunc(c.faults, func(f Diagnostic) bool { return f.Line == lineIn(text) })
	})
	if len(fresh) == 0 {
		return nil
	}
	return &yaml.TypeError{Errors: fresh}
}

// lineIn returns the first line number in a message of the decoder, or 0.
func lineIn(text string) int {
	_, rest, found := strings.Cut(text, "line ")
	number, _, colon := strings.Cut(rest, ":")
	line, err := strconv.Atoi(number)
	if !found || !colon || err != nil {
		return 0
	}
	return line
}

// unmarshal is yaml.Unmarshal, but returns an error if the parser panics.
func unmarshal(content []byte, out any) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("yaml: %v", v)
		}
	}()
	return yaml.Unmarshal(content, out)
}

// keyChecker finds unknown keys, and values of types that no key has.
type keyChecker struct {
	file   string
	faults []Diagnostic
}

func (c *keyChecker) fault(at keyPosition, hint, format string, args ...any) {
	c.faults = append(c.faults,
		Diagnostic{Kind: BadYAML, File: c.file, Line: at.line, Column: at.column, Text: fmt.Sprintf(format, args...), Hint: hint})
}

func (c *keyChecker) check(m map[interface{}]interface{}, at position) {
	for _, k := range at.order(m) {
		name, ok := k.key.(string)
		switch {
		case !ok:
			c.fault(k, "", "config error, key is not of type string: %v", k.key)
		case !validKey(name):
			c.fault(k, hintKey(name), "config error, unknown key '%s'", name)
		case name != "metadata": // metadata may contain anything
			c.value(m[name], at.get(name), k)
		}
	}
}

func (c *keyChecker) value(v any, at position, key keyPosition) {
	switch v := v.(type) {
	case []interface{}:
		for i, e := range v {
			element, ok := e.(map[interface{}]interface{})
			if !ok {
				c.fault(at.index(i).orKey(key), "want a mapping, as in: - key: api_key",
					"config error, yaml file contains list of type other than map: %v", e)
				continue
			}
			c.check(element, at.index(i))
		}
	case map[interface{}]interface{}:
		c.check(v, at)
	case string, int, bool, nil:
	default: // floats, and whole numbers beyond int64
		c.fault(at.orKey(key), hintValue(key.key, at), "error checking config")
	}
}

func validKey(k string) bool {
	return slices.ContainsFunc(levelKeys(), func(l levelKey) bool { return l.key == k })
}
