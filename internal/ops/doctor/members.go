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
		r.warn("make its --metrics port reachable from this machine, or name each member with --member; failed processes "+
			"appear as missing below",
			"%s does not respond: %v", name, s.Err)
	}
	for i := range f.Members {
		if m := &f.Members[i]; m.Self == nil {
			r.warn("upgrade it: older versions do not report their clock, keys and certificate", "%s serves no /v1/self",
				m.Name())
		}
	}
	r.quiet("%s queried, all respond", number(len(f.Members), "process"))
}

// ports checks what is reachable from here, and what members report about the connections between them.
func ports(f *Snapshot, r *report) {
	for _, p := range f.Probes {
		if p.Err != nil {
			r.fail(fmt.Sprintf("open %s for the other members: check firewall, NetworkPolicy, Service and --advertise", p.What),
				"%s is not reachable at %s (%s): %v", p.Member, p.Address, p.What, p.Err)
		}
	}
	for _, m := range f.onTheRing() {
		if n := m.Metrics.Sum("keyward_cluster_missing"); n > 0 {
			r.warn("check the addresses in --join, and that 7946 is open in both directions, TCP and UDP",
				"%s knows %.0f addresses that should be members and do not respond", m.Name(), n)
		}
		if n := m.Metrics.Sum("keyward_gossip_health_score"); n >= 3 {
			r.warn("open 7946/UDP between all members, or give the pod more CPU",
				"%s is slow to answer gossip (score %.0f): UDP packets are lost, or it lacks CPU time", m.Name(), n)
		}
	}
	unreachable(f, r)
	r.quiet("%s reachable, streams between all members are up", number(len(f.Probes), "port"))
}

// oneCluster checks that all queried processes see each other.
func oneCluster(f *Snapshot, r *report) {
	all := f.counters()
	if len(all) == 0 {
		r.fail("name a sidecar with --member", "none of the processes that respond is a sidecar")
		return
	}
	if labels := groups(all, func(m *MemberReport) string { return "--cluster " + m.Cluster.Label }); len(labels) > 1 {
		r.fail("set the same --cluster on all members of one cluster", "the members belong to several clusters: %s",
			formatGroups(labels))
	}
	for _, m := range all {
		switch {
		case m.Cluster.Standalone && len(all) > 1:
			r.fail("set --join on every member, with the gossip addresses of the others (KEYWARD_JOIN=dns+NAME:7946)",
				"%s runs standalone next to %s: each admits the complete limit", m.Name(), number(len(all)-1, "other member"))
		case m.Cluster.Standalone:
			r.ok("%s runs standalone: --join is not set, so it must be the only replica", m.Name())
		}
	}
	for _, m := range all {
		var unseen []string
		for _, other := range f.Members {
			expected := other.Cluster.Problem == "" && m.Cluster.Problem == "" && !other.Cluster.Standalone && !m.Cluster.Standalone
			if expected && other.Name() != m.Name() && m.sees(other.Name()) == nil {
				unseen = append(unseen, other.Name())
			}
		}
		if len(unseen) > 0 {
			r.fail("compare --join, --cluster, --gossip-key-file and the gossip ports of both sides", "%s does not see %s",
				m.Name(), strings.Join(unseen, ", "))
		}
	}
	r.quiet("%s see each other", number(len(f.Members), "process"))
}

// sees returns what m reports about a member, or nil.
func (m *MemberReport) sees(id string) *api.MemberStatus {
	for i := range m.Cluster.Members {
		if m.Cluster.Members[i].ID == id {
			return &m.Cluster.Members[i]
		}
	}
	return nil
}

// Tolerances of clocks. The bounds assume at most 250 ms, and a member whose clock steps by a second revokes its
// ownership.
const (
	skewWarn = 250 * time.Millisecond
	skewFail = time.Second
)

