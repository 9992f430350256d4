package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// offRingAdvice is the advice for a member that stays off the ring, by cause.
var offRingAdvice = map[string]string{
	"lookup": "correct --join (KEYWARD_JOIN) or the name service: none of its names was ever resolved",
	"gossip": "give it the --gossip-key-file and the --cluster of the other members, and check that --join has their " +
		"addresses",
	"streams": "issue a certificate for it that the other members accept, by their CA and with their name, and open " +
		"7947/TCP in both directions",
	"rival": "give every member a unique --node",
	"full":  "raise --ring-capacity on all members and xDS servers, or lower --weight",
	"host":  "give every member a --ring-host of its own, as the hosts of Envoy's cluster have",
	"flaps": "wait for the time in its log, and find out what disconnects it repeatedly",
}

// offRing reports why members stay off the ring. It runs first, and other checks skip the consequences.
func offRing(f *Snapshot, r *report) {
	for _, m := range f.counters() {
		if p := m.Cluster.Problem; p != "" {
			r.fail(offRingAdvice[m.Cluster.Cause], "%s stays off the ring and is not ready: %s", m.Name(), p)
		}
	}
	r.quiet("no member has a reason to stay off the ring")
}

// onTheRing returns the members that have no reason to stay off the ring.
func (f *Snapshot) onTheRing() []*MemberReport {
	return slices.DeleteFunc(f.counters(), func(m *MemberReport) bool { return m.Cluster.Problem != "" })
}

// isOff reports whether a queried member stays off the ring.
func (f *Snapshot) isOff(name string) bool {
	return slices.ContainsFunc(f.Members, func(m MemberReport) bool { return m.Name() == name && m.Cluster.Problem != "" })
}

// unreachable reports which members have no streams to each other, grouped by the member that the others cannot reach.
func unreachable(f *Snapshot, r *report) {
	by, reason := map[string][]string{}, map[string]string{}
	for _, m := range f.onTheRing() {
		for _, u := range m.Cluster.Unreachable {
			if f.isOff(u.Member) {
				continue // reported by offRing
			}
			by[u.Member] = append(by[u.Member], m.Name())
			reason[u.Member] = u.Reason
		}
	}
	for who := range by {
		slices.Sort(by[who])
		if reverse := by[by[who][0]]; len(by[who]) == 1 && slices.Contains(reverse, who) && by[who][0] > who && len(reverse) == 1 {
			continue // reported from the other side of the pair
		}
		r.fail("check certificates; open 7947/TCP between all members", "%s and %s cannot reach each other, so the "+
			"degraded policy decides requests for their keys: %s",
			strings.Join(by[who], ", "), who, reason[who])
	}
	slices.SortFunc(r.findings[len(r.findings)-r.count():],
		func(a, b Finding) int { return strings.Compare(a.Text, b.Text) })
}

// lately is for how long refused gossip is reported.
const lately = 10 * time.Minute

// strangers reports whose gossip was refused. No other member sees a member with another key or label, so it counts
// alone.
func strangers(f *Snapshot, r *report) {
	by := map[string][]string{}
	for i := range f.Members {
		m := &f.Members[i]
		if m.Self == nil {
			continue
		}
		for _, x := range m.Self.GossipRefused {
			if (x.Reason == "key" || x.Reason == "label") && f.Now.Sub(x.At) < lately {
				what := fmt.Sprintf("from %s (%s)", x.From, x.Reason)
				by[what] = append(by[what], m.Name())
			}
		}
	}
	if len(by) > 0 {
		r.warn("if that is a member, give it the --gossip-key-file and the --cluster of the other members; if not, close "+
			"7946 to it",
			"gossip was refused %s", refusedBy(by))
	}
}

// refusedBy lists sources with the members that refused them.
func refusedBy(by map[string][]string) string {
	var parts []string
	for from, names := range by {
		slices.Sort(names)
		parts = append(parts, from+" by "+strings.Join(names, ", "))
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}
