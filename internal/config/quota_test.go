package config

import (
	"strings"
	"testing"
)

// TestQuotaRules checks which rules may grant their limits to Envoys, and that a fault names its reason.
func TestQuotaRules(t *testing.T) {
	for name, c := range map[string]struct{ rule, keyward, fault string }{
		"minute":         {"{unit: minute, requests_per_unit: 100}", "mechanism: quota", ""},
		"sliding":        {"{unit: minute, requests_per_unit: 100}", "mechanism: quota, algorithm: sliding_window", ""},
		"10 s":           {"{unit: second, requests_per_unit: 100}", "mechanism: quota, window: 10s, first: allow, envoys: 50", ""},
		"unlimited":      {"{unlimited: true}", "mechanism: quota", ""},
		"a second":       {"{unit: second, requests_per_unit: 100}", "mechanism: quota", "a window of at least 10s, not 1s"},
		"9.9 s":          {"{unit: minute, requests_per_unit: 100}", "mechanism: quota, window: 9900ms", "at least 10s, not 9.9s"},
		"log":            {"{unit: minute, requests_per_unit: 100}", "mechanism: quota, algorithm: sliding_log", "cannot be used with algorithm: sliding_log"},
		"bucket":         {"{unit: minute, requests_per_unit: 100}", "mechanism: quota, algorithm: token_bucket", "cannot be used with algorithm: token_bucket"},
		"in flight":      {"{unit: minute, requests_per_unit: 100}", "mechanism: quota, algorithm: in_flight, window: 1m", "cannot be used with algorithm: in_flight"},
		"holds":          {"{unit: minute, requests_per_unit: 100}", "mechanism: quota, reserve: 10", "reserve cannot be used with mechanism: quota"},
		"once":           {"{unit: minute, requests_per_unit: 100}", "mechanism: quota, once: true", "once cannot be used with mechanism: quota"},
		"all or nothing": {"{unit: minute, requests_per_unit: 100}", "mechanism: quota, all_or_nothing: true", "all_or_nothing cannot be used"},
		"first alone":    {"{unit: minute, requests_per_unit: 100}", "first: deny", "first needs mechanism: quota"},
		"envoys alone":   {"{unit: minute, requests_per_unit: 100}", "mechanism: lease, envoys: 3", "envoys needs mechanism: quota"},
		"first":          {"{unit: minute, requests_per_unit: 100}", "mechanism: quota, first: maybe", "one of deny, allow, not 'maybe'"},
		"envoys":         {"{unit: minute, requests_per_unit: 100}", "mechanism: quota, envoys: 10001", "envoys must be a whole number from 1 to 10000"},
		"hot":            {"{unit: minute, requests_per_unit: 100}", "hot_step: quota, first: allow, envoys: 3", ""},
		"hot, owner":     {"{unit: minute, requests_per_unit: 100}", "hot_step: quota, mechanism: owner", ""},
		"hot, lease":     {"{unit: minute, requests_per_unit: 100}", "hot_step: quota, mechanism: lease", "hot_step: quota cannot be used with mechanism: lease"},
		"hot, quota":     {"{unit: minute, requests_per_unit: 100}", "hot_step: quota, mechanism: quota", "hot_step: quota cannot be used with mechanism: quota"},
		"hot, sliding":   {"{unit: minute, requests_per_unit: 100}", "hot_step: quota, algorithm: sliding_window", "hot_step: quota cannot be used with algorithm: sliding_window"},
		"hot, log":       {"{unit: minute, requests_per_unit: 100}", "hot_step: quota, algorithm: sliding_log", "hot_step: quota cannot be used with algorithm: sliding_log"},
		"hot, a second":  {"{unit: second, requests_per_unit: 100}", "hot_step: quota", "hot_step: quota needs a window of at least 10s, not 1s"},
		"hot, holds":     {"{unit: minute, requests_per_unit: 100}", "hot_step: quota, reserve: 10", "reserve cannot be used with hot_step: quota"},
		"another step":   {"{unit: minute, requests_per_unit: 100}", "hot_step: split", "hot_step must be quota, not 'split'"},
		"a lease's":      {"{unit: minute, requests_per_unit: 100}", "mechanism: quota, epsilon: 1%", ""},
	} {
		files := []File{{Name: "r.yaml", Content: []byte("domain: d\ndescriptors:\n- key: k\n  rate_limit: " + c.rule + "\n  metadata: {keyward: {" + c.keyward + "}}\n")}}
		rules, err := Load(files, Options{})
		switch {
		case c.fault == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault) || !strings.Contains(err.Error(), "r.yaml")):
			t.Errorf("%s: %v, not %q", name, err, c.fault)
		case c.fault == "":
			if x := rules.Rules()[0].Extension; x.Quota == nil || (x.MechanismName() != "quota") != x.Quota.OnlyHot {
				t.Errorf("%s: %+v", name, x)
			}
		}
	}
	quotas := filesOf(`{domain: d, descriptors: [{key: k, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}, ` +
		`metadata: {keyward: {mechanism: quota}}}]}`)
	if _, err := Load(quotas, Options{}); err == nil || !strings.Contains(err.Error(), "quota_mode") {
		t.Errorf("quota_mode: %v", err)
	}
}
