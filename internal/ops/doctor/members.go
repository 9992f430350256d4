package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/api"
)

func members(f *Snapshot, r *report) {
	for _, s := range f.Unreachable {
		name := s.Page
		if s.Name != "" {
			name = s.Name + " (" + s.Page + ")"
		}
		r.warn("let this machine reach its --metrics port, or name each member with --member; a process that is dead shows as missing below",
			"%s does not answer: %v", name, s.Err)
	}
	for i := range f.Members {
		if m := &f.Members[i]; m.Self == nil {
			r.warn("upgrade it: before this version it does not tell its clock, keys and certificate", "%s serves no /v1/self", m.Name())
		}
	}
	r.quiet("%s asked, all answer", number(len(f.Members), "process"))
}

// ports judges what was reached from here, and what members say of the ways between them.
func ports(f *Snapshot, r *report) {
	for _, p := range f.Probes {
		if p.Err != nil {
			r.fail(fmt.Sprintf("open %s to the other members: firewall, NetworkPolicy, Service and --advertise", p.What),
				"%s does not answer at %s (%s): %v", p.Member, p.Address, p.What, p.Err)
		}
	}
	for _, m := range f.seated() {
		if n := m.Metrics.Sum("keyward_cluster_missing"); n > 0 {
			r.warn("check the addresses of --join, and that 7946 is open both ways, TCP and UDP",
				"%s knows of %.0f addresses that should be members and do not answer", m.Name(), n)
		}
		if n := m.Metrics.Sum("keyward_gossip_health_score"); n >= 3 {
			r.warn("open 7946/UDP between all members, or give the pod more CPU", "%s is late with its gossip (score %.0f): UDP is lost, or it has no processor time", m.Name(), n)
		}
	}
	unreachable(f, r)
	r.quiet("%s reached, streams between all members stand", number(len(f.Probes), "port"))
}

// oneCluster holds that all who were asked see each other.
func oneCluster(f *Snapshot, r *report) {
	all := f.counters()
	if len(all) == 0 {
		r.fail("name a sidecar with --member", "none of the processes that answer counts keys")
		return
	}
	if labels := groups(all, func(m *MemberReport) string { return "--cluster " + m.Cluster.Label }); len(labels) > 1 {
		r.fail("give all members of one cluster the same --cluster", "members of several clusters: %s", formatGroups(labels))
	}
	for _, m := range all {
		switch {
		case m.Cluster.Standalone && len(all) > 1:
			r.fail("give every member --join with the gossip addresses of the others (KEYWARD_JOIN=dns+NAME:7946)",
				"%s stands alone beside %s: each admits the whole limit", m.Name(), number(len(all)-1, "other member"))
		case m.Cluster.Standalone:
			r.ok("%s stands alone: there is no --join, so it must be the only replica", m.Name())
		}
	}
	for _, m := range all {
		var unseen []string
		for _, other := range f.Members {
			if other.Name() != m.Name() && other.Cluster.Problem == "" && m.Cluster.Problem == "" && !other.Cluster.Standalone && !m.Cluster.Standalone && m.sees(other.Name()) == nil {
				unseen = append(unseen, other.Name())
			}
		}
		if len(unseen) > 0 {
			r.fail("compare --join, --cluster, --gossip-key-file and the gossip ports of both sides", "%s does not see %s", m.Name(), strings.Join(unseen, ", "))
		}
	}
	r.quiet("%s see each other", number(len(f.Members), "process"))
}

// sees is what m knows of a member; nil when it knows none of the name.
func (m *MemberReport) sees(id string) *api.MemberStatus {
	for i := range m.Cluster.Members {
		if m.Cluster.Members[i].ID == id {
			return &m.Cluster.Members[i]
		}
	}
	return nil
}

// The bounds of clocks: DESIGN.md counts on 250 ms, and a member whose clock jumps by a second fences itself.
const (
	skewWarn = 250 * time.Millisecond
	skewFail = time.Second
)