func clocks(f *Snapshot, r *report) {
	const advice = "run chrony or ntpd on the nodes: windows end by the owner's clock, and limits are exact to within " +
		"the difference of the clocks"
	worst := time.Duration(0)
	compare := func(member, other string, off time.Duration) {
		worst = max(worst, off.Abs())
		switch {
		case off.Abs() > skewFail:
			r.fail(advice, "the clock of %s is %v ahead of the clock of %s", member, off.Round(time.Millisecond), other)
		case off.Abs() > skewWarn:
			r.warn(advice, "the clock of %s is %v ahead of the clock of %s", member, off.Round(time.Millisecond), other)
		}
	}
	for _, m := range f.counters() {
		if m.Self == nil {
			continue
		}
		for id, s := range m.Self.Offsets {
			if off := time.Duration(s * float64(time.Second)); off > 0 { // the other member reports the negative offset
				compare(id, m.Name(), off)
			}
		}
	}
	// Members without a stream to each other are compared with the local clock.
	for i := range f.Members {
		for j := range f.Members[:i] {
			a, b := &f.Members[i], &f.Members[j]
			if a.Self == nil || b.Self == nil || a.hasOffsetOf(b) || b.hasOffsetOf(a) {
				continue
			}
			if off := a.Ahead - b.Ahead; off.Abs()-a.Within-b.Within > skewWarn {
				compare(a.Name(), b.Name(), off)
			}
		}
	}
	r.quiet("clocks differ by at most %v", worst.Round(time.Millisecond))
}

// hasOffsetOf reports whether m has measured the clock of another member.
func (m *MemberReport) hasOffsetOf(other *MemberReport) bool {
	_, ok := m.Self.Offsets[other.Name()]
	return ok
}

func onRing(f *Snapshot, r *report) {
	all := f.onTheRing()
	if rings := groups(all, func(m *MemberReport) string { return m.Cluster.Ring.Fingerprint }); len(rings) > 1 {
		r.fail("wait until the ring change is complete; if it does not complete, members do not see each other: check one "+
			"cluster, gossip keys and ports",
			"members use different rings: %s", formatGroups(rings))
	}
	for _, m := range all {
		if others := m.Cluster.Ring.Differ; len(others) > 0 {
			r.warn("set --ring, --ring-min-size, --ring-max-size and --ring-hash to the same values on all members; until then "+
				"all use Keyward's own ring, and an Envoy with a ring of yours reaches most owners with a hop",
				"%s is configured for another kind of ring than %s", m.Name(), strings.Join(others, ", "))
			break // the others report the same
		}
	}
	var waiting []string
	for _, m := range all {
		me := m.sees(m.Name())
		switch {
		case me == nil:
		case me.State == "joining":
			r.warn("check its log; a member joins once it has replicas of the keys that it will own, and only within the "+
				"ring's capacity",
				"%s is not on the ring yet", m.Name())
		case me.State == "leaving":
			r.warn("it was asked to leave; it joins again when it is restarted", "%s has left the ring", m.Name())
		}
		if m.Metrics.Sum("keyward_ring_incomplete") > 0 {
			waiting = append(waiting, m.Name())
		}
	}
	if len(waiting) > 0 {
		r.warn("counters are in transfer, which takes some seconds; if it lasts longer, see docs/operating.md#handoff",
			"the handoff is not complete, according to %s", strings.Join(waiting, ", "))
	}
	if len(all) > 0 {
		r.quiet("all members use the same ring (%s)", number(len(all[0].Cluster.Ring.Members), "member"))
	}
}

// capacity checks that all members fit on the ring with their weights.
func capacity(f *Snapshot, r *report) {
	all := f.counters()
	if c := groups(all, func(m *MemberReport) string { return m.flag("ring-capacity") }); len(c) > 1 {
		r.fail("set the same --ring-capacity on all members and xDS servers", "--ring-capacity differs: %s", formatGroups(c))
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
		r.fail("raise --ring-capacity on all members and xDS servers (which changes Envoys' rings), or lower --weight",
			"the members' weights sum to %d, and a ring with --ring-capacity %d has room for %d: the members that come last "+
				"stay off it", total, limit, limit-1)
	}
	if len(seen) > 1 && most >= 4*max(1, least) {
		r.warn("use weights for machines of different size only",
			"weights are from %d to %d: some members own many times as many keys as others", least, most)
	}
	r.quiet("weights sum to %d of %d", total, limit-1)
}

