package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// offRingAdvice is what to do about a member that stays off the ring, by cause.
var offRingAdvice = map[string]string{
	"lookup":  "correct --join (KEYWARD_JOIN), or the name service: no name of it was ever found",
	"gossip":  "give it the --gossip-key-file and the --cluster of the others, and see that --join means them",
	"streams": "issue it a certificate that the others accept, by their CA and with their name, and open 7947/TCP both ways",
	"rival":   "give every member a --node of its own",
	"full":    "raise --ring-capacity on all members and xDS servers, or lower --weight",
	"flaps":   "wait for the time that its log tells, and look for what cuts it off again and again",
}

// offRing says why members stay off the ring. It comes first: what follows from it for the others is not said again.
func offRing(f *Snapshot, r *report) {
	for _, m := range f.counters() {
		if p := m.Cluster.Problem; p != "" {
			r.fail(offRingAdvice[m.Cluster.Cause], "%s stays off the ring and is not ready: %s", m.Name(), p)
		}
	}
	r.quiet("nobody has a reason to stay off the ring")
}

// seated are the members that count and have no reason to stay off the ring.
func (f *Snapshot) seated() []*MemberReport {
	return slices.DeleteFunc(f.counters(), func(m *MemberReport) bool { return m.Cluster.Problem != "" })
}

// isOff reports whether a member that was asked stays off the ring.
func (f *Snapshot) isOff(name string) bool {
	return slices.ContainsFunc(f.Members, func(m MemberReport) bool { return m.Name() == name && m.Cluster.Problem != "" })
}

// unreachable says which members have no streams with which, by the one that others lack.
func unreachable(f *Snapshot, r *report) {
	by, reason := map[string][]string{}, map[string]string{}
	for _, m := range f.seated() {
		for _, u := range m.Cluster.Unreachable {
			if f.isOff(u.Member) {
				continue // said by offRing
			}
			by[u.Member] = append(by[u.Member], m.Name())
			reason[u.Member] = u.Reason
		}
	}
	for who := range by {
		slices.Sort(by[who])
		if said := by[by[who][0]]; len(by[who]) == 1 && slices.Contains(said, who) && by[who][0] > who && len(said) == 1 {
			continue // the other side of one pair says it
		}
		r.fail("see certificates; open 7947/TCP between all members", "%s and %s cannot ask each other, so that questions about their keys get the degraded policy: %s",
			strings.Join(by[who], ", "), who, reason[who])
	}
	slices.SortFunc(r.findings[len(r.findings)-r.count():], func(a, b Finding) int { return strings.Compare(a.Text, b.Text) })
}

// lately is how long ago gossip may have been refused to be worth a line.
const lately = 10 * time.Minute

// strangers says whose gossip is refused: a member with another key or label is seen by nobody, and counts alone if it counts at all.
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
		r.warn("if that is a member, give it the --gossip-key-file and the --cluster of the others; if not, close 7946 to it", "gossip was refused %s", refusedBy(by))
	}
}

// refusedBy lists sources and who refused them.
func refusedBy(by map[string][]string) string {
	var parts []string
	for from, names := range by {
		slices.Sort(names)
		parts = append(parts, from+" by "+strings.Join(names, ", "))
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}
