package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/redis"
	"github.com/keyward/keyward/federation/remote"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/home"
	"github.com/keyward/keyward/owner"
)

// federationFlags are this member's place in a federation, and the coordinators that it can reach.
type federationFlags struct {
	Region      string
	Federation  string   // the file of the layout; empty: none
	Authorities []string // NAME=URL or NAME=@FILE
	// FederationListen is the host:port at which this member serves other regions; empty: it does not.
	FederationListen string
	// FederationMargin is the time within which all processes of all regions read a changed file of the layouts.
	FederationMargin time.Duration
}

// validateFederation checks the flags of the federation. It does not read files.
func (f *federationFlags) validateFederation(e *faults) {
	e.unless(f.Region == "" || f.Federation != "", "--region needs --federation: the file names all regions, and --region is this one's name")
	e.unless(f.FederationListen == "" || f.Federation != "", "--federation-listen needs --federation FILE")
	if err := hostPort(f.FederationListen); err != nil {
		e.add("--federation-listen %q: %w", f.FederationListen, err)
	}
	f.validateMargin(e)
	for _, a := range f.Authorities {
		if name, at, ok := strings.Cut(a, "="); !ok || name == "" || at == "" {
			e.add("--authority: want NAME=URL or NAME=@FILE") // not the value, which may contain a password
		}
	}
}

// defineMargin defines the flag that sidecars and coordinators share.
func (f *federationFlags) defineMargin(s *pflag.FlagSet) {
	s.DurationVar(&f.FederationMargin, "federation-margin", 2*time.Minute,
		"`time` within which all processes of all regions read a changed --federation; a layout that is read later than that before its from "+
			"lends nothing until the time has passed")
}

func (f *federationFlags) validateMargin(e *faults) {
	e.unless(f.Federation == "" || f.FederationMargin >= time.Second, "--federation-margin %v: want at least 1s", f.FederationMargin)
}

// authority is a coordinator that this member can reach.
type authority struct {
	name        string
	coordinator federation.Coordinator
}

// federations is this member's place in a federation.
type federations struct {
	layouts  *layouts // nil: none
	region   string
	security *security

	mu          sync.Mutex
	authorities []authority                            // only ever added to; guarded by mu
	regions     map[string]*movingCoordinator          // of other regions, by name; guarded by mu
	callers     atomic.Pointer[map[uint32]*poolCaller] // nil before start; its maps are immutable
	reg         prometheus.Registerer                  // nil before the callers start; guarded by mu
	start       func(a *authority) *poolCaller         // nil before the callers start; guarded by mu

	// The rest is nil, or unused, in a federation without regions.
	home    *home.Coordinator
	members *homeMembers
	joined  atomic.Bool // this member is on the ring
	served  *servedHome
	server  *remote.CoordinatorServer
}

// open reads the layouts and opens the coordinators, for the member of that name. It returns all faults.
func (x *federations) open(f *federationFlags, node string, s *security, log *slog.Logger) (err error) {
	x.region, x.security = f.Region, s
	if f.Federation == "" {
		if len(f.Authorities) > 0 {
			return errors.New("--authority needs --federation FILE and --region NAME")
		}
		return nil
	}
	x.layouts, err = openLayouts(f.Federation, f.FederationMargin, log, func(newest *federation.Layout) string {
		if x.region == "" && newest.Holders > 0 {
			x.region = node // the holders' names must differ, as those of members
		}
		return x.region
	})
	if err != nil {
		return fmt.Errorf("--federation: %w", err)
	}
	var errs []error
	if err := x.admitted(); err != nil {
		errs = append(errs, fmt.Errorf("--region: %w", err))
	}
	x.openHome()
	errs = append(errs, x.openRegions())
	for _, text := range f.Authorities {
		name, at, _ := strings.Cut(text, "=")
		if slices.Contains(x.layouts.now().Regions(), name) {
			errs = append(errs, fmt.Errorf("--authority %s: %s has a region of this name", name, f.Federation))
			continue
		}
		c, err := x.openAuthority(at)
		if err != nil {
			errs = append(errs, fmt.Errorf("--authority %s: %w", name, err))
			continue
		}
		x.authorities = append(x.authorities, authority{name, c})
	}
	return errors.Join(errs...)
}

