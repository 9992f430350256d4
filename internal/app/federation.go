package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/redis"
	"github.com/keyward/keyward/federation/remote"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/home"
	"github.com/keyward/keyward/owner"
)

const (
	// poolCallTimeout is how long a call to a coordinator may take. Requests are repeated long before.
	poolCallTimeout = 3 * time.Second
	poolCalls       = 8   // most calls to one coordinator at a time
	poolBatch       = 256 // most requests of one call
	poolCheckEvery  = 30 * time.Second
	poolQueue       = 16_384 // most requests that wait for a call; more are dropped, and repeated
)

// federationFlags are this member's place in a federation, and the coordinators that it can reach.
type federationFlags struct {
	Region      string
	Federation  string   // the file of the layout; empty: none
	Authorities []string // NAME=URL or NAME=@FILE
	// FederationListen is the host:port at which this member serves other regions; empty: it does not.
	FederationListen string
}

// validateFederation checks the flags of the federation. It does not read files.
func (f *federationFlags) validateFederation(e *faults) {
	e.unless(f.Region == "" || f.Federation != "", "--region needs --federation: the file names all regions, and --region is this one's name")
	e.unless(f.FederationListen == "" || f.Federation != "", "--federation-listen needs --federation FILE")
	if err := hostPort(f.FederationListen); err != nil {
		e.add("--federation-listen %q: %w", f.FederationListen, err)
	}
	for _, a := range f.Authorities {
		if name, at, ok := strings.Cut(a, "="); !ok || name == "" || at == "" {
			e.add("--authority: want NAME=URL or NAME=@FILE") // not the value, which may contain a password
		}
	}
}

// authority is a coordinator that this member can reach.
type authority struct {
	name        string
	coordinator federation.Coordinator
}

// federations is this member's place in a federation.
type federations struct {
	layout      *federation.Layout // nil: none
	region      string
	authorities []authority
	callers     map[uint32]*poolCaller

	// The rest is nil, or unused, unless this cluster is a coordinator.
	home     *home.Coordinator
	members  *homeMembers
	joined   atomic.Bool // this member is on the ring
	measured *measuredStore
	metrics  *coordinatorMetrics
	server   *remote.CoordinatorServer
}

// open reads the layout and opens the coordinators, for the member of that name. It returns all faults.
func (x *federations) open(f *federationFlags, node string, s *security) (err error) {
	x.region = f.Region
	if f.Federation == "" {
		if len(f.Authorities) > 0 {
			return errors.New("--authority needs --federation FILE and --region NAME")
		}
		return nil
	}
	content, err := os.ReadFile(f.Federation)
	if err != nil {
		return fmt.Errorf("--federation: %w", err)
	}
	if x.layout, err = federation.ParseLayout(f.Federation, content); err != nil {
		return fmt.Errorf("--federation: %w", err)
	}
	var errs []error
	if x.region == "" && x.layout.Holders > 0 {
		x.region = node // the holders' names must differ, as those of members
	}
	if err := x.layout.Admits(x.region); err != nil {
		errs = append(errs, fmt.Errorf("--region: %w", err))
	}
	x.openHome()
	errs = append(errs, x.openRegions(s))
	for _, text := range f.Authorities {
		name, at, _ := strings.Cut(text, "=")
		if x.layout.Index(name) >= 0 {
			errs = append(errs, fmt.Errorf("--authority %s: %s has a region of this name", name, f.Federation))
			continue
		}
		c, err := x.openAuthority(at, s)
		if err != nil {
			errs = append(errs, fmt.Errorf("--authority %s: %w", name, err))
			continue
		}
		x.authorities = append(x.authorities, authority{name, c})
	}
	return errors.Join(errs...)
}

// openRegions opens the regions that are coordinators, among them this one.
func (x *federations) openRegions(s *security) error {
	var errs []error
	for i := range x.layout.Regions {
		switch r := &x.layout.Regions[i]; {
		case r.Name == x.region && x.home != nil:
			x.authorities = append(x.authorities, authority{r.Name, x.home})
		case r.Name != x.region && x.layout.Coordinates(r.Name):
			c, err := x.dialCoordinator(keywardScheme+"://"+r.Address, s)
			if err != nil {
				errs = append(errs, fmt.Errorf("region %s: %w", r.Name, err))
				continue
			}
			x.authorities = append(x.authorities, authority{r.Name, c})
		}
	}
	return errors.Join(errs...)
}

