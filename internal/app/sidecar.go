package app

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/envoy/holds"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/audit"
	"github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/settings"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/internal/trace"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// The parts that must be healthy before the member is ready.
const (
	partRunning = "running" // started, and not shutting down
	partCluster = "cluster" // joined, on the ring, and with the counters of its keys
	partRules   = "rules"   // a version is in force; with HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED one that has a domain
)

// The inline server needs a Decider that does not block.
var _ rls.AsyncDecider = (*peer.Peer)(nil)

// sidecar is one running member.
type sidecar struct {
	Setup
	reg      *prometheus.Registry
	security *security

	bootID   uint64 // of this process
	started  time.Time
	stats    *stats.StatStore
	node     *owner.Node
	peer     *peer.Peer
	service  *rls.Service
	callers  atomic.Pointer[rls.Service] // service, for other members; nil: not started
	health   *rls.HealthServer
	versions *source.Versions
	cluster  atomic.Pointer[cluster.Cluster] // nil before gossip has started
	xds      *xdsServer                      // nil without --xds
	server   *rls.Server
	holds    *holds.HoldServer
	quotas   quotas
	modules  podModules
	page     *http.Server
	socket   *http.Server // nil: none

	federation federations
	data       data
	manual     manualRoutes
	drain      *drain
	progress   progress
	timeline   timeline
	usage      usageReads
	named      namedKeys // of hot keys and of keys with holds
	budgetLogs logBudget
	detection  detectionCheck // guarded by the calls of onView, one at a time
	ringMaps   ringMapCache
	incomplete prometheus.Counter
	tasks      *tasks

	statsd *stats.Statsd     // nil: none
	tracer *trace.CallTracer // nil: none
	audit  *audit.Trail      // nil before startAudit
}

