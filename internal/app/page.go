package app

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

func hex(h uint64) string {
	if h == 0 {
		return ""
	}
	return source.Hex(h)
}

// clusterStatus returns the document of /cluster.
func clusterStatus(label string, v *membership.View, rules source.VersionsStatus) api.ClusterStatus {
	me := v.SelfMember()
	c := api.ClusterStatus{
		Self: string(v.Self), Inst: hex(me.BootID), Label: label, Version: Version, Joined: v.Joined, Problem: v.Problem, Cause: string(v.Cause), Standalone: v.Standalone, NRef: v.NRef,
		Ring:  api.RingStatus{Fingerprint: hex(v.Ring.Fingerprint()), Members: []string{}, Disagreement: v.DifferingRings()},
		Rules: rulesStatus(rules),
	}
	if p := v.Ring.Parameters(); p.Envoy {
		c.Ring.Parameters = p.String()
	}
	for _, id := range v.OtherRingParameters() {
		c.Ring.Differ = append(c.Ring.Differ, string(id))
	}
	for i := range v.Ring.Len() {
		c.Ring.Members = append(c.Ring.Members, string(v.Ring.At(i).ID))
	}
	for _, m := range v.Members {
		a := api.MemberStatus{
			ID: string(m.ID), Inst: hex(m.BootID), State: m.State.String(), Role: m.Role.String(), Weight: m.Weight,
			RingHost: m.RingHost, Zone: m.Zone,
			Gossip: m.Gossip, Peer: m.Peer, RLS: m.RLS, Route: m.Route, Page: m.Page, Ring: hex(m.Ring), Complete: hex(m.CompleteRing),
			Protocol: fmt.Sprintf("%d-%d", m.ProtocolMin, m.ProtocolMax),
		}
		if m.Detection != 0 {
			a.Detection = m.Detection.String()
		}
		a.Rules.InForce, a.Rules.Prepared = hex(m.InForce), hex(m.Prepared)
		c.Members = append(c.Members, a)
	}
	return c
}

func rulesStatus(s source.VersionsStatus) api.RulesStatus {
	r := api.RulesStatus{InForce: hex(s.InForce), Prepared: hex(s.Prepared), Disagreement: len(s.Disagreeing), LastError: s.Failure, Versions: []api.RulesVersion{}}
	for _, v := range s.Versions {
		r.Versions = append(r.Versions, api.RulesVersion{
			Hash: hex(v.Hash), Source: v.Source + " " + v.Detail, State: v.State, Reason: v.Reason, Prepared: v.Loaded, InForce: v.Since, Until: v.Until,
		})
	}
	return r
}

// startPage starts to serve the admin endpoints.
func (m *sidecar) startPage() error {
	o := admin.Options{
		Gatherer: m.reg, MetricsPath: m.Settings.Stats.PrometheusPath, Cluster: m.clusterStatus, Ready: m.ready,
		Counters: m.counterStatus, Explain: m.explanation, Self: m.selfStatus, HotKeys: m.hotKeys, Leases: m.heldLeases,
		RingMap: m.ringMap, RuleTree: m.ruleTree, Timeline: m.timeline.Events, Escrows: m.escrows, Budgets: m.budgets,
		Quotas: m.quotaStatus, Modules: m.moduleStatus,
	}
	page, err := servePage(m.pageAddrs(), o, m.security)
	m.page = page
	return err
}

// pageAddrs returns --metrics and the address of PROMETHEUS_ADDR, if that is set.
func (m *sidecar) pageAddrs() []string {
	addrs := []string{m.Flags.Metrics}
	if p := m.Settings.Stats.PrometheusAddr; m.Settings.Set("PROMETHEUS_ADDR") && p != m.Flags.Metrics {
		addrs = append(addrs, p)
	}
	return addrs
}

