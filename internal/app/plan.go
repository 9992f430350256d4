package app

import (
	"context"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// planEvery is how often hot keys' routes are thought over, as hotkey.Planner wants it.
const planEvery = time.Second

// plan has the routes of this member's hot keys follow what is hot and how loaded the members are, until ctx ends.
func (m *sidecar) plan(ctx context.Context) {
	c, planner := m.cluster.Load(), hotkey.NewPlanner(ring.ID(m.flags.Node), 0)
	again := time.NewTicker(planEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		now := m.peer.Now()
		c.SetLoad(m.peer.Load())
		c.SetRoutes(planner.Plan(now, c.View().Ring, ring.Hash, routable(m.node.HotKeys(now)), c.Loads(), m.manual.routes()))
	}
}

// routable are the keys that may get routes: named ones that were found to be hot. Since tells them from those that are only
// hot by decree, which a route of ours is, too: by that it would never end.
func routable(keys []owner.HotKey) (hot []hotkey.HotCounter) {
	for i := range keys {
		k := &keys[i]
		if k.Since == 0 || !k.Hot || k.Owner == "" {
			continue
		}
		hot = append(hot, hotkey.HotCounter{
			Domain: k.Domain, Name: k.Name, Owner: k.Owner, Hash: k.Hash, Rate: k.Rate, Limit: max(k.Rule.Limit, k.Rule.Depth()), Window: int64(k.Rule.Window),
			SubKeys: k.LeaseConfig.SubKeys, Dedicated: k.LeaseConfig.Dedicated, Uncapped: k.LeaseConfig.Uncapped, Splittable: k.Splittable, Since: k.Since,
		})
	}
	return hot
}
