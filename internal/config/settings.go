package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// scope is a set of mechanisms that use a setting.
type scope uint8

const (
	lends   scope                      = 1 << iota // lease, and owner for hot keys
	drifts                                         // approximate
	divides                                        // static
	assigns                                        // quota
	windows                                        // restricts lends to windows: leases of buckets last for a moment and are never returned
	owned   = lends | drifts | assigns             // mechanisms for which keys have owners
	always  = owned | divides
)

// setting is one key of metadata.keyward. values and unset, its default, are texts for the manual.
type setting struct {
	key, values, unset string
	of                 scope
	set                func(x *Extension, v any, path []*node) (fault string)
}

// ExtensionKey documents one key of metadata.keyward in Markdown.
type ExtensionKey struct{ Key, Values, Default string }

// ExtensionKeys returns the keys of metadata.keyward, for the manual.
func ExtensionKeys() []ExtensionKey {
	var ks []ExtensionKey
	for _, k := range settings() {
		ks = append(ks, ExtensionKey{k.key, k.values, k.unset})
	}
	return ks
}

// settings returns every key of metadata.keyward. docs/rules.md has the same rows.
func settings() []setting {
	number := "1 to 4294967295"
	return append([]setting{
		{"shard_by", "an entry key, or a list", "the first entry that varies", always,
			func(x *Extension, v any, path []*node) (fault string) {
				x.ShardBy, fault = parseShardBy(v, path)
				return fault
			}},
		{"degraded", "`local_share`, `fail_open`, `fail_closed`", "`local_share`", owned,
			into(func(x *Extension) *policy.Degraded { return &x.Degraded }, parseDegraded)},
		{"local_cap", number, "the member's share of the limit", owned,
			into(func(x *Extension) *uint32 { return &x.LocalCap }, whole[uint32]("local_cap"))},
		{"partition", "`share`, `available`, `quorum`", "the members' `--partition`", owned,
			func(x *Extension, v any, _ []*node) (fault string) {
				x.Partition, fault = parsePartition(v)
				x.lease().Partition = x.Partition
				return fault
			}},
		{"algorithm", "`fixed_window`, `sliding_window`, `sliding_log`, `token_bucket`, `leaky_bucket`, `in_flight`", "`fixed_window`", always,
			into(func(x *Extension) *limit.Algorithm { return &x.Algorithm }, parseAlgorithm)},
		{"window", "a Go duration above 0, at most `8760h`: `10s`, `1h30m`, `500ms`", "the unit's length", always,
			into(func(x *Extension) *time.Duration { return &x.Window }, parseWindow)},
		{"burst", number, "the limit", always,
			into(func(x *Extension) *uint32 { return &x.Burst }, whole[uint32]("burst"))},
		{"durability", "`async`, `strict`, `memory`", "`async`", owned,
			func(x *Extension, v any, _ []*node) string { return x.setDurability(v) }},

		{"fair", "[a map](rules.md#fairness-between-tenants)", "none", owned,
			func(x *Extension, v any, path []*node) (fault string) {
				x.Fair, fault = parseFair(v, path)
				return fault
			}},
		{"federation", "[a map](rules.md#limits-of-several-regions)", "none", owned,
			func(x *Extension, v any, path []*node) (fault string) {
				if x.Federation, fault = parseFederation(v, path); fault == "" && x.Fair == nil { // fair is read before
					x.Fair = x.Federation.Fair
				}
				return fault
			}},
		{"mechanism", "`owner`, `lease`, `approximate`, `static`, `quota`", "`owner`", always,
			func(x *Extension, v any, _ []*node) string { return x.setMechanism(v) }},
		{"epsilon", "above 0, at most 1: `0.01` or `1%`", "none", drifts,
			into(func(x *Extension) *float64 { return &x.Epsilon }, parseEpsilon)},
		{"identity", "`known`, `unknown`, or [a map](rules.md#slack-by-caller)", "`known`", drifts,
			func(x *Extension, v any, path []*node) string { return x.parseIdentity(v, path) }},
		{"low_watermark", "`1%` to `100%`, or `{limit: 20%, local: 20%}`", "none", drifts,
			func(x *Extension, v any, _ []*node) (fault string) {
				x.lease().Watermark, x.lease().LocalWatermark, fault = parseWatermarks(v)
				return fault
			}},
		{"sync_interval", "a duration from `100ms` to `1m`", "`2s`", drifts,
			into(func(x *Extension) *time.Duration { return &x.lease().Sync }, duration("sync_interval", 100*time.Millisecond, time.Minute))},
		{"lease_min", number, "10", lends,
			into(func(x *Extension) *uint32 { return &x.lease().Min }, whole[uint32]("lease_min"))},
		{"lease_max", number, "10000", lends,
			into(func(x *Extension) *uint32 { return &x.lease().Max }, whole[uint32]("lease_max"))},
		{"ttl", "a duration from `100ms` to `1h`", "`10s`", lends | windows,
			into(func(x *Extension) *time.Duration { return &x.lease().TTL }, duration("ttl", 100*time.Millisecond, time.Hour))},
		{"reclaim", "`none`, `ttl`, `crash`", "`none`", lends | windows,
			func(x *Extension, v any, _ []*node) string { return x.setReclaim(v) }},
		{"weight", number, "1", lends,
			into(func(x *Extension) *uint32 { return &x.lease().Weight }, whole[uint32]("weight"))},
		{"hot_factor", "1 to 65535", "10", owned,
			into(func(x *Extension) *uint16 { return &x.HotFactor }, whole[uint16]("hot_factor"))},
		{"sub_keys", "1 to 16", "4", owned, into(func(x *Extension) *uint8 { return &x.lease().SubKeys }, parseSubKeys)},
		{"dedicated", "`true`, `false`", "`false`", owned,
			into(func(x *Extension) *bool { return &x.lease().Dedicated }, truth("dedicated"))},
		{"audit", "`true`, `false`", "`false`", owned,
			into(func(x *Extension) *bool { return &x.lease().Audit }, truth("audit"))},
	}, slices.Concat(holdSettings(), quotaSettings())...)
}

