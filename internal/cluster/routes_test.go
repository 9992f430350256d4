package cluster

import (
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/hotkey"
)

// Routes and loads reach all members by gossip, the newest manual route applies, and a leaving member's records are
// removed.
func TestRoutesTravel(t *testing.T) {
	virtual(t, func(t *testing.T) {
		mu := make(chan struct{}, 1)
		heard := map[string][]hotkey.Route{}
		all := three(t, func(o *Options) {
			name := o.Node
			o.OnRoutes = func(rs []hotkey.Route) {
				mu <- struct{}{}
				heard[name] = rs
				<-mu
			}
		})
		know := func(cs []*Cluster, want ...hotkey.Route) func() bool {
			return func() bool {
				mu <- struct{}{}
				defer func() { <-mu }()
				for _, c := range cs {
					if !reflect.DeepEqual(heard[string(c.View().Self)], want) {
						return false
					}
				}
				return true
			}
		}
		k := hotkey.Route{Domain: "d", Name: "k=v", Owner: "k", Mode: hotkey.Cap, Author: "c", Version: 5, Limit: 10, Window: 1e9}
		k2, manual := k, k
		k2.Owner = "k2"
		manual.Author, manual.Version, manual.Manual = "b", 6, true
		all[2].SetRoutes([]hotkey.Route{k, k2})
		eventually(t, "all have c's routes", know(all, k, k2))
		if err := all[1].SetManualRoute(manual); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all have b's manual route", know(all, manual, k2))
		for _, c := range all {
			if got := testutil.ToFloat64(c.metrics.routes); got != 2 {
				t.Errorf("keyward_hot_routes %v", got)
			}
		}
		all[2].SetLoad(3000)
		all[1].SetLoad(500)
		eventually(t, "b's load", func() bool { return all[0].Loads()["b"] == 500 })
		all[1].Leave(t.Context())
		eventually(t, "b's manual route is removed with it", know([]*Cluster{all[0], all[2]}, k, k2))
		all[2].SetRoutes([]hotkey.Route{k2})
		eventually(t, "one is withdrawn", know([]*Cluster{all[0], all[2]}, k2))
		eventually(t, "c's load", func() bool { return all[0].Loads()["c"] == 3000 })
		if _, ok := all[0].Loads()["b"]; ok {
			t.Error("the load of a member that has left")
		}
	})
}
