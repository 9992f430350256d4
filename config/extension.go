package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/keyward/keyward/limit"
)

// extensionKey is the key of a descriptor's metadata that holds what envoyproxy/ratelimit has no word for.
const extensionKey = "keyward"

// Degraded is what a rule answers when its key's owner cannot be reached in time. The numbers are those of the peer
// protocol.
type Degraded uint8

// The degraded policies.
const (
	LocalShare Degraded = 0 // this member's share of the limit
	FailOpen   Degraded = 1 // admit, up to LocalCap a member and window
	FailClosed Degraded = 2 // this member's share of what the owner last said was left, then refuse
)

// String is the policy as a file writes it.
func (d Degraded) String() string {
	switch d {
	case LocalShare:
		return "local_share"
	case FailOpen:
		return "fail_open"
	case FailClosed:
		return "fail_closed"
	}
	return fmt.Sprintf("degraded(%d)", uint8(d))
}

// Extension is what a descriptor's metadata.keyward says. The zero value is the default.
type Extension struct {
	ShardBy   []string      // entry keys whose values make the owner string; none: the first variable entry
	Window    time.Duration // in which the limit may be spent, in place of the unit's length; 0 means the unit's
	Burst     uint32        // depth of a bucket; 0 means the limit
	LocalCap  uint32        // of FailOpen; 0 means the limit
	Algorithm limit.Algorithm
	Degraded  Degraded
	Strict    bool // durability: a charge is answered when a second member has it
}

// maxWindow is the longest window, which is that of the longest unit.
const maxWindow = 365 * 24 * time.Hour

// parseExtension reads the extension out of a descriptor's metadata. The faults are all there are.
func parseExtension(metadata map[string]any, path []*node) (Extension, []string) {
	var x Extension
	raw, ok := metadata[extensionKey]
	if !ok {
		return x, nil
	}
	m, ok := raw.(map[string]any)
	if !ok {
		return x, []string{"is not a map"}
	}
	var faults []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if fault := x.set(k, m[k], path); fault != "" {
			faults = append(faults, fault)
		}
	}
	if len(faults) == 0 && x.Burst > 0 && !x.Algorithm.Bucket() {
		faults = append(faults, fmt.Sprintf("burst is the depth of a token_bucket or leaky_bucket; the algorithm is %s", x.Algorithm))
	}
	return x, faults
}

// set takes one key; the fault is empty when all is well.
func (x *Extension) set(k string, v any, path []*node) (fault string) {
	switch k {
	case "shard_by":
		x.ShardBy, fault = parseShardBy(v, path)
	case "degraded":
		x.Degraded, fault = parseDegraded(v)
	case "local_cap":
		x.LocalCap, fault = parseWhole(k, v)
	case "algorithm":
		x.Algorithm, fault = parseAlgorithm(v)
	case "window":
		x.Window, fault = parseWindow(v)
	case "burst":
		x.Burst, fault = parseWhole(k, v)
	case "durability":
		x.Strict, fault = parseDurability(v)
	case "mechanism":
		fault = parseMechanism(v)
	case "epsilon", "identity", "lease_min", "lease_max", "ttl", "low_watermark", "sync_interval", "hot_factor", "sub_keys",
		"weight", "reclaim", "dedicated":
		fault = fmt.Sprintf("%s is not supported yet", k)
	default:
		fault = fmt.Sprintf("unknown key '%s'", k)
	}
	return fault
}

// parseMechanism accepts the one value that is built; the others are known, and said to be.
func parseMechanism(v any) string {
	switch v {
	case "owner":
		return ""
	case "lease", "approximate":
		return fmt.Sprintf("mechanism '%v' is not supported yet", v)
	}
	return fmt.Sprintf("mechanism must be one of owner, lease, approximate, not '%v'", v)
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

func parseDurability(v any) (strict bool, fault string) {
	switch v {
	case "async":
		return false, ""
	case "strict":
		return true, ""
	}
	return false, fmt.Sprintf("durability must be one of async, strict, not '%v'", v)
}

func parseDegraded(v any) (Degraded, string) {
	for d := LocalShare; d <= FailClosed; d++ {
		if v == d.String() {
			return d, ""
		}
	}
	return 0, fmt.Sprintf("degraded must be one of local_share, fail_open, fail_closed, not '%v'", v)
}

func parseWhole(name string, v any) (uint32, string) {
	f, ok := number(v)
	if !ok || f < 1 || f > math.MaxUint32 || f != math.Trunc(f) {
		return 0, fmt.Sprintf("%s must be a whole number from 1 to %d, not '%v'", name, uint32(math.MaxUint32), v)
	}
	return uint32(f), ""
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
