package boot

import (
	"fmt"

	"github.com/keyward/keyward/admin"
	"github.com/keyward/keyward/cluster"
	"github.com/keyward/keyward/config/source"
)

func hex(h uint64) string {
	if h == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", h)
}

// pageOf is the view of the cluster as /cluster shows it.
func pageOf(label string, v *cluster.View, rules source.Status) admin.Cluster {
	me := v.Me()
	c := admin.Cluster{
		Self: string(v.Self), Inst: hex(me.Inst), Label: label, Version: Version, Joined: v.Joined, Standalone: v.Standalone, NRef: v.NRef,
		Ring:  admin.Ring{Fingerprint: hex(v.Ring.Fingerprint()), Members: []string{}, Disagreement: v.RingsDiffer()},
		Rules: rulesPage(rules, v.RulesDiffer()),
	}
	for i := range v.Ring.Len() {
		c.Ring.Members = append(c.Ring.Members, string(v.Ring.At(i).ID))
	}
	for _, m := range v.Members {
		a := admin.Member{
			ID: string(m.ID), Inst: hex(m.Inst), State: m.State.String(), Role: m.Role.String(), Weight: m.Weight,
			Gossip: m.Gossip, Peer: m.Peer, RLS: m.RLS, Route: m.Route, Ring: hex(m.Ring),
		}
		a.Rules.InForce, a.Rules.Prepared = hex(m.InForce), hex(m.Prepared)
		c.Members = append(c.Members, a)
	}
	return c
}

func rulesPage(s source.Status, disagree int) admin.Rules {
	r := admin.Rules{InForce: hex(s.InForce), Prepared: hex(s.Prepared), Disagreement: disagree, LastError: s.Failure, Versions: []admin.RulesVersion{}}
	for _, v := range s.Versions {
		r.Versions = append(r.Versions, admin.RulesVersion{Hash: hex(v.Hash), Source: v.Source + " " + v.Detail, Prepared: v.Loaded, InForce: v.Since})
	}
	return r
}

// agreement is what the members say of their rules.
func agreement(v *cluster.View) []source.MemberRules {
	var rules []source.MemberRules
	for _, m := range v.Members {
		if m.Role == cluster.Counter && m.State != cluster.Leaving {
			rules = append(rules, source.MemberRules{ID: string(m.ID), InForce: m.InForce, Prepared: m.Prepared})
		}
	}
	return rules
}
