package admin

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

const twoDomains = `
domain: shop
descriptors:
  - key: path
    value: /login
    descriptors:
      - key: remote_address
        rate_limit: {name: logins, unit: minute, requests_per_unit: 5}
        metadata: {keyward: {algorithm: token_bucket, burst: 2, durability: strict, degraded: fail_closed}}
  - key: plan
    value: <script>
    shadow_mode: true
    rate_limit: {unlimited: true}
`

func TestRuleTree(t *testing.T) {
	rules, err := config.Load([]config.File{{Name: "a.yaml", Content: []byte(twoDomains)}, {Name: "b.yaml", Content: []byte("domain: empty\n")}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tree := NewRuleTree(api.RulesStatus{InForce: "v1"}, rules, func(r *config.RuleSpec) *api.RuleTotals {
		if r.Name != "logins" {
			return nil
		}
		return &api.RuleTotals{TotalHits: 7, OverLimit: 2}
	})
	if len(tree.Domains) != 2 || tree.InForce != "v1" || tree.Domains[1].Domain != "empty" || len(tree.Domains[1].Rules) != 0 {
		t.Fatalf("%+v", tree)
	}
	want := api.RuleStatus{
		Path: []string{"path=/login", "remote_address"}, Key: "shop.path_/login.remote_address", Name: "logins", Limit: 5, Unit: "minute", Window: "1m0s",
		Algorithm: "token_bucket", Burst: 2, Mechanism: "owner", Degraded: "fail_closed", Durability: "strict", File: "a.yaml", Line: 7,
		RuleTotals: &api.RuleTotals{TotalHits: 7, OverLimit: 2},
	}
	if got := tree.Domains[0].Rules[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := tree.Domains[0].Rules[1]; !got.Unlimited || !got.Shadow || got.Unit != "" || got.Path[0] != "plan=<script>" || got.RuleTotals != nil {
		t.Errorf("%+v", got)
	}
	text, err := json.Marshal(tree)
	var flat struct {
		InForce string `json:"in_force"`
		Domains []struct {
			Rules []map[string]any `json:"rules"`
		} `json:"domains"`
	}
	if err != nil || json.Unmarshal(text, &flat) != nil || flat.InForce != "v1" || flat.Domains[0].Rules[0]["total_hits"] != 7.0 {
		t.Errorf("%s %v", text, err)
	}
	if _, found := flat.Domains[0].Rules[1]["total_hits"]; found {
		t.Errorf("totals of a rule without totals: %s", text)
	}
}

func TestRuleTreeBeforeRules(t *testing.T) {
	if tree := NewRuleTree(api.RulesStatus{LastError: "no such file"}, nil, nil); tree.Domains == nil || tree.LastError == "" {
		t.Errorf("%+v", tree)
	}
}
