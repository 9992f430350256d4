package config

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
)

func parseDefaults(t *testing.T, text string) Defaults {
	t.Helper()
	d, err := ParseDefaults([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDefaults checks that rules take the keys that they lack from the defaults of their domain, from files and resources,
// and that the rules' version covers them.
func TestDefaults(t *testing.T) {
	const file = `
domain: d
descriptors:
- {key: plain, rate_limit: {unit: hour, requests_per_unit: 1000}}
- key: own
  rate_limit: {unit: hour, requests_per_unit: 1000}
  metadata: {team: a, keyward: {reserve: 7, lapse: keep, hold_ttl: 5m}}
- {key: free, rate_limit: {unlimited: true}}
- key: parent
  metadata: {team: b}
  descriptors:
  - {key: child, rate_limit: {unit: hour, requests_per_unit: 1000}}
`
	const other = "domain: e\ndescriptors: [{key: plain, rate_limit: {unit: hour, requests_per_unit: 10}}]\n"
	o := Options{Defaults: parseDefaults(t, `{"d": {"reserve": 100, "settle": "addend", "lapse": "release"}}`)}
	rules := load(t, o, file, other)
	resources, _ := load(t, Options{}, file, other).ToProto()
	fromServer, err := FromProto(wire(t, resources), o)
	if err != nil {
		t.Fatal(err)
	}
	terms := &claim.HoldTerms{Reserve: 100, Settle: claim.SettleAddend, Lapse: claim.LapseRelease, TTL: 10 * time.Minute, Max: 16384}
	own := &claim.HoldTerms{Reserve: 7, Settle: claim.SettleAddend, TTL: 5 * time.Minute, Max: 16384}
	for from, r := range map[string]*Rules{"file": rules, "resource": fromServer} {
		for key, want := range map[string]*claim.HoldTerms{"d.plain": terms, "d.own": own, "d.free": nil, "d.parent.child": terms, "e.plain": nil} {
			for _, spec := range r.Rules() {
				if spec.FullKey == key && !reflect.DeepEqual(spec.Extension.Holds, want) {
					t.Errorf("%s, from a %s: %+v, want %+v", key, from, spec.Extension.Holds, want)
				}
				if team := spec.Metadata.GetFields()["team"].GetStringValue(); (team == "a") != (spec.FullKey == "d.own") || len(spec.Metadata.GetFields()) > 1 {
					t.Errorf("%s: metadata %v", spec.FullKey, spec.Metadata)
				}
			}
		}
	}
	if plain := load(t, Options{}, file, other); plain.Hash() == rules.Hash() {
		t.Error("the version of the rules does not depend on the defaults")
	}
	sent, _ := rules.ToProto()
	if again, err := FromProto(wire(t, sent), Options{}); err != nil || again.Hash() != rules.Hash() {
		t.Errorf("a server does not send the defaults: %v", err)
	}
}

// TestDefaultsConflict checks that a fault names the keys of the rule and of the defaults.
func TestDefaultsConflict(t *testing.T) {
	d := parseDefaults(t, "d: {reserve: 50, lapse: release}")
	for keys, want := range map[string]string{
		"algorithm: in_flight, window: 5m": "reserve cannot be used with algorithm: in_flight, whose requests hold the hits that they have" +
			" (defaults of domain 'd': lapse, reserve; the rule's own keys: algorithm, window)",
		"settle: addend, reserve: 200": "reserve 200 is above the limit of 100: no request that reserves it would be admitted" +
			" (defaults of domain 'd': lapse; the rule's own keys: reserve, settle)",
		"burst: 5":                     "burst is the depth of a token_bucket or leaky_bucket; the algorithm is fixed_window",
		"lapse: keep, reserve: 200":    "reserve 200 is above the limit of 100: no request that reserves it would be admitted",
		"mechanism: lease":             "reserve needs mechanism: owner: with lease, members admit hits without the owner, which alone has the holds of all requests (defaults of domain 'd': lapse, reserve; the rule's own keys: mechanism)",
		"settle: marked, hold_ttl: 5s": "",
	} {
		got := faultTexts(Check(filesOf(settingYAML(100, keys)), Options{Defaults: d}))
		if want != "" {
			want = "error in metadata.keyward of 'd.k': " + want
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", keys, got, want)
		}
	}
	plain := "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: hour, requests_per_unit: 49}}\n"
	report := Check(filesOf(plain), Options{Defaults: d})
	want := "error in metadata.keyward of 'd.k': reserve 50 is above the limit of 49: no request that reserves it would be admitted" +
		" (defaults of domain 'd': lapse, reserve; the rule's own keys: none)"
	if got := faultTexts(report); got != want || report.Faults[0].Line != 3 {
		t.Errorf("got %s, at %+v", got, report.Faults)
	}
}

func TestBadDefaults(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"{}":                         "",
		"d: {}":                      "",
		"d: {settle: addend}":        "",
		"d: {shard_by: [user]}":      "",
		"d: {reserv: 5}":             "domain 'd': unknown key 'reserv' (did you mean 'reserve'?)",
		"d: {reserve: 0}":            "domain 'd': reserve must be a whole number from 1 to 4294967295, not '0'",
		"{d: {lapse: a}, e: {x: 1}}": "domain 'd': lapse must be one of keep, release, not 'a'\ndomain 'e': unknown key 'x'",
		"d: 5":                       "yaml: unmarshal errors:\n  line 1: cannot unmarshal !!int `5` into map[string]interface {}",
		"{":                          "yaml:",
	} {
		_, err := ParseDefaults([]byte(text))
		if got := ""; err != nil {
			got = err.Error()
			if want == "" || !strings.HasPrefix(got, want) {
				t.Errorf("%q: %s\nwant %s", text, got, want)
			}
		} else if want != "" {
			t.Errorf("%q: no error, want %s", text, want)
		}
	}
}