// RunSidecar runs one member until ctx ends, then leaves the cluster and stops. It returns an error if the member
// cannot start or cannot continue.
func RunSidecar(ctx context.Context, p Setup) error {
	m := &sidecar{
		Setup: p, reg: newRegistry(), started: time.Now(), drain: newDrain(), tasks: newTasks(),
	}
	m.incomplete = promauto.With(m.reg).NewCounter(prometheus.CounterOpts{
		Name: "keyward_drains_incomplete_total", Help: "Times this member left before other members had all of its counters.",
	})
	m.security = newSecurity(&m.Flags, rlsCertFiles(p.Settings.Server), m.reg, p.Log)
	m.detection = detectionCheck{own: membership.Detection(p.Flags.Detection), log: p.Log}
	for _, w := range p.Settings.Warnings() {
		p.Log.Warn(w)
	}
	if err := m.start(); err != nil {
		m.stop(context.Background())
		return err
	}
	select {
	case <-ctx.Done():
		m.Log.Info("leaving the cluster")
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

// start starts the parts, the innermost first: each part only calls parts that have started.
func (m *sidecar) start() error {
	if m.Flags.Insecure {
		m.Log.Warn("--insecure is set: gossip is unencrypted and peers do not use TLS")
	}
	if m.Flags.RLSServer == grpcGo {
		m.Log.Warn("--rls-server grpc is deprecated; the inline server answers rate limit calls")
	}
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
	if m.Flags.XDS != "" {
		names, err := m.Flags.peerNames()
		if err != nil {
			return err
		}
		x, err := startXDS(m.Flags.XDS, names, m.security, m.reg)
		if err != nil {
			return err
		}
		m.xds = x
		if m.Flags.PrimeListener != "" {
			p := newPrimer(m.Flags.PrimeListener, m.service.Rules, m.Log, m.reg)
			p.changed = x.refresh
			x.setPrimer(p)
			m.tasks.start(p.run)
		}
	}
	if err := m.startCluster(); err != nil {
		return err
	}
	m.tasks.start(m.plan)
	m.tasks.start(newMemoryTuner().run)
	if err := m.startRules(); err != nil {
		return err
	}
	if err := m.startStats(); err != nil {
		return err
	}
	if len(m.Flags.Join) == 0 {
		<-m.data.loaded.Done() // nothing else keeps a member alone from admitting full limits again
	}
	if err := m.startListeners(); err != nil {
		return err
	}
	return m.startSocket()
}

// startCounting creates the counters and listens for other members. It also creates the health that all parts report
// to.
func (m *sidecar) startCounting() error {
	if err := m.startAudit(); err != nil {
		return err
	}
	m.health = rls.NewHealthServer(partRunning, partCluster, partRules)
	m.health.Set(partRules, !m.Settings.Behavior.HealthyWithRulesOnly)
	var seed [24]byte
	_, _ = rand.Read(seed[:])                                                 // never fails
	m.bootID = binary.LittleEndian.Uint64(seed[16:]) | 3                      // odd, and above 1
	shared := sha256.Sum256([]byte("keyward overflow of " + m.Flags.Cluster)) // sketches move between members
	partition, _ := policy.ParsePartition(m.Flags.Partition)                  // validated
	o := owner.Options{
		Self: ring.ID(m.Flags.Node), BootID: m.bootID, MaxKeys: m.Flags.MaxKeys, DomainQuota: m.Flags.DomainQuota,
		MaxHolds: m.Flags.MaxHolds,
		Policy:   partition, Detection: membership.Detection(m.Flags.Detection), ProRata: m.Flags.LostState == "prorata",
		SnapshotAge: m.Flags.SnapshotAge,
		Seed:        [2]uint64{binary.LittleEndian.Uint64(seed[:]), binary.LittleEndian.Uint64(seed[8:])},
		SketchSeed:  [2]uint64{binary.LittleEndian.Uint64(shared[:]), binary.LittleEndian.Uint64(shared[8:])},
		HotRate:     m.Flags.HotRate, NoHot: m.Flags.NoHot,
	}
	if m.Flags.Data != "" {
		o.DataWindow = m.Flags.DataWindow
	}
	var err error
	if err = m.federation.open(&m.Flags.federationFlags, m.Flags.Node, m.security, m.Log); err != nil {
		return err
	}
	o.Federation = m.federation.place()
	// envoyproxy/ratelimit caches refused keys in this many bytes. An entry takes about 64.
	if b := m.Settings.Behavior.LocalCacheBytes; b > 0 {
		o.DenyCache = max(1, b/64)
	}
	m.node = owner.New(o)
	po := peer.Options{
		Node: m.node, Self: ring.ID(m.Flags.Node), BootID: m.bootID, Cluster: m.Flags.Cluster,
		Detection:  membership.Detection(m.Flags.Detection),
		OnProgress: m.onProgress, OnLinksChanged: m.onLinks, OnAudit: m.onAudit, OnLostAudits: m.onLostAudits, OnBudgets: m.onBudgets, Logger: m.Log, Registerer: m.reg,
	}
	po.HasCaller = m.hasCaller
	if m.Flags.Data != "" {
		po.OnDecided = m.onDecided
	}
	po.OnPoolRequests = m.federation.send
	if m.federation.home != nil {
		po.OnPool = m.federation.home.Receive
	}
	m.federation.run(m.tasks, m.reg, m.Log, func(authority uint32, took time.Duration, gs []federation.PoolGrant, failed bool) bool {
		m.peer.StepFederation(authority, took, gs, failed) // the rules are loaded after the peer has started
		away, _ := m.node.CoordinatorState(authority)
		return away
	}, func() { m.node.SetFederation(m.federation.place()) })
	if err = m.security.peer(&po); err != nil {
		return err
	}
	if len(m.Flags.Join) > 0 {
		po.Listen = m.Flags.Peer
	}
	if m.peer, err = peer.New(po); err != nil {
		return err
	}
	if m.federation.members != nil {
		m.federation.members.peer.Store(m.peer)
	}
	m.reg.MustRegister(admin.NewCollector(m.peer.Stats), newTables(&m.Flags))
	m.newData()
	return nil
}

// hasCaller reports whether this member has a connection of the caller that was opened longer ago.
func (m *sidecar) hasCaller(caller uint64, ago time.Duration) bool {
	s := m.callers.Load()
	return s != nil && s.HasCaller(caller, ago)
}

func (m *sidecar) startService() {
	b := m.Settings.Behavior
	o := rls.Options{
		Self: ring.ID(m.Flags.Node), CallerGone: m.peer.CallerGone, Decider: m.peer, Name: m.nameKey, Stats: m.stats, Registerer: m.reg,
		NearLimitRatio: b.NearLimitRatio, Stop: b.StopWhenOver, DecisionTimeout: m.Flags.DecisionTimeout,
		Additions: m.Flags.additions(),
	}
	if m.tracer != nil {
		o.Tracer = m.tracer
	}
	if m.Flags.LogDenials > 0 && m.Log.Enabled(context.Background(), slog.LevelInfo) {
		o.Denials, o.DenialRate = m.logDenial, m.Flags.LogDenials
	}
	m.service = rls.New(o)
	m.callers.Store(m.service)
	m.versions = source.NewVersions(source.VersionsOptions{
		Self: m.Flags.Node, OnSwitch: m.applyRules, Registerer: m.reg, Logger: m.Log,
		Announce: func(inForce, prepared uint64) {
			m.cluster.Load().SetRules(inForce, prepared) // rules are loaded after gossip has started
		},
	})
}

// additions returns the parts of responses that the flags add.
func (f *responseFlags) additions() rls.Additions {
	return rls.Additions{
		RetryAfter: f.RetryAfter, RateLimitFields: f.RateLimitFields,
		DecisionHeaders: f.DecisionHeaders, DecisionMetadata: f.DecisionMetadata, DelayHeader: f.DelayHeader,
		Authority: admin.AuthorityName, Path: pathName,
	}
}

// applyRules makes the service use a version, with the current values of the reloadable settings.
func (m *sidecar) applyRules(r *config.Rules) {
	m.timeline.addRules(time.Now(), r)
	sw, err := settings.ReadReloadable(m.Getenv)
	if err != nil {
		m.Log.Error("reloadable settings are faulty; their defaults apply", "error", err)
	}
	m.service.SetRules(r, rls.Switches{
		Shadow: sw.Shadow, Quota: sw.Quota, DynamicMetadata: sw.DynamicMetadata,
		Headers: sw.Headers, LimitHeader: sw.LimitHeader, RemainingHeader: sw.RemainingHeader, ResetHeader: sw.ResetHeader,
	})
	m.refreshCaps(r)
	if m.xds != nil {
		m.xds.refresh() // the rules decide which keys may switch to quotas
	}
	m.health.Set(partRules, !m.Settings.Behavior.HealthyWithRulesOnly || !r.Empty())
}

func (m *sidecar) startCluster() error {
	o := m.Flags.gossip(membership.RoleMember, m.Getenv)
	o.BootID, o.Logger, o.Registerer = m.bootID, m.Log, m.reg
	o.OnRefused = m.security.guards.Guard("gossip").Refuse
	o.OnView, o.OnRoutes, o.Data = m.onView, m.onRoutes, m.data.keeper != nil
	c, err := cluster.Start(o)
	if err != nil {
		return err
	}
	m.cluster.Store(c)
	if m.data.keeper != nil {
		m.tasks.start(m.loadJournals)
	}
	m.publishProgress()
	m.onLinks()
	m.Log.Info("member started", "member", m.Flags.Node, "gossip", c.Gossip(), "label", m.Flags.Cluster)
	return nil
}

// onView passes a new view to all parts: first to those that count, then to Envoy.
func (m *sidecar) onView(v *membership.View) {
	m.peer.SetView(v)
	m.refreshManual(v.Ring)
	joined := v.Joined && v.SelfMember().State != membership.Joining
	m.setOnRing(joined)
	m.federation.joined.Store(joined)
	m.versions.SetView(v)
	if m.xds != nil {
		m.xds.setView(v)
	}
	m.timeline.addView(time.Now(), v)
	m.detection.see(v)
	m.updateJournal(v)
}

// updateRulesHealth makes this member unready while every version of the rules that it has loaded was faulty: it
// would answer every call with an error. A fault in a later version changes nothing, because the version before stays
// in force.
func (m *sidecar) updateRulesHealth(e source.LoadResult) {
	switch {
	case m.Settings.Behavior.HealthyWithRulesOnly: // applyRules reports it
	case e.Err == nil:
		m.health.Set(partRules, true)
	case m.versions.Current() == nil:
		m.health.Set(partRules, false)
	}
}

// startRules starts to load the rules, and waits for the first version before the listeners open.
func (m *sidecar) startRules() error {
	offer := func(e source.LoadResult) {
		m.service.CountLoad(e.Err)
		m.timeline.addLoad(time.Now(), e)
		m.updateRulesHealth(e)
		if e.Err == nil && m.xds != nil {
			// Not only when they come into force: members that take their rules from here must be able to prepare them.
			m.xds.setRules(e.Rules)
		}
		m.versions.Offer(e)
	}
	rules := &ruleSource{m.Settings.Config, m.ruleOptions, m.Log, offer}
	if err := rules.watch(m.tasks); err != nil {
		return err
	}
	if m.Settings.Config.StartWithoutRules {
		return nil
	}
	first := time.NewTimer(30 * time.Second)
	defer first.Stop()
	select {
	case <-m.versions.Read():
	case <-first.C:
		m.Log.Warn("no rules are loaded; calls are answered with an error until they are")
	}
	return nil
}

// ruleOptions returns the options for the next load.
func (m *sidecar) ruleOptions() config.Options {
	sw, _ := settings.ReadReloadable(m.Getenv) // applyRules logs a fault
	return config.Options{
		MergeDomains: sw.MergeDomains, KeyPrefix: m.Settings.Behavior.KeyPrefix, Cluster: m.Flags.Cluster, Members: m.Flags.Expect,
		Lenient: sw.Shadow || sw.Quota, Federation: m.federation.rules(), Defaults: m.Flags.ruleDefaults,
	}
}

// startListeners starts to serve rate limit calls: to the pod, to Envoys of other pods, and as JSON.
func (m *sidecar) startListeners() error {
	s := m.Settings.Server
	o := rls.StartOptions{
		Service: m.service, Health: m.health, Logger: m.Log,
		HTTP: join(s.Host, s.Port), Debug: join(s.DebugHost, s.DebugPort),
		ConnectionAge: s.MaxConnectionAge, ConnectionAgeGrace: s.MaxConnectionGrace,
		Guards: m.security.guards, MaxConn: m.Flags.MaxConnections, Refunds: m.Flags.NegativeHits, Hosts: m.Flags.hosts(),
	}
	m.holds = holds.New(holds.Options{Service: m.service, SessionLife: m.sessionLife()})
	o.Methods, o.JSON = m.holds.Methods(), m.holds.Handlers()
	m.quotas.start(m)
	maps.Copy(o.Methods, m.quotas.server.Methods())
	own := rls.Listener{Address: join(s.GRPCHost, s.GRPCPort)}
	if s.GRPCSocket != "" {
		own = rls.Listener{Address: s.GRPCSocket, Unix: true}
	}
	var err error
	if own.TLS, err = m.security.rlsTLS(s); err != nil {
		return err
	}
	o.Listeners = append(o.Listeners, own)
	if m.Flags.RLSAdvertise != "" && m.Flags.RLSAdvertise != own.Address {
		d := rls.Listener{Address: m.Flags.RLSAdvertise, NoHealth: true, Name: "rls_direct", MaxAge: m.Flags.ConnectionAge}
		if !m.Flags.RLSPlaintext {
			if d.TLS, err = m.security.envoyTLS(); err != nil {
				return err
			}
		}
		o.Listeners = append(o.Listeners, d)
	}
	if m.server, err = rls.Start(o); err != nil {
		return err
	}
	if err := m.startFederationServer(); err != nil {
		return err
	}
	if err := m.modules.start(m); err != nil {
		return err
	}
	m.health.Set(partRunning, true)
	return nil
}

// sessionLife returns the longest life of the sessions of callers: half of that of connections. 0: no limit of its own.
func (m *sidecar) sessionLife() (d time.Duration) {
	for _, age := range []time.Duration{m.Settings.Server.MaxConnectionAge, m.Flags.ConnectionAge} {
		if age > 0 && (d == 0 || age/2 < d) {
			d = age / 2
		}
	}
	return d
}

func join(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// stop stops all parts, the outermost first, and waits for them.
func (m *sidecar) stop(ctx context.Context) {
	m.tasks.cancel()
	if m.health != nil {
		m.health.Set(partRunning, false)
	}
	m.modules.close(m)
	m.quotas.close()
	if c := m.cluster.Load(); c != nil {
		c.Leave(ctx)
	}
	if m.holds != nil {
		m.holds.Close()
	}
	if m.server != nil {
		m.server.Stop(ctx)
	}
	m.federation.stopFederationServer(ctx)
	if m.xds != nil {
		m.xds.stop()
	}
	m.stopJournal()
	if m.peer != nil {
		d := m.peer.Stats().Decided
		m.Log.Info("decisions since start", "full", d[owner.Full], "part", d[owner.Part], "share", d[owner.Share], "open", d[owner.Open],
			"closed", d[owner.Closed], "overflow", d[owner.Overflow], "cached", d[owner.Cached], "shed", d[owner.Shed], "static", d[owner.Static], "escrow", d[owner.Escrow])
		if err := m.peer.Close(); err != nil {
			m.Log.Warn("closing the peer listener failed", "error", err)
		}
	}
	if m.versions != nil {
		m.versions.Close()
	}
	m.tasks.stop()
	if m.statsd != nil {
		m.statsd.Close() // flushes
	}
	m.stopTracing()
	m.audit.Close()
	for _, s := range []*http.Server{m.page, m.socket} {
		if s != nil {
			_ = s.Close() // this closes connections on which a client still reads
		}
	}
}
