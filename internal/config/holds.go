package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// holdSettings returns the keys of metadata.keyward about holds.
func holdSettings() []setting {
	return []setting{
		{"reserve", "1 to the limit, for a bucket to its `burst`", "none", owned,
			into(func(x *Extension) *uint64 { return &x.holds().Reserve }, func(v any) (uint64, string) {
				n, fault := whole[uint32]("reserve")(v)
				return uint64(n), fault
			})},
		{"settle", "`marked`, `addend`", "`marked`", owned,
			func(x *Extension, v any, _ []*node) string {
				addend, fault := either("settle", "marked", "addend")(v)
				if addend {
					x.holds().Settle = claim.SettleAddend
				}
				return fault
			}},
		{"lapse", "`keep`, `release`", "`keep`", owned,
			func(x *Extension, v any, _ []*node) string {
				release, fault := either("lapse", "keep", "release")(v)
				if release {
					x.holds().Lapse = claim.LapseRelease
				}
				return fault
			}},
		{"hold_ttl", "a duration from `1s` to `24h`", "`10m`", owned,
			into(func(x *Extension) *time.Duration { return &x.holds().TTL }, duration("hold_ttl", time.Second, 24*time.Hour))},
		{"holds", "1 to 16384", "16384", owned,
			into(func(x *Extension) *uint32 { return &x.holds().Max }, func(v any) (uint32, string) {
				return parseWhole("holds", v, claim.DefaultMax)
			})},
		{"all_or_nothing", "`true`, `false`", "`false`", owned,
			into(func(x *Extension) *bool { return &x.AllOrNothing }, truth("all_or_nothing"))},
		{"once", "`true`, `false`", "`false`", owned, into(func(x *Extension) *bool { return &x.Once }, truth("once"))},
	}
}

// holds returns x.Holds, which it allocates if necessary.
func (x *Extension) holds() *claim.HoldTerms {
	if x.Holds == nil {
		x.Holds = new(claim.HoldTerms)
	}
	return x.Holds
}

// completeHolds sets the defaults of x.Holds. It leaves nil, without holds, as it is.
func (x *Extension) completeHolds() {
	if x.Algorithm == limit.InFlight {
		h := x.holds()
		h.Reserve, h.TTL, h.Lapse = 1, x.Window, claim.LapseRelease
	}
	if h := x.Holds; h != nil {
		if h.TTL == 0 {
			h.TTL = claim.DefaultTTL
		}
		if h.Max == 0 {
			h.Max = claim.DefaultMax
		}
	}
}

// holdConflicts reports the keys about holds that contradict others. given are the keys that the rule has.
func (x *Extension) holdConflicts(given map[string]any, fault func(key, format string, args ...any)) {
	has := func(key string) bool { return given[key] != nil }
	inFlight := x.Algorithm == limit.InFlight
	switch {
	case inFlight && has("reserve"):
		fault("reserve", "reserve cannot be used with algorithm: in_flight, whose requests hold the hits that they have")
	case inFlight:
		for _, key := range []string{"settle", "lapse", "hold_ttl"} {
			if has(key) {
				fault(key, "%s cannot be used with algorithm: in_flight, whose hits come back when the request ends, and after window at "+
					"the latest", key)
			}
		}
	case !has("reserve"):
		for _, key := range []string{"settle", "lapse", "hold_ttl", "holds"} {
			if has(key) {
				fault(key, "%s needs reserve, the hits of a hold whose request has none of its own", key)
			}
		}
	case x.Holds.Settle == claim.SettleAddend && !has("lapse"):
		fault("settle", "settle: addend needs lapse: without a mark, a request that ends without a cost settles nothing, so choose keep "+
			"or release")
	}
	if inFlight && x.Window == 0 {
		fault("algorithm", "algorithm: in_flight needs a window, the longest time that a request may be in flight, like 10m")
	}
	x.holdRivals(fault)
}

// holdRivals reports the mechanisms that admit hits without the owner, which alone can give hits back.
func (x *Extension) holdRivals(fault func(key, format string, args ...any)) {
	key, text := x.holdReason()
	if key == "" {
		return
	}
	if x.Mechanism != policy.ByOwner {
		fault(key, "%s needs mechanism: owner: with %s, members admit hits without the owner, which alone has the holds of all "+
			"requests", text, x.Mechanism)
	}
	if x.Federation != nil {
		fault(key, "%s cannot be used with federation: other regions do not have the holds of this one", text)
	}
	if x.Fair != nil && key != "once" {
		fault(key, "%s cannot be used with fair: a hold that lapses has no tenant to give its hits back to", text)
	}
}

// holdReason returns the key that makes the owner remember requests, and its text, or "" if none does.
func (x *Extension) holdReason() (key, text string) {
	switch {
	case x.Algorithm == limit.InFlight:
		return "algorithm", "algorithm: in_flight"
	case x.Holds != nil:
		return "reserve", "reserve"
	case x.AllOrNothing:
		return "all_or_nothing", "all_or_nothing"
	case x.Once:
		return "once", "once"
	}
	return "", ""
}

// holdFault returns why the rule cannot have its holds.
func (r *RuleSpec) holdFault() (key, text string) {
	h := r.Extension.Holds
	switch {
	case h == nil:
	case r.Unlimited:
		key, text = r.Extension.holdReason()
		return key, text + " cannot be used with unlimited: nothing is charged that could be given back"
	case h.Reserve > uint64(r.Limit.Depth()) && r.Limit.Algorithm != limit.InFlight:
		return "reserve", fmt.Sprintf("reserve %d is above the limit of %d: no request that reserves it would be admitted",
			h.Reserve, r.Limit.Depth())
	}
	return "", ""
}

// HoldSettings returns the settings about holds as in a rule file, like "reserve 100, settle addend, lapse release", or
// "" if the rule has none. Defaults are left out, except lapse and hold_ttl.
func (x *Extension) HoldSettings() string {
	var parts []string
	add := func(show bool, format string, args ...any) {
		if show {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	if h := x.Holds; h != nil && x.Algorithm != limit.InFlight {
		add(true, "reserve %d", h.Reserve)
		add(h.Settle == claim.SettleAddend, "settle addend")
		lapse := map[claim.Lapse]string{claim.LapseKeep: "keep", claim.LapseRelease: "release"}[h.Lapse]
		add(true, "lapse %s, hold_ttl %s", lapse, brief(h.TTL))
	}
	if h := x.Holds; h != nil {
		add(h.Max != claim.DefaultMax, "holds %d", h.Max)
	}
	add(x.AllOrNothing, "all_or_nothing")
	add(x.Once, "once")
	return strings.Join(parts, ", ")
}