// admitted returns why no layout has a place for this region, or nil.
func (x *federations) admitted() (err error) {
	for _, p := range x.layouts.now().Phases() {
		if err = p.Layout.Admits(x.region); err == nil {
			return nil
		}
	}
	return err
}

// openAuthority returns the coordinator at a URL, or at the URL that a file contains. Its errors contain no credentials.
func (x *federations) openAuthority(at string) (federation.Coordinator, error) {
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
		return redis.Open(context.Background(), redis.Options{URL: at, Terms: x.layouts.terms})
	case keywardScheme:
		if x.layouts.now().Newest().Holders > 0 {
			return nil, errors.New("a coordinator process lends to regions only; with holders, want a URL that begins with redis:// or rediss://")
		}
		return x.dialCoordinator(at)
	}
	return nil, errors.New("want a URL that begins with keyward://, redis:// or rediss://")
}

// place returns this region's place for the Node.
func (x *federations) place() owner.FederationPlace {
	if x.layouts == nil {
		return owner.FederationPlace{}
	}
	return owner.FederationPlace{Schedule: x.layouts.now(), Authorities: x.names()}
}

// known returns the coordinators that this member can reach.
func (x *federations) known() []authority {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.authorities[:len(x.authorities):len(x.authorities)]
}

func (x *federations) names() (names []string) {
	for _, a := range x.known() {
		names = append(names, a.name)
	}
	return names
}

// rules returns what rules need to know of the federation.
func (x *federations) rules() *config.FederationOptions {
	if x.layouts == nil {
		return &config.FederationOptions{}
	}
	l := x.layouts.now().Newest()
	names := x.names()
	for _, p := range x.layouts.now().Phases() {
		if p.Layout.Coordinator == federation.SpreadCoordinator {
			names = append(names, federation.SpreadCoordinator)
		}
	}
	o := &config.FederationOptions{
		Name: l.Name, Coordinator: l.Coordinator, Authorities: names, Regions: len(l.Regions), Holders: int(l.Holders),
	}
	for _, a := range x.known() {
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

// poolReply is called with the replies of a coordinator; see owner.Node.StepFederation. It reports whether the coordinator counts
// as away then.
type poolReply func(authority uint32, took time.Duration, gs []federation.PoolGrant, failed bool) (away bool)

// run starts the callers, and follows the layouts. changed is called after each change of them.
func (x *federations) run(t *tasks, reg prometheus.Registerer, log *slog.Logger, reply poolReply, changed func()) {
	if x.layouts == nil {
		return
	}
	x.layouts.export(reg, x.region)
	m := newFederationMetrics(reg)
	x.mu.Lock()
	x.start = func(a *authority) *poolCaller {
		c := m.caller(a, x.region, log, reply)
		exportRepaired(reg, "keyward_federation_repaired_hits_total", prometheus.Labels{"authority": a.name}, a.coordinator)
		t.start(c.run)
		return c
	}
	x.reg = reg
	x.serveHome()
	x.startCallers()
	x.mu.Unlock()
	t.start(func(ctx context.Context) {
		x.layouts.follow(ctx, func() {
			if err := x.openRegions(); err != nil {
				log.Error("coordinators not opened", "error", err)
			}
			changed()
		})
	})
}

// startCallers starts the callers of new authorities. It is called with mu held.
func (x *federations) startCallers() {
	next := map[uint32]*poolCaller{}
	if was := x.callers.Load(); was != nil {
		maps.Copy(next, *was)
	}
	for i := range x.authorities {
		a := &x.authorities[i]
		if id := federation.AuthorityID(a.name); next[id] == nil {
			next[id] = x.start(a)
		}
	}
	x.callers.Store(&next)
}

// send queues requests. It does not block.
func (x *federations) send(rs []owner.CoordinatorRequest) {
	callers := x.callers.Load()
	if callers == nil {
		return
	}
	for i := range rs {
		if c := (*callers)[rs[i].Authority]; c != nil {
			c.queue(&rs[i].Request)
		}
	}
	for _, c := range *callers {
		c.signal()
	}
}
