package config

import (
	"slices"
	"testing"
)

func TestEntriesOf(t *testing.T) {
	r, err := Load([]File{{"a.yaml", []byte(`domain: d
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 1}
  descriptors:
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 1}
- key: file
  value: /files/*
  share_threshold: true
  rate_limit: {unit: hour, requests_per_unit: 1}
`)}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, entries := range [][]Entry{
		{{"user", "a"}},
		{{"user", ""}},
		{{"user", "a"}, {"path", "/"}},
		{{"user", "a,path=/"}}, // has the name of the descriptor above
		{{"user", "a,path=/"}, {"path", "/,path=/"}},
		{{"user", "user=,path"}, {"path", "="}},
	} {
		var m, again Match
		r.Match("d", entries, nil, &m)
		name := string(m.AppendName(nil, entries))
		if got := r.EntriesOf("d", name, m.Digest, &again); !slices.Equal(got, entries) || again.Rule != m.Rule {
			t.Errorf("%s: %q, want %q", name, got, entries)
		}
		if got := r.EntriesOf("d", name, [2]uint64{1, 2}, &again); got != nil {
			t.Errorf("%s with another digest: %q", name, got)
		}
	}
	shared := []Entry{{"file", "/files/1"}}
	var m Match
	r.Match("d", shared, nil, &m)
	if got := r.EntriesOf("d", string(m.AppendName(nil, shared)), m.Digest, &m); got != nil {
		t.Errorf("values that share a counter: %q", got)
	}
	for _, name := range []string{"", "user", "path=/", "user=a,other=b,path=/,,,,,,"} {
		if got := r.EntriesOf("d", name, [2]uint64{1, 2}, &m); got != nil {
			t.Errorf("%q: %q", name, got)
		}
	}
	if got := r.EntriesOf("other", "user=a", m.Digest, &m); got != nil {
		t.Errorf("another domain: %q", got)
	}
}
