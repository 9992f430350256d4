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

// onLinks tells the cluster with which members this one has streams.
func (m *sidecar) onLinks() {
	c := m.cluster.Load()
	if c == nil {
		return
	}
	var s cluster.Streams
	reasons := map[string][]string{} // whom each keeps away
	view := c.View()
	for _, l := range m.peer.Links() {
		x, _ := view.Find(l.Member)
		switch trouble := troubleOf(l); {
		case trouble == "":
			s.With = append(s.With, l.Member)
		case x.State == membership.Active || view.Ring.Len() == 0: // others do not matter
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

// troubleOf is why this member and another cannot ask each other; empty when they can.
func troubleOf(l peer.Link) string {
	switch {
	case l.Live && l.Inbound:
		return ""
	case l.Live:
		return "it has no stream to this member: it cannot reach --peer, or refuses this member's certificate"
	case l.Error == "":
		return "no stream yet"
	}
	return l.Error
}

// streamGrace is how long a stream may take to come, or to come back.
const streamGrace = 3 * time.Second

// unreachable lists the members that this one cannot ask, or that cannot ask it, and have not been able to for a while.
func (m *sidecar) unreachable(now time.Time) []api.Unreachable {
	out := []api.Unreachable{}
	for _, l := range m.peer.Links() {
		if trouble := troubleOf(l); trouble != "" && now.Sub(l.Since) > streamGrace {
			out = append(out, api.Unreachable{Member: string(l.Member), Reason: trouble})
		}
	}
	return out
}
