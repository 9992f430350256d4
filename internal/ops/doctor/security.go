package doctor

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// gossipKeys holds that members can read each other, and that a rotation does not stop half-way.
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
				r.fail("bring one file of --gossip-key-file to all members; its fingerprints are shown as the first 8 hex digits of SHA-256",
					"%s and %s cannot read each other's gossip: %s", b.Name(), a.Name(), formatGroups(by))
				return
			}
		}
	}
	switch {
	case len(by) > 1:
		r.warn("finish the rotation: the new key as second line everywhere, then as first, then without the old one", "the files of gossip keys differ: %s", formatGroups(by))
	case len(all) > 0 && len(all[0].Self.GossipBy) == 0 && far(all):
		r.fail("give all members --gossip-key-file: without it anyone who reaches 7946 can join", "gossip between machines has no key (--insecure)")
	case len(all) > 0 && len(all[0].Self.GossipBy) == 0:
		r.quiet("gossip has no key, on one machine")
	case len(all) > 0:
		r.quiet("all have %s", number(len(all[0].Self.GossipBy), "gossip key"))
	default:
		r.quiet("no gossip")
	}
}

// reads says that each of two members has the key that the other encrypts with.
func reads(a, b *MemberReport) bool {
	return slices.Contains(a.Self.GossipBy, b.Self.GossipBy[0]) && slices.Contains(b.Self.GossipBy, a.Self.GossipBy[0])
}

// far says that a member is reached at another address than this machine's own.
func far(all []*MemberReport) bool {
	return slices.ContainsFunc(all, func(m *MemberReport) bool {
		host, _, err := net.SplitHostPort(m.Self.Addrs.Gossip)
		ip := net.ParseIP(host)
		return err == nil && ip != nil && !ip.IsLoopback()
	})
}

// soon is how long before its end a certificate is told of.
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
		r.fail("give all of them --tls-cert, --tls-key and --tls-ca: members with and without TLS cannot ask each other", "no certificate: %s", strings.Join(without, ", "))
	}
	for _, m := range with {
		c := m.Self.Cert
		if c.Problem != "" {
			r.fail(fmt.Sprintf("issue it anew by the CA in %s, or bring the CA that signed it there", c.Files["ca"]), "%s: its certificate and CA do not go together: %s", m.Name(), c.Problem)
		}
		ends(r, f.Now, m.Name()+": its certificate ("+c.Files["cert"]+")", c.NotAfter)
		ends(r, f.Now, m.Name()+": a CA of "+c.Files["ca"], c.CANotAfter)
	}
	trust(r, with)
	if len(with) > 0 {
		r.quiet("%s, the first to end on %s", number(len(with), "certificate"), first(with).Format(time.DateOnly))
	}
	r.quiet("no TLS between members")
}

func ends(r *report, now time.Time, what string, end time.Time) {
	const advice = "renew it: the files are read again when they change, nothing has to be restarted"
	switch {
	case end.IsZero():
	case end.Before(now):
		r.fail(advice, "%s has ended on %s", what, end.Format(time.DateTime))
	case end.Before(now.Add(soon)):
		r.warn(advice, "%s ends in %v, on %s", what, end.Sub(now).Round(time.Minute), end.Format(time.DateTime))
	}
}

// trust holds that members take each other's certificates: a CA in common, and a name that the others let in.
func trust(r *report, with []*MemberReport) {
	for i, a := range with {
		for _, b := range with[:i] {
			if x, y := a.Self.Cert, b.Self.Cert; len(x.CA) > 0 && len(y.CA) > 0 && !meet(x.CA, y.CA) {
				r.fail("give all members the same --tls-ca; to change it, have both CAs in the file until every certificate is of the new one",
					"members trust different CAs: %s", formatGroups(groups(with, func(m *MemberReport) string { return strings.Join(m.Self.Cert.CA, " ") })))
				return
			}
		}
	}
	for _, from := range with {
		var by []string
		var names []string
		for _, to := range with {
			if to == from || from.observer() || to.observer() {
				continue // an observer asks no member, and none asks it
			}
			if n := to.Self.Cert.PeerNames; len(n) > 0 && !meet(from.Self.Cert.Names, n) {
				by, names = append(by, to.Name()), n
			}
		}
		if len(by) > 0 {
			r.fail("issue it a certificate with the members' name; --tls-peer-names would admit everybody who carries the other name, an Envoy, too, as a member",
				"%s, whose certificate names %s, is refused by %s: members are %s", from.Name(), strings.Join(from.Self.Cert.Names, ", "), strings.Join(by, ", "), strings.Join(names, ", "))
		}
	}
}

func meet(a, b []string) bool {
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
