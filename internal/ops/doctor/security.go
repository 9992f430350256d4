package doctor

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// gossipKeys checks that members can decrypt each other's gossip, and that a key rotation is complete.
func gossipKeys(f *Snapshot, r *report) {
	strangers(f, r)
	var all []*MemberReport
	for i := range f.Members {
		if m := &f.Members[i]; m.Self != nil && !m.Cluster.Standalone {
			all = append(all, m)
		}
	}
	keys := func(m *MemberReport) string {
		if len(m.Self.GossipBy) == 0 {
			return "none"
		}
		return strings.Join(m.Self.GossipBy, " ")
	}
	by := groups(all, keys)
	for i, a := range all {
		for _, b := range all[:i] {
			if len(a.Self.GossipBy) == 0 != (len(b.Self.GossipBy) == 0) || len(a.Self.GossipBy) > 0 && !reads(a, b) {
				r.fail("use the same --gossip-key-file on all members; keys are shown as the first 8 hex digits of their SHA-256",
					"%s and %s cannot read each other's gossip: %s", b.Name(), a.Name(), formatGroups(by))
				return
			}
		}
	}
	switch {
	case len(by) > 1:
		r.warn("finish the rotation: first add the new key as the second line everywhere, then move it to the first, then "+
			"remove the old one",
			"the gossip key files differ: %s", formatGroups(by))
	case len(all) > 0 && len(all[0].Self.GossipBy) == 0 && far(all):
		r.fail("set --gossip-key-file on all members: without it, anyone who can reach 7946 can join",
			"gossip between machines is not encrypted (--insecure)")
	case len(all) > 0 && len(all[0].Self.GossipBy) == 0:
		r.quiet("gossip is not encrypted, and stays on one machine")
	case len(all) > 0:
		r.quiet("all members have %s", number(len(all[0].Self.GossipBy), "gossip key"))
	default:
		r.quiet("no gossip")
	}
}

// reads reports whether each of two members has the key that the other encrypts with.
func reads(a, b *MemberReport) bool {
	return slices.Contains(a.Self.GossipBy, b.Self.GossipBy[0]) && slices.Contains(b.Self.GossipBy, a.Self.GossipBy[0])
}

// far reports whether a member has an address that is not a loopback address.
func far(all []*MemberReport) bool {
	return slices.ContainsFunc(all, func(m *MemberReport) bool {
		host, _, err := net.SplitHostPort(m.Self.Addrs.Gossip)
		ip := net.ParseIP(host)
		return err == nil && ip != nil && !ip.IsLoopback()
	})
}

// soon is how long before its expiry a certificate causes a warning.
const soon = 7 * 24 * time.Hour

func certificates(f *Snapshot, r *report) {
	var with []*MemberReport
	var without []string
	for i := range f.Members {
		switch m := &f.Members[i]; {
		case m.Self == nil:
		case m.Self.Cert != nil:
			with = append(with, m)
		default:
			without = append(without, m.Name())
		}
	}
	if len(with) > 0 && len(without) > 0 {
		r.fail("set --tls-cert, --tls-key and --tls-ca on all members: members with and without TLS cannot connect to each "+
			"other",
			"no certificate: %s", strings.Join(without, ", "))
	}
	for _, m := range with {
		c := m.Self.Cert
		if c.Problem != "" {
			r.fail(fmt.Sprintf("issue a new one with the CA in %s, or put the CA that signed it there", c.Files["ca"]),
				"%s: its certificate is not valid for its CA: %s", m.Name(), c.Problem)
		}
		ends(r, f.Now, m.Name()+": its certificate ("+c.Files["cert"]+")", c.NotAfter)
		ends(r, f.Now, m.Name()+": a CA of "+c.Files["ca"], c.CANotAfter)
	}
	trust(r, with)
	if len(with) > 0 {
		r.quiet("%s, the first expires on %s", number(len(with), "certificate"), first(with).Format(time.DateOnly))
	}
	r.quiet("no TLS between members")
}

func ends(r *report, now time.Time, what string, end time.Time) {
	const advice = "renew it: members reload the files when they change, without a restart"
	switch {
	case end.IsZero():
	case end.Before(now):
		r.fail(advice, "%s expired on %s", what, end.Format(time.DateTime))
	case end.Before(now.Add(soon)):
		r.warn(advice, "%s expires in %v, on %s", what, end.Sub(now).Round(time.Minute), end.Format(time.DateTime))
	}
}

// trust checks that members accept each other's certificates: they need a common CA and an accepted name.
func trust(r *report, with []*MemberReport) {
	for i, a := range with {
		for _, b := range with[:i] {
			if x, y := a.Self.Cert, b.Self.Cert; len(x.CA) > 0 && len(y.CA) > 0 && !overlap(x.CA, y.CA) {
				r.fail("use the same --tls-ca on all members; to change the CA, keep both in the file until every certificate is "+
					"issued by the new one",
					"members trust different CAs: %s", formatGroups(groups(with, caOf)))
				return
			}
		}
	}
	for _, from := range with {
		var by []string
		var names []string
		for _, to := range with {
			if to == from || from.observer() || to.observer() {
				continue // observers have no streams
			}
			if n := to.Self.Cert.PeerNames; len(n) > 0 && !overlap(from.Self.Cert.Names, n) {
				by, names = append(by, to.Name()), n
			}
		}
		if len(by) > 0 {
			r.fail("issue a certificate with the members' name for it; adding its name to --tls-peer-names would accept every "+
				"process with that name as a member, such as an Envoy",
				"%s, whose certificate has the name %s, is refused by %s: the accepted names are %s",
				from.Name(), strings.Join(from.Self.Cert.Names, ", "), strings.Join(by, ", "), strings.Join(names, ", "))
		}
	}
}

// caOf returns the fingerprints of the CAs that a member trusts.
func caOf(m *MemberReport) string { return strings.Join(m.Self.Cert.CA, " ") }

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

func first(with []*MemberReport) time.Time {
	end := with[0].Self.Cert.NotAfter
	for _, m := range with {
		if t := m.Self.Cert.NotAfter; t.Before(end) {
			end = t
		}
	}
	return end
}
