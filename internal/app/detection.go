package app

import (
	"log/slog"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// detectionCheck warns about members whose --detection differs from this member's.
type detectionCheck struct {
	own    membership.Detection
	log    *slog.Logger
	warned map[ring.ID]uint64 // boots of members that a warning was about
}

// see logs a warning for each member in v that differs, once in its boot. It must not be called concurrently.
func (c *detectionCheck) see(v *membership.View) {
	for p := range v.Peers() {
		if p.Detection.OrDefault() == c.own || c.warned[p.ID] == p.BootID {
			continue
		}
		if c.warned == nil {
			c.warned = map[ring.ID]uint64{}
		}
		c.warned[p.ID] = p.BootID
		c.log.Warn("peer has another --detection; the shorter one applies between the two members",
			"peer", p.ID, "duration", time.Duration(p.Detection.OrDefault()))
	}
}
