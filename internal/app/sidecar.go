package app

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/internal/settings"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/internal/trace"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// The parts that must be well before Envoy may ask.
const (
	partRunning = "running" // no SIGTERM yet
	partCluster = "cluster" // joined, on the ring and in possession of its keys
	partRules   = "rules"   // not all that was read is faulty; with HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED a domain is loaded
)

// A door that does not wait asks a Decider that lets it.
var _ rls.AsyncDecider = (*peer.Peer)(nil)

// sidecar is one running member.
type sidecar struct {
	flags    flags
	settings settings.Settings
	getenv   settings.Getenv
	log      *slog.Logger
	reg      *prometheus.Registry
	security *security

	bootID   uint64 // this boot
	started  time.Time
	stats    *stats.Store
	node     *owner.Node
	peer     *peer.Peer
	service  *rls.Service
	health   *rls.HealthServer
	versions *source.Versions
	cluster  atomic.Pointer[cluster.Cluster] // nil before gossip has started
	xds      *xdsServer                      // nil without --xds
	server   *rls.Server
	page     *http.Server
	socket   *http.Server // nil: none

	manual     manualRoutes
	drain      *drain
	progress   progress
	timeline   timeline
	ringMaps   ringMapCache
	incomplete prometheus.Counter
	ended      chan struct{} // closed when the process is about to end

	background context.CancelFunc // ends the rules' source
	statsd     *stats.Statsd      // nil: none
	tracer     *trace.CallTracer  // nil: none
}

// RunSidecar runs one member until ctx ends or it cannot live on, then leaves in order.
func RunSidecar(ctx context.Context, f flags, s settings.Settings, getenv settings.Getenv, log *slog.Logger) error {
	m := &sidecar{flags: f, settings: s, getenv: getenv, log: log, reg: newRegistry(), started: time.Now(), drain: newDrain(), ended: make(chan struct{})}
	m.incomplete = promauto.With(m.reg).NewCounter(prometheus.CounterOpts{
		Name: "keyward_drains_incomplete_total", Help: "Times this member left before others had all of its counters.",
	})
	m.security = newSecurity(&m.flags, rlsCertFiles(s.Server), m.reg, log)
	for _, w := range s.Warnings() {
		log.Warn(w)
	}
	if err := m.start(); err != nil {
		m.stop(context.Background())
		return err
	}
	select {
	case <-ctx.Done():
		log.Info("leaving")
		m.leave()
		return nil
	case err := <-m.cluster.Load().Fatal():
		bounded, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		m.stop(bounded)
		return err
	}
}

func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "keyward_build_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": Version}})
	build.Set(1)
	reg.MustRegister(build)
	return reg
}

// start brings the parts up, the innermost first: a part that is told something has everything it needs.
func (m *sidecar) start() error {
	if m.flags.Insecure {
		m.log.Warn("insecure: no gossip key and no TLS between members are asked for; on a laptop only")
	}
	background, cancel := context.WithCancel(context.Background())
	m.background = cancel
	m.stats = stats.New(stats.Options{Registerer: m.reg})
	if err := m.startCounting(); err != nil {
		return err
	}
	if err := m.startTracing(); err != nil {
		return err
	}
	m.startService()
	if err := m.startPage(); err != nil {
		return err
	}
	if m.flags.XDS != "" {
		names, err := m.flags.peerNames()
		if err != nil {
			return err
		}
		x, err := startXDS(m.flags.XDS, names, m.security, m.reg)
		if err != nil {
			return err
		}
		m.xds = x
	}
	if err := m.startCluster(); err != nil {
		return err
	}
	go m.plan(background)
	go newMemoryTuner().run(background)
	if err := m.startRules(background); err != nil {
		return err
	}
	if err := m.startStats(); err != nil {
		return err
	}
	if err := m.startListeners(); err != nil {
		return err
	}
	return m.startSocket()
}

