package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/ring"
)

// capOf returns a route of the simplest kind.
func capOf(by ring.ID, owner string, ver int64) hotkey.Route {
	return hotkey.Route{Domain: "d", Name: "k=" + owner, Owner: owner, Mode: hotkey.Cap, Author: by, Version: ver, Limit: 10, Window: int64(time.Second)}
}

func shown(rs []hotkey.Route) (out []string) {
	for _, r := range rs {
		out = append(out, fmt.Sprintf("%s %s %d", r.Owner, r.Author, r.Version))
	}
	return out
}

// Routes and loads reach all members by gossip, the newest manual route applies, and a leaving member's records are
// removed.
func TestRoutesTravel(t *testing.T) {
	virtual(t, func(t *testing.T) {
		mu := make(chan struct{}, 1)
		heard := map[string][]string{}
		all := three(t, func(o *Options) {
			name := o.Node
			o.OnRoutes = func(rs []hotkey.Route) {
				mu <- struct{}{}
				heard[name] = shown(rs)
				<-mu
			}
		})
		know := func(cs []*Cluster, want ...string) func() bool {
			return func() bool {
				mu <- struct{}{}
				defer func() { <-mu }()
				for _, c := range cs {
					if !slices.Equal(heard[string(c.View().Self)], want) {
						return false
					}
				}
				return true
			}
		}
		all[2].SetRoutes([]hotkey.Route{capOf("c", "k", 5), capOf("c", "k2", 5)})
		eventually(t, "all have c's routes", know(all, "k c 5", "k2 c 5"))
		if err := all[1].SetManualRoute(capOf("b", "k", 6)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all have b's manual route", know(all, "k b 6", "k2 c 5"))
		for _, c := range all {
			if got := testutil.ToFloat64(c.metrics.routes); got != 2 {
				t.Errorf("keyward_hot_routes %v", got)
			}
		}
		all[2].SetLoad(3000)
		all[1].SetLoad(500)
		eventually(t, "b's load", func() bool { return all[0].Loads()["b"] == 500 })
		all[1].Leave(t.Context())
		eventually(t, "b's manual route is removed with it", know([]*Cluster{all[0], all[2]}, "k c 5", "k2 c 5"))
		all[2].SetRoutes([]hotkey.Route{capOf("c", "k2", 5)})
		eventually(t, "one is withdrawn", know([]*Cluster{all[0], all[2]}, "k2 c 5"))
		eventually(t, "c's load", func() bool { return all[0].Loads()["c"] == 3000 })
		if _, ok := all[0].Loads()["b"]; ok {
			t.Error("the load of a member that has left")
		}
	})
}
