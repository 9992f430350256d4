package app

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/xds"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
)

// TestRelief checks which relief keys can have, and the reasons why not.
func TestRelief(t *testing.T) {
	rules, err := config.Load([]config.File{{Name: "a.yaml", Content: []byte(`domain: d
descriptors:
- key: k
  rate_limit: {unit: hour, requests_per_unit: 1000}
  descriptors:
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 1000}}
- key: base
  rate_limit: {unit: hour, requests_per_unit: 1000, name: base}
- key: better
  rate_limit: {unit: hour, requests_per_unit: 1000, replaces: [{name: base}]}
- {key: file, value: f*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1000}}
`)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		entries []config.Entry
		change  func(k *owner.HotKey)
		want    string
	}{
		"all":           {[]config.Entry{{Key: "k", Value: "v"}}, func(*owner.HotKey) {}, "lease; split; cap"},
		"nested":        {[]config.Entry{{Key: "k", Value: "v"}, {Key: "path", Value: "/a,b=c"}}, func(*owner.HotKey) {}, "lease; split; cap with hot-filters"},
		"replaced":      {[]config.Entry{{Key: "base", Value: "v"}}, func(*owner.HotKey) {}, "lease; split; no cap: another rule replaces its rule"},
		"shared values": {[]config.Entry{{Key: "file", Value: "f1"}}, func(k *owner.HotKey) { k.Owner = "other" }, "lease; no split: no header has its owner string; no cap: its descriptor is not known exactly"},
		"too small":     {[]config.Entry{{Key: "k", Value: "v"}}, func(k *owner.HotKey) { k.Splittable = false }, "no lease: 5 % of its limit; no split: 5 % of its limit; cap"},
		"a log": {[]config.Entry{{Key: "k", Value: "v"}}, func(k *owner.HotKey) { k.Splittable, k.Rule.Algorithm = false, limit.SlidingLog },
			"no lease: a sliding_log; no split: a sliding_log; cap"},
		"shadow":         {[]config.Entry{{Key: "k", Value: "v"}}, func(k *owner.HotKey) { k.LeaseTerms = lease.Terms{Uncapped: true} }, "lease; split; no cap: its rule refuses no request"},
		"limit 0":        {[]config.Entry{{Key: "k", Value: "v"}}, func(k *owner.HotKey) { k.Rule.Limit = 0 }, "lease; split; no cap: its limit is 0"},
		"a short window": {[]config.Entry{{Key: "k", Value: "v"}}, func(k *owner.HotKey) { k.Rule.Window = time.Millisecond }, "lease; split; no cap: its window"},
		"empty": {[]config.Entry{{Key: "k"}}, func(*owner.HotKey) {},
			"lease; no split: its owner string is empty; no cap: its owner string is empty"},
		"control characters": {[]config.Entry{{Key: "k", Value: "a\tb"}}, func(*owner.HotKey) {},
			"lease; no split: no route can contain it: owner \"a\\tb\"; no cap: no route can contain it"},
		"no UTF-8": {[]config.Entry{{Key: "k", Value: "a\xff"}}, func(k *owner.HotKey) { k.Owner = "a\xff" },
			"lease; no split: no route can contain it: owner \"a\\xff\"; no cap: no route can contain it"},
	} {
		var m config.Match
		rules.Match("d", c.entries, nil, &m)
		k := owner.HotKey{Key: owner.Key(m.Digest), RingPos: m.Owner, Rule: m.Limit, Splittable: true, Hot: true}
		k.Domain, k.Name, k.Owner = "d", string(m.AppendName(nil, c.entries)), string(rules.AppendOwnerString(nil, "d", c.entries, &m))
		c.change(&k)
		wants := strings.Split(c.want, "; ")
		for i, r := range reliefOf(&k, rules) {
			got := r.Kind
			if r.Why != "" {
				got = "no " + r.Kind + ": " + r.Why
			}
			if r.With != "" {
				got += " with " + r.With
			}
			if !strings.HasPrefix(got, wants[i]) || r.Why == "" && got != wants[i] {
				t.Errorf("%s: %s, want %s", name, got, wants[i])
			}
		}
	}
	got := hotEnvoys(xds.ServerStatus{Clients: []xds.Client{
		{Node: "a", Hot: []string{"keyward-direct"}}, {Node: "b", Hot: []string{"keyward-caps/d", "keyward-spread-header"}}, {Node: "c"}}})
	if want := "[{a true false []} {b false true [d]} {c false false []}]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}