// openAuthority returns the coordinator at a URL, or at the URL that a file contains. Its errors contain no credentials.
func (x *federations) openAuthority(at string, s *security) (federation.Coordinator, error) {
	if file, isFile := strings.CutPrefix(at, "@"); isFile {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		at = strings.TrimSpace(string(content))
	}
	scheme, _, _ := strings.Cut(at, "://")
	switch scheme {
	case "redis", "rediss":
		return redis.Open(context.Background(), redis.Options{URL: at, Epoch: x.layout.Epoch})
	case keywardScheme:
		if x.layout.Holders > 0 {
			return nil, errors.New("a coordinator process lends to regions only; with holders, want a URL that begins with redis:// or rediss://")
		}
		return x.dialCoordinator(at, s)
	}
	return nil, errors.New("want a URL that begins with keyward://, redis:// or rediss://")
}

// options returns this region's place for the Node.
func (x *federations) options() owner.FederationPlace {
	if x.layout == nil {
		return owner.FederationPlace{}
	}
	p := owner.FederationPlace{
		Epoch: x.layout.Epoch, Weights: x.layout.Weights(), Index: x.layout.Index(x.region), Holders: int(x.layout.Holders),
		Authorities: x.names(),
	}
	if x.layout.Coordinator == federation.SpreadCoordinator {
		p.Homes = federation.NewHomes(x.layout)
	}
	return p
}

func (x *federations) names() (names []string) {
	for i := range x.authorities {
		names = append(names, x.authorities[i].name)
	}
	return names
}

// rules returns what rules need to know of the federation.
func (x *federations) rules() *config.FederationOptions {
	if x.layout == nil {
		return &config.FederationOptions{}
	}
	names := x.names()
	if x.layout.Coordinator == federation.SpreadCoordinator {
		names = append(names, federation.SpreadCoordinator)
	}
	o := &config.FederationOptions{
		Name: x.layout.Name, Coordinator: x.layout.Coordinator, Authorities: names,
		Regions: len(x.layout.Regions), Holders: int(x.layout.Holders),
	}
	for i := range x.authorities {
		a := &x.authorities[i]
		c, ok := a.coordinator.(*redis.Coordinator)
		if !ok {
			continue
		}
		o.Reclaims = append(o.Reclaims, a.name)
		if c.Counts() {
			o.Counts = append(o.Counts, a.name)
		} else {
			o.Shared = append(o.Shared, a.name)
		}
	}
	return o
}

// poolReply is called with the replies of a coordinator; see owner.Node.StepFederation.
type poolReply func(authority uint32, took time.Duration, gs []federation.PoolGrant, failed bool)

// start starts the callers.
func (x *federations) start(t *tasks, reg prometheus.Registerer, log *slog.Logger, reply poolReply) {
	x.callers = map[uint32]*poolCaller{}
	if x.home != nil {
		x.measureHome(reg)
	}
	if len(x.authorities) == 0 {
		return
	}
	m := newFederationMetrics(reg)
	exportEpoch(reg, x.layout, x.region)
	for i := range x.authorities {
		a := &x.authorities[i]
		if x.measured != nil && a.name == x.region {
			a.coordinator = x.measured
		}
		c := &poolCaller{
			id: federation.AuthorityID(a.name), name: a.name, log: log, region: x.region, coordinator: a.coordinator, reply: reply,
			wake: make(chan struct{}, 1), slots: make(chan struct{}, poolCalls),
			seconds: m.seconds.WithLabelValues(a.name), errors: m.errors.WithLabelValues(a.name),
			dropped: m.dropped.WithLabelValues(a.name), requests: m.requests.WithLabelValues(a.name), up: m.up.WithLabelValues(a.name),
			refused: m.refused.WithLabelValues(a.name), offset: m.offset.WithLabelValues(a.name),
		}
		c.up.Set(1)
		x.callers[c.id] = c
		exportRepaired(reg, "keyward_federation_repaired_hits_total", prometheus.Labels{"authority": a.name}, a.coordinator)
		t.start(c.run)
	}
}

// send queues requests. It does not block.
func (x *federations) send(rs []owner.CoordinatorRequest) {
	for i := range rs {
		if c := x.callers[rs[i].Authority]; c != nil {
			c.queue(&rs[i].Request)
		}
	}
	for _, c := range x.callers {
		c.signal()
	}
}

