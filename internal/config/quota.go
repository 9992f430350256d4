package config

import (
	"fmt"
	"math"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/quota"
)

// QuotaTerms are the settings of a rule with mechanism: quota. Envoys spend parts of its limit that they were granted, by
// the rate limit quota service (RLQS). The key's owner has charged each part before, and decides the requests that come
// as calls, as with mechanism: owner.
type QuotaTerms struct {
	First  First
	Envoys uint32 // expected, for the bounds of keyward bounds and check; 0: unknown
	// OnlyHot is set by hot_step: quota: Envoys spend the limit of a key while the key is hot, and call while it is not.
	OnlyHot bool
}

// Always reports whether Envoys spend the limit at all times, not only that of hot keys. Without a quota they do not.
func (q *QuotaTerms) Always() bool { return q != nil && !q.OnlyHot }

// Instead returns what to write for a rule whose limit Envoys should not spend.
func (q *QuotaTerms) Instead() string {
	if q.OnlyHot {
		return "remove hot_step"
	}
	return "use mechanism: owner"
}

// First decides about the requests of a bucket before its first assignment has arrived.
type First uint8

// The values of First.
const (
	FirstDeny  First = iota // it refuses them
	FirstAllow              // it admits them; they are charged when it reports them
)

// String returns f as it is written in a rules file.
func (f First) String() string {
	if f == FirstAllow {
		return "allow"
	}
	return "deny"
}

const maxEnvoys = 10_000

// quotaSettings are the keys of metadata.keyward about quotas.
func quotaSettings() []setting {
	return []setting{
		{"first", "`deny`, `allow`", "`deny`", assigns,
			into(func(x *Extension) *First { return &x.quota().First }, parseFirst)},
		{"envoys", fmt.Sprintf("1 to %d", maxEnvoys), "unknown", assigns,
			into(func(x *Extension) *uint32 { return &x.quota().Envoys }, parseEnvoys)},
		{"hot_step", "`quota`", "cap, pin and split", owned,
			func(x *Extension, v any, _ []*node) string { return x.setHotStep(v) }},
	}
}

// quota returns x.Quota, which it creates.
func (x *Extension) quota() *QuotaTerms {
	if x.Quota == nil {
		x.Quota = new(QuotaTerms)
	}
	return x.Quota
}

func parseFirst(v any) (First, string) {
	for f := FirstDeny; f <= FirstAllow; f++ {
		if v == f.String() {
			return f, ""
		}
	}
	return 0, fmt.Sprintf("first must be one of deny, allow, not '%v'", v)
}

func parseEnvoys(v any) (uint32, string) {
	n, fault := whole[uint32]("envoys")(v)
	if fault != "" || n > maxEnvoys {
		fault = fmt.Sprintf("envoys must be a whole number from 1 to %d, not '%v'", maxEnvoys, v)
	}
	return n, fault
}

// setMechanism reads the key mechanism. Owners decide the requests of a quota, and charge the hits that Envoys spend.
func (x *Extension) setMechanism(v any) (fault string) {
	if v == quotaMechanism {
		x.quota()
		return ""
	}
	x.Mechanism, fault = parseMechanism(v)
	return fault
}

// setHotStep reads the key hot_step.
func (x *Extension) setHotStep(v any) (fault string) {
	if v != quotaMechanism {
		return fmt.Sprintf("hot_step must be %s, not '%v'", quotaMechanism, v)
	}
	x.quota().OnlyHot = true
	return ""
}

// quotaMechanism is the mechanism of rules whose limits Envoys spend.
const quotaMechanism = "quota"

// MechanismName returns the value of the key mechanism.
func (x *Extension) MechanismName() string {
	if x.Quota.Always() {
		return quotaMechanism
	}
	return x.Mechanism.String()
}

// quotaConflicts reports the keys that a rule whose limit Envoys spend cannot have, and those that only such rules have.
func (x *Extension) quotaConflicts(given map[string]any, fault func(key, format string, args ...any)) {
	key, what := "mechanism", "mechanism: quota"
	switch m := given["mechanism"]; {
	case given["hot_step"] == quotaMechanism:
		key, what = "hot_step", "hot_step: quota"
		if m != nil && m != policy.ByOwner.String() {
			fault(key, "hot_step: quota cannot be used with mechanism: %v: calls are decided by the key's owner while the key is not hot", m)
			return
		}
	case m != quotaMechanism:
		for _, key := range []string{"first", "envoys"} {
			if given[key] != nil {
				fault(key, "%s needs mechanism: quota, or hot_step: quota", key)
			}
		}
		return
	}
	switch x.Algorithm {
	case limit.FixedWindow:
	case limit.SlidingWindow:
		if x.Quota != nil && x.Quota.OnlyHot {
			fault(key, "%s cannot be used with algorithm: sliding_window: requests would be refused at the end of each window, because its "+
				"next one cannot be charged ahead; use fixed_window", what)
		}
	default:
		fault(key, "%s cannot be used with algorithm: %s: a part of the limit that an Envoy was granted must end "+
			"with a window; use fixed_window or sliding_window", what, x.Algorithm)
	}
	if x.Federation != nil {
		fault(key, "%s cannot be used with federation: an Envoy would have to give back its part before the "+
			"coordinator's window ends", what)
	}
	if x.Fair != nil {
		fault(key, "%s cannot be used with fair: Envoys report hits of buckets, not of tenants", what)
	}
	if hold, _ := x.holdReason(); hold != "" && hold != "algorithm" {
		fault(hold, "%s cannot be used with %s: Envoys report hits that they have admitted, which nothing gives back", hold, what)
	}
}

// quotaFault returns why the limit of r cannot be granted to Envoys.
func (r *RuleSpec) quotaFault() (key, text string) {
	q := r.Extension.Quota
	if q == nil || r.Unlimited {
		return "", ""
	}
	key, what := "mechanism", "mechanism: quota"
	if q.OnlyHot {
		key, what = "hot_step", "hot_step: quota"
	}
	switch {
	case r.Limit.Window < quota.MinWindow:
		return key, fmt.Sprintf("%s needs a window of at least %v, not %v: Envoys report what they have spent every 5s; %s",
			what, quota.MinWindow, r.Limit.Window, q.Instead())
	case r.Quota:
		return key, what + " cannot be used with quota_mode: an Envoy that has spent its part knows no other descriptor that admits the " +
			"request"
	}
	return "", ""
}

// QuotaExpired returns what an Envoy does with the requests of r when its sidecar is away for longer than its assignment
// lives, by the rule's degraded policy: it admits all, or share hits in each window, where 0 means none.
func (r *RuleSpec) QuotaExpired() (all bool, share uint32) {
	x := &r.Extension
	switch {
	case x.Degraded == policy.FailOpen:
		return true, 0
	case x.Degraded == policy.FailClosed || x.Quota == nil || x.Quota.Envoys == 0:
		return false, 0
	}
	return false, uint32(min(math.MaxUint32, max(1, 2*uint64(r.Limit.Limit)/uint64(x.Quota.Envoys))))
}
