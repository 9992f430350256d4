package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// metadataKey is the key of a descriptor's metadata under which Keyward's own settings are.
const metadataKey = "keyward"

// Extension holds the settings in a descriptor's metadata.keyward. The zero value is the default.
type Extension struct {
	ShardBy    []string      // keys of the entries that form the owner string; none: the first variable entry
	Window     time.Duration // replaces the length of the unit; 0 means the unit's
	Burst      uint32        // depth of a bucket; 0 means the limit
	LocalCap   uint32        // for FailOpen; 0 means the share of a member, at least 1
	Algorithm  limit.Algorithm
	Degraded   policy.Degraded
	Partition  policy.PartitionChoice // 0 means the members' --partition
	Mechanism  policy.Mechanism
	Strict     bool             // durability: strict. A charge is acknowledged once the successor and the journal have it
	Volatile   bool             // durability: memory. The journal does not contain the counters
	Unknown    bool             // identity: unknown. Approximate uses a quarter of the slack
	Identity   *Identity        // which callers may use how much of the slack; nil: all of them the same
	Federation *Federation      // how the limit is divided between regions; nil: it is the cluster's own
	Quota      *QuotaTerms      // mechanism: quota; nil: Envoys are granted no part of the limit. Mechanism is then ByOwner
	Fair       *Fair            // how the limit is divided between tenants; nil: it is not
	HotFactor  uint16           // a key is hot above this multiple of the mean rate of others; 0 means 10
	Epsilon    float64          // for Approximate: the fraction of the limit that members may admit above it
	Lease      *lease.Terms     // settings of leases and of Approximate; nil means all defaults. Shared and immutable
	Holds      *claim.HoldTerms // settings of holds; nil: the rule has none. With InFlight, of its slots. Shared and immutable

	AllOrNothing bool // a request is charged to all of its rules or to none
	Once         bool // a repeated request is not charged again
}

// Durability returns the value of the key durability.
func (x *Extension) Durability() string {
	switch {
	case x.Strict:
		return "strict"
	case x.Volatile:
		return "memory"
	}
	return "async"
}

// maxWindow is the longest window: the length of the longest unit.
const maxWindow = 365 * 24 * time.Hour

// extensionFault is a fault in one of Keyward's keys.
type extensionFault struct{ key, text, hint string }

// parseExtension reads the extension from a descriptor's metadata. It returns all faults.
func parseExtension(metadata map[string]any, path []*node) (Extension, []extensionFault) {
	var x Extension
	raw, ok := metadata[metadataKey]
	if !ok {
		return x, nil
	}
	m, ok := raw.(map[string]any)
	if !ok {
		return x, []extensionFault{{text: "is not a map"}}
	}
	var faults []extensionFault
	known := settings()
	for _, key := range slices.Sorted(maps.Keys(m)) {
		i := slices.IndexFunc(known, func(k setting) bool { return k.key == key })
		if i < 0 {
			faults = append(faults, extensionFault{key, fmt.Sprintf("unknown key '%s'", key), hintWord(key, extensionKeyNames())})
		} else if fault := known[i].set(&x, m[key], path); fault != "" {
			faults = append(faults, extensionFault{key: key, text: fault})
		}
	}
	if len(faults) == 0 {
		if faults = x.conflicts(m); len(faults) == 0 {
			x.completeHolds()
		}
	}
	return x, faults
}

func parseMechanism(v any) (policy.Mechanism, string) {
	for m := policy.ByOwner; m <= policy.Static; m++ {
		if v == m.String() {
			return m, ""
		}
	}
	return 0, fmt.Sprintf("mechanism must be one of owner, lease, approximate, static, quota, not '%v'", v)
}

func parseAlgorithm(v any) (limit.Algorithm, string) {
	if s, ok := v.(string); ok {
		if a, known := limit.ParseAlgorithm(s); known {
			return a, ""
		}
	}
	return 0, fmt.Sprintf("algorithm must be one of fixed_window, sliding_window, sliding_log, token_bucket, "+
		"leaky_bucket, in_flight, not '%v'",
		v)
}

func parseWindow(v any) (time.Duration, string) {
	s, _ := v.(string)
	w, err := time.ParseDuration(s)
	if err != nil || w <= 0 || w > maxWindow {
		return 0, fmt.Sprintf("window must be a duration like 10s or 1h30m, above 0 and at most %.0fh, not '%v'",
			maxWindow.Hours(), v)
	}
	return w, ""
}

func parseDegraded(v any) (policy.Degraded, string) {
	for d := policy.LocalShare; d <= policy.FailClosed; d++ {
		if v == d.String() {
			return d, ""
		}
	}
	return 0, fmt.Sprintf("degraded must be one of local_share, fail_open, fail_closed, not '%v'", v)
}

func parsePartition(v any) (policy.PartitionChoice, string) {
	if s, ok := v.(string); ok {
		if p, known := policy.ParsePartition(s); known {
			return policy.Choose(p), ""
		}
	}
	return 0, fmt.Sprintf("partition must be one of share, available, quorum, not '%v'", v)
}

// number returns the value of v. YAML yields int, uint64 or float64, a RateLimitConfig resource always float64.
func number(v any) (float64, bool) {
	switch v := v.(type) {
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

func parseShardBy(v any, path []*node) ([]string, string) {
	var keys []string
	switch v := v.(type) {
	case string:
		keys = []string{v}
	case []any:
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, fmt.Sprintf("shard_by must be entry keys, not '%v'", e)
			}
			keys = append(keys, s)
		}
	default:
		return nil, fmt.Sprintf("shard_by must be an entry key or a list of them, not '%v'", v)
	}
	if len(keys) == 0 {
		return nil, "shard_by must name an entry key"
	}
	for i, k := range keys {
		if slices.Contains(keys[:i], k) {
			return nil, fmt.Sprintf("shard_by names '%s' twice", k)
		}
		if levelOf(path, k) < 0 {
			return nil, fmt.Sprintf("shard_by names '%s', which is not an entry key of the descriptor", k)
		}
	}
	return keys, ""
}

// levelOf returns the index of the first level with the given key, or -1.
func levelOf(path []*node, key string) int {
	return slices.IndexFunc(path, func(n *node) bool { return n.level.Key == key })
}
