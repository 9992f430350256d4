package cluster

import (
	"fmt"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/ring"
)

// SetRoutes replaces the automatic routes of hot keys that this member announces. Routes of other authors are
// ignored. The other members receive them within moments, and remove them 15 s after the last transmission.
func (c *Cluster) SetRoutes(rs []hotkey.Route) {
	if c.table.records.SetAutomatic(rs) {
		c.table.signal()
	}
}

// SetManualRoute sets the route for its domain and owner string in the whole cluster. It takes precedence over
// automatic routes and over older manual ones (by Version). It applies for as long as this member is live and no
// newer one is set. A route of mode Auto withdraws the manual route.
func (c *Cluster) SetManualRoute(r hotkey.Route) error {
	if err := c.table.records.SetManual(time.Now(), r); err != nil {
		return fmt.Errorf("route: %w", err)
	}
	c.table.signal()
	return nil
}

// SetLoad announces the load of this member, in requests per second. A load of 0 is not announced.
func (c *Cluster) SetLoad(load float64) { c.table.records.SetLoad(load) }

// Loads returns the loads of the live members, this one included, in requests per second. Members that are idle are
// not in it.
func (c *Cluster) Loads() map[ring.ID]float64 { return c.table.records.Loads() }
