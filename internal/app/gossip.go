package app

import (
	"strings"

	"github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/settings"
)

// gossip returns the options of cluster.Start that the flags determine.
func (f *flags) gossip(role membership.Role, getenv settings.Getenv) cluster.Options {
	uid, _ := getenv("POD_UID")
	ip := f.advertised(getenv)
	o := cluster.Options{
		Node: f.Node, PodUID: uid, Role: role, Weight: f.Weight,
		Bind: f.Gossip, Advertise: ip, Join: f.Join, Cluster: f.Cluster, KeyFile: f.GossipKeyFile, Insecure: f.Insecure,
		Handoff: role == membership.RoleMember, Streams: role == membership.RoleMember,
		Expect: f.Expect, ExpectTimeout: f.ExpectTimeout, Capacity: f.RingCapacity, NRefDecay: f.NRefDecay,
		Detection: membership.Detection(f.Detection),
		Page:      reachable(f.Metrics, ip),
	}
	if role == membership.RoleMember {
		o.Ring, o.Zone = f.parameters(), f.Zone
		if o.RingHost = f.Host; strings.HasPrefix(f.Host, ":") {
			o.RingHost = reachable(f.Host, ip)
		}
		o.RLS, o.Peer, o.Route = reachable(f.RLSAdvertise, ip), reachable(f.Peer, ip), reachable(f.RouteAdvertise, ip)
	}
	return o
}

// advertised returns the host that other members use.
func (f *flags) advertised(getenv settings.Getenv) string {
	if f.Advertise != "" {
		return f.Advertise
	}
	ip, _ := getenv("POD_IP")
	return ip
}
