package config

import (
	"fmt"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/quota"
)

// QuotaTerms are the settings of a rule with mechanism: quota. Envoys spend parts of its limit that they were granted, by
// the rate limit quota service (RLQS). The key's owner has charged each part before, and decides the requests that come
// as calls, as with mechanism: owner.
type QuotaTerms struct {
	First  First
	Envoys uint32 // expected, for the bounds of keyward bounds and check; 0: unknown
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
	if fault == "" && n > maxEnvoys {
		fault = fmt.Sprintf("envoys must be at most %d, not %d", maxEnvoys, n)
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

// quotaMechanism is the mechanism of rules whose limits Envoys spend.
const quotaMechanism = "quota"

// MechanismName returns the value of the key mechanism.
func (x *Extension) MechanismName() string {
	if x.Quota != nil {
		return quotaMechanism
	}
	return x.Mechanism.String()
}

// quotaConflicts reports the keys that a rule with mechanism: quota cannot have, and those that need it.
func (x *Extension) quotaConflicts(given map[string]any, fault func(key, format string, args ...any)) {
	if given["mechanism"] != quotaMechanism {
		for _, key := range []string{"first", "envoys"} {
			if given[key] != nil {
				fault(key, "%s needs mechanism: quota", key)
			}
		}
		return
	}
	switch x.Algorithm {
	case limit.FixedWindow, limit.SlidingWindow:
	default:
		fault("mechanism", "mechanism: quota cannot be used with algorithm: %s: a part of the limit that an Envoy was granted must end "+
			"with a window; use fixed_window or sliding_window", x.Algorithm)
	}
	if x.Federation != nil {
		fault("mechanism", "mechanism: quota cannot be used with federation: an Envoy would have to give back its part before the "+
			"coordinator's window ends")
	}
	if x.Fair != nil {
		fault("mechanism", "mechanism: quota cannot be used with fair: Envoys report hits of buckets, not of tenants")
	}
	if key, _ := x.holdReason(); key != "" && key != "algorithm" {
		fault(key, "%s cannot be used with mechanism: quota: Envoys report hits that they have admitted, which nothing gives back", key)
	}
}

// quotaFault returns why the limit of r cannot be granted to Envoys.
func (r *RuleSpec) quotaFault() (text string) {
	switch q := r.Extension.Quota; {
	case q == nil || r.Unlimited:
	case r.Limit.Window < quota.MinWindow:
		return fmt.Sprintf("mechanism: quota needs a window of at least %v, not %v: Envoys report what they have spent every 5s; use "+
			"mechanism: owner", quota.MinWindow, r.Limit.Window)
	case r.Quota:
		return "mechanism: quota cannot be used with quota_mode: an Envoy that has spent its part knows no other descriptor that admits the " +
			"request"
	}
	return ""
}
