package app

import (
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/peer"
)

// onLinks reports to the cluster with which members this one has streams.
func (m *sidecar) onLinks() {
	c := m.cluster.Load()
	if c == nil {
		return
	}
	var s cluster.Streams
	reasons := map[string][]string{} // members by reason
	view := c.View()
	for _, l := range m.peer.Links() {
		x, _ := view.Find(l.Member)
		switch trouble := troubleOf(l); {
		case trouble == "":
			s.With = append(s.With, l.Member)
		case x.State == membership.Active || view.Ring.Len() == 0: // other members may still be starting
			reasons[trouble] = append(reasons[trouble], string(l.Member))
		}
	}
	var without []string
	for why, who := range reasons {
		without = append(without, strings.Join(who, ", ")+": "+why)
	}
	slices.Sort(without)
	s.Without = strings.Join(without, "; ")
	c.SetStreams(s)
}

// troubleOf returns why this member and another cannot exchange requests, or "" if they can.
func troubleOf(l peer.Link) string {
	switch {
	case l.Live && l.Inbound:
		return ""
	case l.Live:
		return "the member has no stream to this one: it cannot reach --peer, or refuses this member's certificate"
	case l.Error == "":
		return "no stream yet"
	}
	return l.Error
}

// streamGrace is how long a new or broken stream may take to be established.
const streamGrace = 3 * time.Second

// unreachable returns the members with which this one has been unable to exchange requests for longer than streamGrace.
func (m *sidecar) unreachable(now time.Time) []api.Unreachable {
	out := []api.Unreachable{}
	for _, l := range m.peer.Links() {
		if trouble := troubleOf(l); trouble != "" && now.Sub(l.Since) > streamGrace {
			out = append(out, api.Unreachable{Member: string(l.Member), Reason: trouble})
		}
	}
	return out
}
