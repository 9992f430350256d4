package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// metadataKey is the key of a descriptor's metadata that holds what envoyproxy/ratelimit has no word for.
const metadataKey = "keyward"

// Extension is what a descriptor's metadata.keyward says. The zero value is the default.
type Extension struct {
	ShardBy   []string      // entry keys whose values make the owner string; none: the first variable entry
	Window    time.Duration // in which the limit may be spent, in place of the unit's length; 0 means the unit's
	Burst     uint32        // depth of a bucket; 0 means the limit
	LocalCap  uint32        // of FailOpen; 0 means the share of a member, at least 1
	Algorithm limit.Algorithm
	Degraded  policy.Degraded
	Mechanism policy.Mechanism
	Strict    bool         // durability: a charge is answered when a second member has it
	Unknown   bool         // identity: of Approximate, a quarter of the slack
	HotFactor uint16       // a key is hot above so many times the mean rate; 0 means 10
	Epsilon   float64      // of Approximate: the part of the limit that all members together may admit on top of it
	Lease     *lease.Terms // what leases and Approximate go by; nil means all defaults. Shared and immutable
}

// maxWindow is the longest window, which is that of the longest unit.
const maxWindow = 365 * 24 * time.Hour

// ownFault is something wrong with one of our own keys.
type ownFault struct{ key, text, hint string }

// parseExtension reads the extension out of a descriptor's metadata. The faults are all there are.
func parseExtension(metadata map[string]any, path []*node) (Extension, []ownFault) {
	var x Extension
	raw, ok := metadata[metadataKey]
	if !ok {
		return x, nil
	}
	m, ok := raw.(map[string]any)
	if !ok {
		return x, []ownFault{{text: "is not a map"}}
	}
	var faults []ownFault
	known := knobs()
	for _, key := range slices.Sorted(maps.Keys(m)) {
		i := slices.IndexFunc(known, func(k knob) bool { return k.key == key })
		if i < 0 {
			faults = append(faults, ownFault{key, fmt.Sprintf("unknown key '%s'", key), hintWord(key, extensionKeyNames())})
		} else if fault := known[i].set(&x, m[key], path); fault != "" {
			faults = append(faults, ownFault{key: key, text: fault})
		}
	}
	if len(faults) == 0 {
		faults = x.conflicts()
	}
	return x, faults
}

func parseMechanism(v any) (policy.Mechanism, string) {
	for m := policy.ByOwner; m <= policy.Approximate; m++ {
		if v == m.String() {
			return m, ""
		}
	}
	return 0, fmt.Sprintf("mechanism must be one of owner, lease, approximate, not '%v'", v)
}

func parseAlgorithm(v any) (limit.Algorithm, string) {
	if s, ok := v.(string); ok {
		if a, known := limit.ParseAlgorithm(s); known {
			return a, ""
		}
	}
	return 0, fmt.Sprintf("algorithm must be one of fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket, not '%v'", v)
}

func parseWindow(v any) (time.Duration, string) {
	s, _ := v.(string)
	w, err := time.ParseDuration(s)
	if err != nil || w <= 0 || w > maxWindow {
		return 0, fmt.Sprintf("window must be a duration like 10s or 1h30m, above 0 and at most %.0fh, not '%v'", maxWindow.Hours(), v)
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

// number is v's value; YAML gives int, uint64 or float64, a RateLimitConfig resource always float64.
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
			return nil, fmt.Sprintf("shard_by names '%s', which is no entry key of the descriptor", k)
		}
	}
	return keys, ""
}

// levelOf is the index of the first level with the given key, -1 without one.
func levelOf(path []*node, key string) int {
	return slices.IndexFunc(path, func(n *node) bool { return n.level.Key == key })
}