// startCounting makes the counters and listens for other members. They tell from now on whether this one is ready.
func (m *sidecar) startCounting() error {
	m.health = rls.NewHealthServer(partRunning, partCluster, partRules)
	m.health.Set(partRules, !m.settings.Behavior.HealthyWithRulesOnly)
	var seed [24]byte
	_, _ = rand.Read(seed[:])                                                 // never fails
	m.bootID = binary.LittleEndian.Uint64(seed[16:]) | 3                      // odd, and above 1
	shared := sha256.Sum256([]byte("keyward overflow of " + m.flags.Cluster)) // what sketches count moves between members
	o := owner.Options{
		Self: ring.ID(m.flags.Node), BootID: m.bootID, MaxKeys: m.flags.MaxKeys, DomainQuota: m.flags.DomainQuota,
		Policy: policies()[m.flags.Partition], ProRata: m.flags.LostState == "prorata",
		Seed:       [2]uint64{binary.LittleEndian.Uint64(seed[:]), binary.LittleEndian.Uint64(seed[8:])},
		SketchSeed: [2]uint64{binary.LittleEndian.Uint64(shared[:]), binary.LittleEndian.Uint64(shared[8:])},
		HotRate:    m.flags.HotRate, NoHot: m.flags.NoHot,
	}
	// The original keeps refused keys in a cache of this many bytes; an entry here takes about 64.
	if b := m.settings.Behavior.LocalCacheBytes; b > 0 {
		o.DenyCache = max(1, b/64)
	}
	m.node = owner.New(o)
	po := peer.Options{
		Node: m.node, Self: ring.ID(m.flags.Node), BootID: m.bootID, Cluster: m.flags.Cluster,
		OnProgress: m.onProgress, OnLinksChanged: m.onLinks, Logger: m.log, Registerer: m.reg,
	}
	err := m.security.peer(&po)
	if err != nil {
		return err
	}
	if len(m.flags.Join) > 0 {
		po.Listen = m.flags.Peer
	}
	if m.peer, err = peer.New(po); err != nil {
		return err
	}
	m.reg.MustRegister(admin.NewCollector(m.peer.Stats), newTables(&m.flags))
	return nil
}

func (m *sidecar) startService() {
	b := m.settings.Behavior
	o := rls.Options{
		Decider: m.peer, Name: m.node.Name, Stats: m.stats, Registerer: m.reg,
		NearLimitRatio: b.NearLimitRatio, Stop: b.StopWhenOver, DecisionTimeout: m.flags.DecisionTimeout,
	}
	if m.tracer != nil {
		o.Tracer = m.tracer
	}
	if m.flags.LogDenials > 0 && m.log.Enabled(context.Background(), slog.LevelInfo) {
		o.Denials, o.DenialRate = m.logDenial, m.flags.LogDenials
	}
	m.service = rls.New(o)
	m.versions = source.NewVersions(source.VersionsOptions{
		Self: m.flags.Node, OnSwitch: m.applyRules, Registerer: m.reg, Logger: m.log,
		Announce: func(inForce, prepared uint64) {
			m.cluster.Load().SetRules(inForce, prepared) // rules are read only after gossip has started
		},
	})
}

// applyRules puts a version in force in the service, with the switches as they stand now.
func (m *sidecar) applyRules(r *config.Rules) {
	m.timeline.addRules(time.Now(), r)
	sw, err := settings.ReadReloadable(m.getenv)
	if err != nil {
		m.log.Error("switches not read, defaults are in force", "error", err)
	}
	m.service.SetRules(r, rls.Switches{
		Shadow: sw.Shadow, Quota: sw.Quota, DynamicMetadata: sw.DynamicMetadata,
		Headers: sw.Headers, LimitHeader: sw.LimitHeader, RemainingHeader: sw.RemainingHeader, ResetHeader: sw.ResetHeader,
	})
	m.health.Set(partRules, !m.settings.Behavior.HealthyWithRulesOnly || !r.Empty())
}

func (m *sidecar) startCluster() error {
	o := m.flags.gossip(membership.RoleMember, m.bootID, m.getenv, m.reg, m.log)
	o.OnRefused = m.security.gates.Guard("gossip").Refuse
	o.OnView, o.OnRoutes = m.onView, m.onRoutes
	c, err := cluster.Start(o)
	if err != nil {
		return err
	}
	m.cluster.Store(c)
	m.publishProgress()
	m.onLinks()
	m.log.Info("member", "node", m.flags.Node, "gossip", c.Gossip(), "label", m.flags.Cluster)
	return nil
}

// onView tells every part of a changed cluster: first who counts what, then Envoy.
func (m *sidecar) onView(v *membership.View) {
	m.peer.SetView(v)
	m.refreshManual(v.Ring)
	m.setOnRing(v.Joined && v.SelfMember().State != membership.Joining)
	m.versions.SetMembers(memberRules(v))
	if m.xds != nil {
		m.xds.setView(v)
	}
	m.timeline.addView(time.Now(), v)
}

// updateRulesHealth has this member be not ready while all that it has read of its rules is faulty: it would answer every question with an error. Faults in later
// versions change nothing, for the version before stays in force.
func (m *sidecar) updateRulesHealth(e source.LoadResult) {
	switch {
	case m.settings.Behavior.HealthyWithRulesOnly: // applyRules judges
	case e.Err == nil:
		m.health.Set(partRules, true)
	case m.versions.Current() == nil:
		m.health.Set(partRules, false)
	}
}