// into returns a set function that stores in a field what read returns.
func into[T any](field func(*Extension) *T, read func(v any) (T, string)) func(*Extension, any, []*node) string {
	return func(x *Extension, v any, _ []*node) (fault string) {
		*field(x), fault = read(v)
		return fault
	}
}

// lease returns x.Lease, which it allocates if necessary.
func (x *Extension) lease() *lease.Terms {
	if x.Lease == nil {
		x.Lease = new(lease.Terms)
	}
	return x.Lease
}

// whole reads a whole number from 1 to the maximum of its type.
func whole[T uint16 | uint32](name string) func(v any) (T, string) {
	return func(v any) (T, string) {
		n, fault := parseWhole(name, v, uint32(^T(0)))
		return T(n), fault
	}
}

func parseSubKeys(v any) (uint8, string) {
	n, fault := parseWhole("sub_keys", v, 16)
	return uint8(n), fault
}

func parseWhole(name string, v any, most uint32) (uint32, string) {
	f, ok := number(v)
	if !ok || !(f >= 1 && f <= float64(most)) || f != math.Trunc(f) {
		return 0, fmt.Sprintf("%s must be a whole number from 1 to %d, not '%v'", name, most, v)
	}
	return uint32(f), ""
}

// either reads one of two words. It returns true for the second.
func either(name, no, yes string) func(v any) (bool, string) {
	return func(v any) (bool, string) {
		if v == no || v == yes {
			return v == yes, ""
		}
		return false, fmt.Sprintf("%s must be one of %s, %s, not '%v'", name, no, yes, v)
	}
}

// setDurability sets where charges must be before they are acknowledged, and whether the journal contains them.
func (x *Extension) setDurability(v any) (fault string) {
	if v != "async" && v != "strict" && v != "memory" {
		return fmt.Sprintf("durability must be one of async, strict, memory, not '%v'", v)
	}
	x.Strict, x.Volatile = v == "strict", v == "memory"
	return ""
}

// setReclaim sets which leases the owner lends again.
func (x *Extension) setReclaim(v any) (fault string) {
	if v != "none" && v != "ttl" && v != "crash" {
		return fmt.Sprintf("reclaim must be one of none, ttl, crash, not '%v'", v)
	}
	x.lease().Reclaim, x.lease().ReclaimCrash = v == "ttl", v == "crash"
	return ""
}