func clocks(f *Snapshot, r *report) {
	const advice = "run chrony or ntpd on the nodes: windows end when the owner's clock says so, and limits hold to within the clocks' difference"
	worst := time.Duration(0)
	judge := func(who, whose string, off time.Duration) {
		worst = max(worst, off.Abs())
		switch {
		case off.Abs() > skewFail:
			r.fail(advice, "the clock of %s is %v ahead of that of %s", who, off.Round(time.Millisecond), whose)
		case off.Abs() > skewWarn:
			r.warn(advice, "the clock of %s is %v ahead of that of %s", who, off.Round(time.Millisecond), whose)
		}
	}
	for _, m := range f.counters() {
		if m.Self == nil {
			continue
		}
		for id, s := range m.Self.Offsets {
			if off := time.Duration(s * float64(time.Second)); off > 0 { // the other side says it from below
				judge(id, m.Name(), off)
			}
		}
	}
	// Members that have no stream to each other are compared by way of the clock here.
	for i := range f.Members {
		for j := range f.Members[:i] {
			a, b := &f.Members[i], &f.Members[j]
			if a.Self == nil || b.Self == nil || a.compares(b) || b.compares(a) {
				continue
			}
			if off := a.Ahead - b.Ahead; off.Abs()-a.Within-b.Within > skewWarn {
				judge(a.Name(), b.Name(), off)
			}
		}
	}
	r.quiet("clocks differ by at most %v", worst.Round(time.Millisecond))
}

func (m *MemberReport) compares(other *MemberReport) bool {
	_, ok := m.Self.Offsets[other.Name()]
	return ok
}

func onRing(f *Snapshot, r *report) {
	all := f.seated()
	if rings := groups(all, func(m *MemberReport) string { return m.Cluster.Ring.Fingerprint }); len(rings) > 1 {
		r.fail("wait for a change of the ring to end; if it does not, members do not see each other: look at one cluster, gossip keys and ports",
			"members go by different rings: %s", formatGroups(rings))
	}
	var waiting []string
	for _, m := range all {
		me := m.sees(m.Name())
		switch {
		case me == nil:
		case me.State == "joining":
			r.warn("see its log; a member joins when it has copies of what it is to own, and never above the ring's capacity", "%s is not on the ring yet", m.Name())
		case me.State == "leaving":
			r.warn("it was told to leave; it goes on the ring again when it is restarted", "%s has left the ring", m.Name())
		}
		if m.Metrics.Sum("keyward_ring_incomplete") > 0 {
			waiting = append(waiting, m.Name())
		}
	}
	if len(waiting) > 0 {
		r.warn("counters are on their way, for some seconds; if it lasts, see docs/operating.md#handoff",
			"not all members have taken over what is theirs, as %s hear", strings.Join(waiting, ", "))
	}
	if len(all) > 0 {
		r.quiet("all go by one ring of %s", number(len(all[0].Cluster.Ring.Members), "member"))
	}
}

// capacity holds that all have room on the ring, with the weight that was meant.
func capacity(f *Snapshot, r *report) {
	all := f.counters()
	if c := groups(all, func(m *MemberReport) string { return m.flag("ring-capacity") }); len(c) > 1 {
		r.fail("give all members and xDS servers the same --ring-capacity", "--ring-capacity differs: %s", formatGroups(c))
	}
	total, most, least := 0, uint32(0), ^uint32(0)
	seen := map[string]bool{}
	limit := 0
	for _, m := range all {
		if n, err := strconv.Atoi(m.flag("ring-capacity")); err == nil {
			limit = n
		}
		for _, x := range m.Cluster.Members {
			if x.Role == "member" && !seen[x.ID] {
				seen[x.ID] = true
				total += int(max(1, x.Weight))
				most, least = max(most, x.Weight), min(least, x.Weight)
			}
		}
	}
	if limit > 0 && total > limit-1 {
		r.fail("raise --ring-capacity everywhere (all members and xDS servers, then Envoys' rings change), or lower --weight",
			"the members' weights sum to %d, and a ring of --ring-capacity %d has room for %d: who comes last stays off it", total, limit, limit-1)
	}
	if len(seen) > 1 && most >= 4*max(1, least) {
		r.warn("weights are for machines of different size; leave them out where pods are equal", "weights are from %d to %d: some members count many times what others do", least, most)
	}
	r.quiet("weights sum to %d of %d", total, limit-1)
}