// startRules reads the rules once before the doors open, and again whenever they change.
func (m *sidecar) startRules(ctx context.Context) error {
	offer := func(e source.LoadResult) {
		m.service.CountLoad(e.Err)
		m.timeline.addLoad(time.Now(), e)
		m.updateRulesHealth(e)
		if e.Err == nil && m.xds != nil {
			// At once, not when they come into force: members that take their rules from here must be able to prepare them.
			m.xds.setRules(e.Rules)
		}
		m.versions.Offer(e)
	}
	if err := watchRules(ctx, m.settings.Config, m.ruleOptions, m.log, offer); err != nil {
		return err
	}
	if m.settings.Config.StartWithoutRules {
		return nil
	}
	first := time.NewTimer(30 * time.Second)
	defer first.Stop()
	select {
	case <-m.versions.Read():
	case <-first.C:
		m.log.Warn("no rules yet: questions are answered with an error until there are")
	}
	return nil
}

// ruleOptions are read anew for each load.
func (m *sidecar) ruleOptions() config.Options {
	sw, _ := settings.ReadReloadable(m.getenv) // a fault is said when the rules come into force
	return config.Options{
		MergeDomains: sw.MergeDomains, KeyPrefix: m.settings.Behavior.KeyPrefix, Cluster: m.flags.Cluster, Members: m.flags.Expect,
		Lenient: sw.Shadow || sw.Quota,
	}
}

// startListeners opens the RLS: on the pod's own address, for Envoys of other pods, and as JSON.
func (m *sidecar) startListeners() error {
	s := m.settings.Server
	o := rls.StartOptions{
		Service: m.service, Health: m.health, Logger: m.log,
		HTTP: join(s.Host, s.Port), Debug: join(s.DebugHost, s.DebugPort),
		ConnectionAge: s.MaxConnectionAge, ConnectionAgeGrace: s.MaxConnectionGrace,
		Guards: m.security.gates, MaxConn: m.flags.MaxConnections, Refunds: m.flags.NegativeHits, Hosts: m.flags.hosts(),
	}
	grpcGo := rlsServers()[m.flags.RLSServer]
	own := rls.Listener{GRPCGo: grpcGo, Address: join(s.GRPCHost, s.GRPCPort)}
	if s.GRPCSocket != "" {
		own = rls.Listener{GRPCGo: grpcGo, Address: s.GRPCSocket, Unix: true}
	}
	var err error
	if own.TLS, err = m.security.rlsTLS(s); err != nil {
		return err
	}
	o.Listeners = append(o.Listeners, own)
	if m.flags.RLSAdvertise != "" && m.flags.RLSAdvertise != own.Address {
		d := rls.Listener{GRPCGo: grpcGo, Address: m.flags.RLSAdvertise, NoHealth: true, Name: "rls_direct", MaxAge: m.flags.ConnectionAge}
		if !m.flags.RLSPlaintext {
			if d.TLS, err = m.security.envoyTLS(); err != nil {
				return err
			}
		}
		o.Listeners = append(o.Listeners, d)
	}
	if m.server, err = rls.Start(o); err != nil {
		return err
	}
	m.health.Set(partRunning, true)
	return nil
}

func join(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// stop closes everything, the outermost first.
func (m *sidecar) stop(ctx context.Context) {
	close(m.ended)
	if m.health != nil {
		m.health.Set(partRunning, false)
	}
	if c := m.cluster.Load(); c != nil {
		c.Leave(ctx)
	}
	if m.server != nil {
		m.server.Stop(ctx)
	}
	if m.xds != nil {
		m.xds.stop()
	}
	if m.peer != nil {
		d := m.peer.Stats().Decided
		m.log.Info("done counting", "full", d[owner.Full], "part", d[owner.Part], "share", d[owner.Share], "open", d[owner.Open],
			"closed", d[owner.Closed], "overflow", d[owner.Overflow], "cached", d[owner.Cached], "shed", d[owner.Shed])
		if err := m.peer.Close(); err != nil {
			m.log.Warn("closing the peers' port", "error", err)
		}
	}
	if m.versions != nil {
		m.versions.Close()
	}
	if m.background != nil {
		m.background()
	}
	if m.statsd != nil {
		m.statsd.Close() // flushes
	}
	m.stopTracing()
	for _, s := range []*http.Server{m.page, m.socket} {
		if s != nil {
			_ = s.Close() // whoever reads now is cut off on purpose
		}
	}
}