func truth(name string) func(v any) (bool, string) {
	return func(v any) (bool, string) {
		b, ok := v.(bool)
		if !ok {
			return false, fmt.Sprintf("%s must be true or false, not '%v'", name, v)
		}
		return b, ""
	}
}

func duration(name string, least, most time.Duration) func(v any) (time.Duration, string) {
	return func(v any) (time.Duration, string) {
		s, _ := v.(string)
		d, err := time.ParseDuration(s)
		if err != nil || d < least || d > most {
			return 0, fmt.Sprintf("%s must be a duration from %s to %s, like 10s, not '%v'", name, brief(least), brief(most), v)
		}
		return d, ""
	}
}

// brief is d without the units that are 0.
func brief(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// fraction reads 0.2 or 20%.
func fraction(v any) (f float64, ok bool) {
	s, isText := v.(string)
	if !isText {
		return number(v)
	}
	digits, percent := strings.CutSuffix(s, "%")
	f, err := strconv.ParseFloat(digits, 64)
	return f / 100, percent && err == nil
}

// grains is the resolution of epsilon: it is rounded to multiples of 1/grains, since binary fractions are not exact.
const grains = 1_000_000_000

func parseEpsilon(v any) (float64, string) {
	f, ok := fraction(v)
	if !ok || !(f*grains >= 1 && f <= 1) {
		return 0, fmt.Sprintf("epsilon must be above 0 and at most 1, like 0.01 or 1%%, not '%v'", v)
	}
	return f, ""
}

// parseWatermarks reads a percentage of the limit, or a map with percentages of the limit and of a member's part of the
// slack.
func parseWatermarks(v any) (ofLimit, ofLocal uint8, fault string) {
	m, ok := v.(map[string]any)
	if !ok {
		ofLimit, fault = parseWatermark("low_watermark", v)
		return ofLimit, 0, fault
	}
	if len(m) == 0 {
		return 0, 0, "low_watermark must be a percentage, or a map with the keys limit and local"
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		switch key {
		case "limit":
			ofLimit, fault = parseWatermark("low_watermark.limit", m[key])
		case "local":
			ofLocal, fault = parseWatermark("low_watermark.local", m[key])
		default:
			fault = fmt.Sprintf("low_watermark must be a percentage, or a map with the keys limit and local, not '%s'", key)
		}
		if fault != "" {
			return 0, 0, fault
		}
	}
	return ofLimit, ofLocal, ""
}

func parseWatermark(name string, v any) (uint8, string) {
	f, ok := fraction(v)
	percent := math.Round(100 * f)
	if !ok || !(percent >= 1 && percent <= 100) || math.Abs(100*f-percent) > 1e-9 {
		return 0, fmt.Sprintf("%s must be a whole percentage from 1%% to 100%%, like 0.2 or 20%%, not '%v'", name, v)
	}
	return uint8(percent), ""
}

// conflicts returns the keys that contradict each other. given are the keys that the rule has.
func (x *Extension) conflicts(given map[string]any) (faults []extensionFault) {
	fault := func(key, format string, args ...any) {
		faults = append(faults, extensionFault{key: key, text: fmt.Sprintf(format, args...)})
	}
	if x.Burst > 0 && !x.Algorithm.Bucket() {
		fault("burst", "burst is the depth of a token_bucket or leaky_bucket; the algorithm is %s", x.Algorithm)
	}
	if x.Mechanism != policy.ByOwner && x.Mechanism != policy.Static && x.Algorithm == limit.SlidingLog {
		fault("mechanism",
			"mechanism: %s cannot be used with a sliding_log, which stores the time of each hit; sliding_window supports all mechanisms",
			x.Mechanism)
	}
	if x.Mechanism == policy.Approximate && x.Epsilon == 0 {
		fault("mechanism",
			"mechanism: approximate needs an epsilon, the fraction of the limit that may be admitted above it, like 1%%")
	}
	if x.Mechanism == policy.Approximate && x.Strict {
		fault("durability",
			"durability: strict contradicts mechanism: approximate, which admits hits before it reports them to the owner")
	}
	if x.Mechanism == policy.Static && x.Strict {
		fault("durability", "durability: strict contradicts mechanism: static, of which no other member has the counts")
	}
	x.holdConflicts(given, fault)
	x.quotaConflicts(given, fault)
	if text := x.fairConflict(); text != "" {
		fault("fair", "%s", text)
	}
	if text := x.federationConflict(); text != "" {
		fault("federation", "%s", text)
	}
	if k := x.Lease; k != nil && k.Max > 0 && k.Min > k.Max {
		fault("lease_min", "lease_min %d is above lease_max %d", k.Min, k.Max)
	}
	return faults
}

// Default sizes of leases.
const (
	leaseMin = 10
	leaseMax = 10_000
)

// compile completes the lease settings of x for a limit. It returns a fault if epsilon leaves members nothing to admit
// locally.
func (x *Extension) compile(limit uint32, members int) (fault string) {
	switch k := x.Lease; { // a configured size adjusts the default of the other
	case k == nil:
	case k.Min > leaseMax && k.Max == 0:
		k.Max = k.Min
	case k.Max > 0 && k.Max < leaseMin && k.Min == 0:
		k.Min = k.Max
	}
	if x.Mechanism != policy.Approximate {
		return ""
	}
	slack := slackOf(x.Epsilon, limit, x.Unknown)
	x.lease().Slack = slack
	if id := x.Identity; id != nil {
		terms := *x.Lease
		terms.Slack = partOf(slack, id.Unknown)
		id.terms = &terms
	}
	if uint64(slack) >= uint64(members) {
		return ""
	}
	what := fmt.Sprintf("epsilon %s of %d hits", percent(x.Epsilon), limit)
	if x.Unknown {
		what += ", a quarter of it for identity: unknown,"
	}
	if members > 1 {
		return fmt.Sprintf("%s is %d, less than one for each of %d members: raise epsilon, or use mechanism: lease", what,
			slack, members)
	}
	return what + " is less than one hit: raise epsilon, or use mechanism: lease"
}

// unknownPart divides the slack of limits on unknown identities, since one client may have many of them.
const unknownPart = 4

// slackOf returns floor(epsilon x limit). 29 % of 100 is 29, although 0.29 x 100 is less in binary.
func slackOf(epsilon float64, limit uint32, unknown bool) uint32 {
	slack := uint64(math.Round(epsilon*grains)) * uint64(limit) / grains
	if unknown {
		slack /= unknownPart
	}
	return uint32(slack)
}

// partOf returns floor(part x slack).
func partOf(slack uint32, part float64) uint32 {
	return uint32(uint64(math.Round(part*grains)) * uint64(slack) / grains)
}

func percent(f float64) string { return strconv.FormatFloat(f*100, 'g', 9, 64) + "%" }

// ofHotKeys reports whether k, which mechanisms of that scope use, is about leases and hot keys.
func (k *setting) ofHotKeys(of scope) bool {
	return of == lends || k.key == "hot_factor" || k.key == "sub_keys" || k.key == "dedicated"
}

// unused returns the reasons why given keys of the rule have no effect.
func (r *RuleSpec) unused(given map[string]*structpb.Value) (reasons []string) {
	x := &r.Extension
	for _, k := range settings() {
		if given[k.key] == nil {
			continue
		}
		by := ""
		switch of := k.of & always; {
		case of == drifts && x.Mechanism != policy.Approximate, of == lends && x.Mechanism == policy.Approximate,
			of&divides == 0 && x.Mechanism == policy.Static:
			by = "mechanism: " + x.Mechanism.String()
		case of == lends && x.Algorithm.Log(), k.of&windows != 0 && x.Algorithm.Bucket():
			by = "algorithm: " + x.Algorithm.String()
		case x.Federation != nil && (k.ofHotKeys(of) || k.key == "degraded"):
			by = "federation"
		case x.Fair != nil && k.ofHotKeys(of):
			by = "fair"
		case x.Holds != nil && k.ofHotKeys(of):
			_, by = x.holdReason()
		case k.key == "sub_keys" && x.Lease.Dedicated:
			by = "dedicated: true"
		case k.key == "local_cap" && x.Degraded != policy.FailOpen && !x.Federation.failsOpen():
			by = "degraded: " + x.Degraded.String()
		}
		if by != "" {
			reasons = append(reasons, fmt.Sprintf("%s, which %s does not use", k.key, by))
		}
	}
	return reasons
}