func (m *sidecar) clusterStatus() api.ClusterStatus {
	gossip := m.cluster.Load()
	if gossip == nil {
		return api.ClusterStatus{Self: m.Flags.Node}
	}
	c := clusterStatus(m.Flags.Cluster, gossip.View(), m.versions.Status())
	c.Unreachable = m.unreachable(time.Now())
	if m.xds != nil {
		c.XDS = m.xds.status()
	}
	return c
}

func (m *sidecar) ringMap() api.RingMap {
	if gossip := m.cluster.Load(); gossip != nil {
		return m.ringMaps.get(gossip.View())
	}
	return m.ringMaps.get(&membership.View{Ring: &ring.Ring{}})
}

// ringMapCache caches the RingMap of the last ring, which takes a walk over all of its points.
type ringMapCache struct {
	mu   sync.Mutex
	ring *ring.Ring
	last api.RingMap
}

// get returns the RingMap of v's ring with the members' states in v.
func (d *ringMapCache) get(v *membership.View) api.RingMap {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ring != v.Ring {
		d.ring, d.last = v.Ring, admin.NewRingMap(v.Ring, hex(v.Ring.Fingerprint()))
	}
	out := d.last
	out.Members = slices.Clone(d.last.Members)
	for i := range out.Members {
		out.Members[i].State = "lost" // the ring still has it; gossip does not
		if m, ok := v.Find(ring.ID(out.Members[i].ID)); ok {
			out.Members[i].State = m.State.String()
		}
	}
	return out
}

func (m *sidecar) ruleTree() api.RuleTree {
	t := admin.NewRuleTree(rulesStatus(m.versions.Status()), m.service.Rules(), func(r *config.RuleSpec) *api.RuleTotals {
		if r.DetailedMetric || r.ValueToMetric {
			return nil // they are kept for each value
		}
		s := m.stats.Rule(r.FullKey)
		return &api.RuleTotals{TotalHits: s.TotalHits.Value(), OverLimit: s.OverLimit.Value(), NearLimit: s.NearLimit.Value(), Shadowed: s.ShadowMode.Value()}
	})
	t.Requests = m.calls()
	return t
}

func (m *sidecar) ready() error {
	parts := m.health.Failing()
	if len(parts) == 0 {
		return nil
	}
	for i, p := range parts {
		if why := m.failureOf(p); why != "" {
			parts[i] = p + " (" + why + ")"
		}
	}
	return fmt.Errorf("not ready: %s", strings.Join(parts, ", "))
}

// failureOf returns why a part is not healthy, or "" if that is unknown.
func (m *sidecar) failureOf(part string) string {
	c := m.cluster.Load()
	switch {
	case part == partCluster && c != nil:
		return c.View().Problem
	case part == partRules:
		return m.versions.Status().Failure
	}
	return ""
}

// servePage starts to serve the admin endpoints at all addresses, or none if one cannot be listened on.
func servePage(addrs []string, o admin.Options, s *security) (*http.Server, error) {
	gate := s.guards.Guard("metrics")
	o.Refuse, o.Hosts = gate.Refuse, s.flags.hosts()
	srv := admin.Server(o)
	return srv, listenPage(srv, addrs, s)
}

// listenPage serves srv at the addresses.
func listenPage(srv *http.Server, addrs []string, s *security) error {
	const most = 256 // connections
	log, gate := s.log, s.guards.Guard("metrics")
	gate.Watch(srv)
	var open []net.Listener
	var errs []error
	for _, a := range addrs {
		ln, err := net.Listen("tcp", a)
		if err != nil {
			errs = append(errs, fmt.Errorf("listen for metrics: %w", err))
			continue
		}
		open = append(open, ln)
	}
	if err := errors.Join(errs...); err != nil {
		for _, ln := range open {
			ln.Close()
		}
		return err
	}
	for _, ln := range open {
		log.Info("listening", "listener", "metrics", "address", ln.Addr().String())
		go func() {
			if err := srv.Serve(gate.Listen(ln, most)); !errors.Is(err, http.ErrServerClosed) {
				log.Error("listener failed", "listener", "metrics", "error", err)
			}
		}()
	}
	return nil
}
