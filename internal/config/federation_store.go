package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// storeKeys are the keys of federation about how its holders use a store, with the mechanism that uses them.
var storeKeys = map[string]string{
	"lease_min": "lease", "lease_max": "lease", "ttl": "lease", "reclaim": "lease",
	"epsilon": "approximate", "low_watermark": "approximate", "sync_interval": "approximate",
}

// defaultTTL is the silence after which reclaim: ttl credits unspent hits, if the rule does not set it.
const defaultTTL = 10 * time.Second

// setStore sets a key of storeKeys.
func (f *Federation) setStore(key string, v any) (fault string) {
	t := &f.Terms.Store
	switch key {
	case "lease_min":
		t.LotMin, fault = whole[uint32]("federation.lease_min")(v)
	case "lease_max":
		t.LotMax, fault = whole[uint32]("federation.lease_max")(v)
	case "ttl":
		f.ttl, fault = duration("federation.ttl", time.Second, time.Hour)(v)
	case "reclaim":
		if f.reclaim, _ = v.(string); f.reclaim != "none" && f.reclaim != "ttl" && f.reclaim != "crash" {
			return fmt.Sprintf("federation.reclaim must be one of none, ttl, crash, not '%v'", v)
		}
	case "epsilon":
		if f.Epsilon, fault = parseEpsilon(v); fault != "" {
			fault = "federation." + fault
		}
	case "low_watermark":
		t.Watermark, fault = parseWatermark("federation.low_watermark", v)
	case "sync_interval":
		t.Sync, fault = duration("federation.sync_interval", 100*time.Millisecond, time.Minute)(v)
	}
	return fault
}

// complete sets what depends on several keys, of which m has the given ones. It returns a fault if they contradict each
// other.
func (f *Federation) complete(m map[string]any) (fault string) {
	t := &f.Terms.Store
	mechanism := "lease"
	switch {
	case t.Approximate:
		mechanism = "approximate"
	case f.Static:
		mechanism, f.Terms.Floor = "static", 100
	}
	for _, key := range slices.Sorted(maps.Keys(storeKeys)) {
		if of := storeKeys[key]; m[key] != nil && of != mechanism {
			return fmt.Sprintf("federation.%s needs mechanism: %s, not %s", key, of, mechanism)
		}
	}
	_, f.floorGiven = m["floor"]
	switch {
	case t.LotMax > 0 && t.LotMin > t.LotMax:
		return fmt.Sprintf("federation.lease_min %d is above lease_max %d", t.LotMin, t.LotMax)
	case f.ttl > 0 && f.reclaim != "ttl":
		return "federation.ttl needs reclaim: ttl: without it, what a holder does not return stays charged until the window ends"
	case f.reclaim == "crash":
		t.Reclaim = federation.ReclaimCrash
	case f.reclaim == "ttl":
		if t.Reclaim = f.ttl; t.Reclaim == 0 {
			t.Reclaim = defaultTTL
		}
	}
	if !t.Approximate {
		return ""
	}
	for _, key := range []string{"floor", "batch", "fair_by"} {
		if m[key] != nil {
			return fmt.Sprintf("federation.%s contradicts mechanism: approximate, which lends nothing", key)
		}
	}
	if f.Epsilon == 0 {
		return "federation: {mechanism: approximate} needs an epsilon, the fraction of the limit that may be admitted above it, like 1%"
	}
	f.Terms.Floor = 0
	return ""
}

// bindStore completes how a rule with limit n uses its coordinator. It returns a fault if that does not support it.
func (f *Federation) bindStore(o *FederationOptions, n uint32) (fault string) {
	t := &f.Terms.Store
	if o.Holders > 0 && f.floorGiven {
		return "federation.floor needs a layout with regions: with holders, no sidecar has a part of the limit of its own"
	}
	if o.Holders > 0 {
		f.Terms.Floor = 0
	}
	switch {
	case t.Reclaim > 0 && !slices.Contains(o.Reclaims, f.Authority):
		return fmt.Sprintf("federation.reclaim needs an authority at redis:// or rediss://, which '%s' is not", f.Authority)
	case t.Approximate && !slices.Contains(o.Counts, f.Authority):
		return fmt.Sprintf("federation: {mechanism: approximate} needs an authority at redis:// or rediss://, without "+
			"layout=envoyproxy, which '%s' is not", f.Authority)
	case !t.Approximate:
		return ""
	}
	t.Slack = slackOf(f.Epsilon, n, false)
	if holders := o.holders(); uint64(t.Slack) < uint64(holders) {
		return fmt.Sprintf("federation.epsilon %s of %d hits is %d, less than one for each of %d holders: raise epsilon, or use "+
			"mechanism: lease", percent(f.Epsilon), n, t.Slack, holders)
	}
	return ""
}

// bindShared adapts f to a coordinator that shares its counters with envoyproxy/ratelimit. It returns a fault if that
// service could not count the rule.
func (f *Federation) bindShared(o *FederationOptions, x *Extension) (fault string) {
	if !slices.Contains(o.Shared, f.Authority) {
		return ""
	}
	const text = "federation.authority '%s' shares its counters with envoyproxy/ratelimit, which has no %s"
	switch {
	case x.Window > 0:
		return fmt.Sprintf(text, f.Authority, "window: use a unit")
	case x.Algorithm != limit.FixedWindow:
		return fmt.Sprintf(text, f.Authority, x.Algorithm)
	case f.floorGiven && f.Terms.Floor > 0:
		return fmt.Sprintf(text, f.Authority, "floor: it would admit those hits again")
	}
	f.Terms.Floor, f.Terms.Named = 0, true
	return ""
}

// holders returns the number of members or regions that the coordinator lends to.
func (o *FederationOptions) holders() int { return max(1, o.Holders, o.Regions) }

// storeText returns the settings of the store, as String has them.
func (f *Federation) storeText() string {
	t := &f.Terms.Store
	var texts []string
	add := func(given bool, format string, args ...any) {
		if given {
			texts = append(texts, fmt.Sprintf(format, args...))
		}
	}
	add(t.Approximate, "approximate, epsilon %s", percent(f.Epsilon))
	add(t.Watermark > 0, "low_watermark %d%%", t.Watermark)
	add(t.Sync > 0, "sync_interval %s", t.Sync)
	add(t.LotMin > 0, "lease_min %d", t.LotMin)
	add(t.LotMax > 0, "lease_max %d", t.LotMax)
	add(t.Reclaim > 0, "reclaim %s after %s", f.reclaim, t.Reclaim)
	if len(texts) == 0 {
		return ""
	}
	return ", " + strings.Join(texts, ", ")
}
