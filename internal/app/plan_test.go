package app

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/api"
)

// A key with far more requests than others gets a route, which all members announce by its name.
func TestHotKeysGetRoutes(t *testing.T) {
	t.Setenv("KEYWARD_HOT_RATE", "10")
	all := trio(t)
	owner := all[0].counter(t, "x").Owner
	rounds := 0
	eventually(t, "a route of the hot key everywhere", func() bool {
		for _, p := range all {
			p.hit(t, "x", 1)
		}
		rounds++
		all[rounds%3].hit(t, fmt.Sprint("other", rounds%50), 1)
		return !slices.ContainsFunc(all, func(p *process) bool {
			h := p.hotKeys(t)
			return !slices.ContainsFunc(h.Routes, func(r api.HotRoute) bool {
				return r.OwnerString == "x" && r.Name == "k=x" && r.Domain == "d" && !r.Manual && r.By == owner && hotkey.Mode(r.Mode) != hotkey.Auto
			})
		})
	})
	for _, p := range all {
		if _, b := p.get("/metrics"); !strings.Contains(string(b), "\nkeyward_hot_routes 1\n") ||
			(p.name == owner) != strings.Contains(string(b), "\nkeyward_hot_keys 1\n") {
			t.Errorf("%s exports other values to Prometheus", p.name)
		}
	}
}