type federationMetrics struct {
	seconds                   *prometheus.HistogramVec
	errors, dropped, requests *prometheus.CounterVec
	refused                   *prometheus.CounterVec
	up, offset                *prometheus.GaugeVec
}

func newFederationMetrics(reg prometheus.Registerer) federationMetrics {
	f, label := promauto.With(reg), []string{"authority"}
	counter := func(name, help string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "keyward_federation_" + name, Help: help}, label)
	}
	return federationMetrics{
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "keyward_federation_call_seconds", Help: "Time of a call to the coordinator that succeeded.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 3},
		}, label),
		errors:   counter("errors_total", "Calls to the coordinator that failed."),
		dropped:  counter("dropped_total", "Requests to the coordinator that found no room, and are repeated."),
		requests: counter("requests_total", "Requests to the coordinator, of which one call has many."),
		refused:  counter("refused_total", "Requests that the coordinator refused: late, invalid, or of another layout."),
		offset: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_federation_clock_offset_seconds",
			Help: "By how much the coordinator's clock is at least ahead of this member's; negative if it is behind.",
		}, label),
		up: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "keyward_federation_up", Help: "1 if the last call to the coordinator succeeded, 0 if it failed.",
		}, label),
	}
}

// poolCaller calls one coordinator.
type poolCaller struct {
	id          uint32
	name        string
	region      string
	coordinator federation.Coordinator
	reply       poolReply
	wake        chan struct{}
	slots       chan struct{} // holds a value for each call
	seconds     prometheus.Observer
	errors      prometheus.Counter
	dropped     prometheus.Counter
	requests    prometheus.Counter
	refused     prometheus.Counter
	up, offset  prometheus.Gauge
	log         *slog.Logger
	unhealthy   atomic.Bool

	mu      sync.Mutex
	waiting []federation.PoolRequest // guarded by mu
}

func (c *poolCaller) queue(r *federation.PoolRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.waiting) >= poolQueue {
		c.dropped.Inc()
		return
	}
	c.waiting = append(c.waiting, *r)
}

func (c *poolCaller) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take returns the requests of the next call, or none.
func (c *poolCaller) take() (rs []federation.PoolRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.waiting), poolBatch)
	rs = slices.Clone(c.waiting[:n])
	c.waiting = slices.Delete(c.waiting, 0, n)
	return rs
}

// run calls the coordinator until ctx ends. It connects at once, so that the first request does not have to.
func (c *poolCaller) run(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	check := time.NewTicker(poolCheckEvery)
	defer check.Stop()
	calls.Go(func() { c.check(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			calls.Go(func() { c.check(ctx) })
		case <-c.wake:
			c.send(ctx, &calls)
		}
	}
}

// send sends the requests that wait. Those that come while all calls are in progress share the next one.
func (c *poolCaller) send(ctx context.Context, calls *sync.WaitGroup) {
	for {
		select {
		case <-ctx.Done():
			return
		case c.slots <- struct{}{}:
		}
		rs := c.take()
		if len(rs) == 0 {
			<-c.slots
			return
		}
		calls.Go(func() {
			c.call(ctx, rs)
			<-c.slots
		})
	}
}

// check logs when the coordinator becomes unable to lend, and when it is able again.
func (c *poolCaller) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, poolCallTimeout)
	defer cancel()
	err := c.coordinator.Healthy(ctx)
	if ctx.Err() == context.Canceled {
		return
	}
	switch was := c.unhealthy.Swap(err != nil); {
	case err != nil && !was:
		c.log.Warn("coordinator cannot lend", "authority", c.name, "error", err)
	case err == nil && was:
		c.log.Info("coordinator lends again", "authority", c.name)
	}
}

func (c *poolCaller) call(ctx context.Context, rs []federation.PoolRequest) {
	ctx, cancel := context.WithTimeout(ctx, poolCallTimeout)
	defer cancel()
	began := time.Now()
	gs, err := c.coordinator.Lease(ctx, c.region, rs)
	took := time.Since(began)
	c.requests.Add(float64(len(rs)))
	if err != nil {
		c.errors.Inc()
		c.up.Set(0)
	} else {
		c.seconds.Observe(took.Seconds())
		c.up.Set(1)
		c.refused.Add(float64(len(rs) - len(gs)))
		c.measureOffset(rs, gs, began, took)
	}
	c.reply(c.id, took, gs, err != nil)
}
