package app

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/settings"
)

// gossip is the options of this process's part in the cluster.
func (f *flags) gossip(role membership.Role, inst uint64, getenv settings.Getenv, reg prometheus.Registerer, log *slog.Logger) cluster.Options {
	uid, _ := getenv("POD_UID")
	ip := f.advertised(getenv)
	o := cluster.Options{
		Node: f.Node, BootID: inst, PodUID: uid, Role: role, Weight: f.Weight,
		Bind: f.Gossip, Advertise: ip, Join: f.Join, Cluster: f.Cluster, KeyFile: f.GossipKeyFile, Insecure: f.Insecure,
		Handoff: role == membership.RoleMember, Streams: role == membership.RoleMember,
		Expect: f.Expect, ExpectTimeout: f.ExpectTimeout, Capacity: f.RingCapacity, NRefDecay: f.NRefDecay,
		Page: reachable(f.Metrics, ip), Logger: log, Registerer: reg,
	}
	if role == membership.RoleMember {
		o.RLS, o.Peer, o.Route = reachable(f.RLSAdvertise, ip), reachable(f.Peer, ip), reachable(f.RouteAdvertise, ip)
	}
	return o
}

// advertised is the host told to the others.
func (f *flags) advertised(getenv settings.Getenv) string {
	if f.Advertise != "" {
		return f.Advertise
	}
	ip, _ := getenv("POD_IP")
	return ip
}
