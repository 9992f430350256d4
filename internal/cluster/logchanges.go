package cluster

import (
	"fmt"
	"strings"

	"github.com/keyward/keyward/ring"
)

// logChanges logs what a person needs to follow a change of the ring across members.
func (c *Cluster) logChanges(o *outcome) {
	if o.ringChanged {
		c.metrics.ringChanges.Inc()
		c.metrics.deaths.Add(float64(o.ringChange.crashed))
		r := o.view.Ring
		x := &o.ringChange
		c.log.Info("ring adopted", "ring", fmt.Sprintf("%016x", r.Fingerprint()), "members", r.Len(), "n_ref", o.view.NRef,
			"parameters", r.Parameters().String(),
			"joined", joinIDs(x.joined), "left", joinIDs(x.left), "died", joinIDs(x.died), "replaced", joinIDs(x.replaced))
		if others := o.view.OtherRingParameters(); len(others) > 0 {
			c.log.Warn("members are configured for different rings; all use Keyward's own ring until --ring is the same",
				"member", joinIDs(others), "configured", o.self.RingParameters.String())
		}
	}
	if o.self.State != c.state {
		c.state = o.self.State
		c.log.Info("member state changed", "state", c.state.String(), "ring", fmt.Sprintf("%016x", o.self.Ring))
	}
	if o.view.Problem != c.problem {
		if c.problem = o.view.Problem; c.problem != "" {
			c.log.Error("this member stays off the ring", "cause", c.problem)
		}
	}
}

// joinIDs formats members for a log line.
func joinIDs(ids []ring.ID) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(string(id))
	}
	return b.String()
}