func expected(f *Snapshot, r *report) {
	all := f.seated()
	known := map[string]bool{}
	for _, m := range all {
		for _, x := range m.Cluster.Members {
			if x.Role == "member" {
				known[x.ID] = true
			}
		}
	}
	for expect, names := range groups(all, func(m *MemberReport) string { return m.flag("expect") }) {
		n, err := strconv.Atoi(expect)
		switch who := strings.Join(names, ", "); {
		case err != nil:
		case n == 0 && len(known) > 1:
			r.warn(fmt.Sprintf("set --expect %d: a member then divides limits by that number until it has met the others", len(known)),
				"%s: --expect is not set in a cluster of %d", who, len(known))
		case n > len(known) && len(known) > 0:
			r.warn("start the missing members, or lower --expect: a member divides limits by it until it has met that many, and epsilon always", "%s: --expect %d, and there are %s", who, n, number(len(known), "member"))
		case n > 0 && n < len(known):
			r.warn(fmt.Sprintf("set --expect %d", len(known)), "%s: --expect %d, and there are %s", who, n, number(len(known), "member"))
		}
	}
	r.quiet("there are as many members as are expected")
}

// settings holds that what all must agree about is set alike, and says what members warn of themselves.
func settings(f *Snapshot, r *report) {
	all := f.counters()
	for _, name := range []string{"partition", "lost-state", "nref-decay", "decision-timeout", "rls-plaintext"} {
		if by := groups(all, func(m *MemberReport) string { return m.flag(name) }); len(by) > 1 {
			r.warn("set it alike on all members", "--%s differs: %s", name, formatGroups(by))
		}
	}
	said := map[string][]string{}
	for i := range f.Members {
		if m := &f.Members[i]; m.Self != nil {
			for _, w := range m.Self.Warnings {
				said[w] = append(said[w], m.Name())
			}
		}
	}
	// What has a check of its own is not said twice.
	for w, names := range said {
		if strings.HasPrefix(w, "standalone") || strings.HasPrefix(w, "no --rls-advertise") || strings.Contains(w, "GOMEMLIMIT") {
			continue
		}
		slices.Sort(names)
		r.warn("", "%s: %s", strings.Join(names, ", "), w)
	}
	slices.SortFunc(r.findings[len(r.findings)-r.count():], func(a, b Finding) int { return strings.Compare(a.Text, b.Text) })
	r.quiet("all members are set alike")
}

// count is how many findings the present check has.
func (r *report) count() (n int) {
	for _, f := range r.findings {
		if f.Check == r.check {
			n++
		}
	}
	return n
}

func rules(f *Snapshot, r *report) {
	all := f.counters()
	for _, m := range all {
		if e := m.Cluster.Rules.LastError; e != "" {
			r.fail("mend the file; `keyward check DIR` shows the place; until then the rules from before are in force", "%s could not read its rules: %s", m.Name(), e)
		}
		if v := m.Cluster.Rules.InForce; v == "" || v == f.NoRules {
			r.fail("see that its rules' folder holds files with a domain (RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/config)", "%s has no rules in force", m.Name())
		}
	}
	by := groups(all, func(m *MemberReport) string { return m.Cluster.Rules.InForce })
	if len(by) > 1 {
		r.fail("bring the same files to all members; a ConfigMap takes up to a minute to arrive everywhere", "members go by different rules: %s", formatGroups(by))
	}
	if h := f.Rules; h != nil {
		for hash, names := range by {
			slices.Sort(names)
			switch {
			case h.Err != nil:
			case hash != h.Hash:
				r.warn("bring the files to the members, or see what differs with `keyward check --against`", "%s: version %s in force, the rules in %s are version %s", strings.Join(names, ", "), hash, h.Path, h.Hash)
			}
		}
		if h.Err != nil {
			r.fail("`keyward check` shows the place", "%s: %v", h.Path, h.Err)
		}
	}
	if len(by) == 1 {
		for hash := range by {
			r.quiet("all go by version %s", hash)
		}
	}
}

func versions(f *Snapshot, r *report) {
	all := make([]*MemberReport, len(f.Members))
	for i := range f.Members {
		all[i] = &f.Members[i]
	}
	if by := groups(all, func(m *MemberReport) string { return m.Cluster.Version }); len(by) > 1 {
		r.warn("finish the roll-out: neighbouring versions work together, others need not", "versions differ: %s", formatGroups(by))
		return
	}
	if len(all) > 0 {
		r.ok("all run %s", all[0].Cluster.Version)
	}
}