func expected(f *Snapshot, r *report) {
	all := f.onTheRing()
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
			r.warn(fmt.Sprintf("set --expect %d: a member then divides limits by that number until it has found the others",
				len(known)),
				"%s: --expect is not set in a cluster of %d", who, len(known))
		case n > len(known) && len(known) > 0:
			r.warn("start the missing members, or lower --expect: a member divides limits by it until it has found that many "+
				"members, and always divides epsilon by it",
				"%s: --expect is %d, but there are %s", who, n, number(len(known), "member"))
		case n > 0 && n < len(known):
			r.warn(fmt.Sprintf("set --expect %d", len(known)), "%s: --expect is %d, but there are %s", who, n,
				number(len(known), "member"))
		}
	}
	r.quiet("the number of members is as expected")
}

// settings checks that settings are the same on all members where they must be, and collects the members' own warnings.
func settings(f *Snapshot, r *report) {
	all := f.counters()
	for _, name := range []string{
		"partition", "lost-state", "nref-decay", "detection", "snapshot-age", "decision-timeout", "rls-plaintext",
	} {
		if by := groups(all, func(m *MemberReport) string { return m.flag(name) }); len(by) > 1 {
			r.warn("set the same value on all members", "--%s differs: %s", name, formatGroups(by))
		}
	}
	warnings := map[string][]string{}
	for i := range f.Members {
		if m := &f.Members[i]; m.Self != nil {
			for _, w := range m.Self.Warnings {
				warnings[w] = append(warnings[w], m.Name())
			}
		}
	}
	// Skip the warnings that have their own check.
	for w, names := range warnings {
		if strings.HasPrefix(w, "standalone") || strings.HasPrefix(w, "no --rls-advertise") ||
			strings.Contains(w, "GOMEMLIMIT") {
			continue
		}
		slices.Sort(names)
		r.warn("", "%s: %s", strings.Join(names, ", "), w)
	}
	slices.SortFunc(r.findings[len(r.findings)-r.count():],
		func(a, b Finding) int { return strings.Compare(a.Text, b.Text) })
	r.quiet("all members have the same settings")
}

// count returns how many findings the current check has.
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
			r.fail("fix the file; `keyward check DIR` shows the position; until then the previous rules stay in force",
				"%s cannot load its rules: %s", m.Name(), e)
		}
		if v := m.Cluster.Rules.InForce; v == "" || v == f.NoRules {
			r.fail("put files with a domain into its rules folder (RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/config)",
				"%s has no rules in force", m.Name())
		}
	}
	by := groups(all, func(m *MemberReport) string { return m.Cluster.Rules.InForce })
	if len(by) > 1 {
		r.fail("deploy the same files to all members; a ConfigMap takes up to a minute to reach all pods",
			"members use different rules: %s", formatGroups(by))
	}
	if h := f.Rules; h != nil {
		for hash, names := range by {
			slices.Sort(names)
			switch {
			case h.Err != nil:
			case hash != h.Hash:
				r.warn("deploy the files to the members, or compare them with `keyward check --against`",
					"%s: version %s is in force, but the rules in %s are version %s", strings.Join(names, ", "), hash, h.Path, h.Hash)
			}
		}
		if h.Err != nil {
			r.fail("`keyward check` shows the position", "%s: %v", h.Path, h.Err)
		}
	}
	if len(by) == 1 {
		for hash := range by {
			r.quiet("all members use version %s", hash)
		}
	}
}

func versions(f *Snapshot, r *report) {
	all := make([]*MemberReport, len(f.Members))
	for i := range f.Members {
		all[i] = &f.Members[i]
	}
	if by := groups(all, func(m *MemberReport) string { return m.Cluster.Version }); len(by) > 1 {
		r.warn("finish the rollout: only consecutive versions are guaranteed to work together", "versions differ: %s",
			formatGroups(by))
		return
	}
	if len(all) > 0 {
		r.ok("all run %s", all[0].Cluster.Version)
	}
}
