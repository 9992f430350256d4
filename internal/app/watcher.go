package app

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/membership"
)

// watcher is an xDS server that is no member: it observes the members by gossip.
type watcher struct {
	Setup
	reg      *prometheus.Registry
	started  time.Time
	security *security
	tasks    *tasks
	xds      *xdsServer
	versions *source.Versions
	cluster  *cluster.Cluster
	timeline timeline
	ringMaps ringMapCache
	page     *http.Server
}

// RunXDS serves the ring of the members to Envoys until ctx ends. It serves the rules that the environment names as
// RateLimitConfig.
func RunXDS(ctx context.Context, p Setup) error {
	if p.Flags.XDS == "" {
		p.Flags.XDS = ":18000"
	}
	w := &watcher{Setup: p, reg: newRegistry(), started: time.Now(), tasks: newTasks()}
	w.security = newSecurity(&w.Flags, certs.Files{}, w.reg, w.Log)
	defer w.stop()
	if err := w.start(); err != nil {
		return err
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-w.cluster.Fatal():
	}
	leaving, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	w.cluster.Leave(leaving)
	return err
}

func (w *watcher) start() (err error) {
	if w.xds, err = startXDS(w.Flags.XDS, w.Flags.TLSPeerNames, w.security, w.reg); err != nil {
		return err
	}
	// A version is in force here as soon as it is loaded: this process decides nothing, and the members that take
	// their rules from it agree among themselves.
	w.versions = source.NewVersions(source.VersionsOptions{Self: w.Flags.Node, OnSwitch: w.xds.setRules, Registerer: w.reg, Logger: w.Log})
	if w.Settings.Config.Type != "FILE" || w.Settings.Set("RUNTIME_ROOT") {
		rules := &ruleSource{w.Settings.Config, w.ruleOptions, w.Log, w.versions.Offer}
		if err := rules.watch(w.tasks); err != nil {
			return err
		}
	}
	o := w.Flags.gossip(membership.RoleObserver, w.Getenv)
	o.Logger, o.Registerer, o.OnRefused = w.Log, w.reg, w.security.guards.Guard("gossip").Refuse
	o.OnView, o.OnRoutes = w.onView, w.onRoutes
	if w.cluster, err = cluster.Start(o); err != nil {
		return err
	}
	w.page, err = servePage([]string{w.Flags.Metrics}, admin.Options{
		Gatherer: w.reg, Cluster: w.clusterStatus, Self: w.selfStatus, Ready: w.ready, Timeline: w.timeline.Events,
		RingMap: func() api.RingMap { return w.ringMaps.get(w.cluster.View()) },
	}, w.security)
	return err
}

func (w *watcher) ruleOptions() config.Options {
	return config.Options{MergeDomains: w.Settings.Reloadable.MergeDomains, Cluster: w.Flags.Cluster, Defaults: w.Flags.ruleDefaults}
}

func (w *watcher) onView(v *membership.View) {
	w.timeline.addView(time.Now(), v)
	w.xds.setView(v)
}

func (w *watcher) onRoutes(rs []hotkey.Route) {
	w.timeline.addRoutes(time.Now(), rs)
	w.xds.setHot(rs)
}

func (w *watcher) clusterStatus() api.ClusterStatus {
	c := clusterStatus(w.Flags.Cluster, w.cluster.View(), w.versions.Status())
	c.XDS = w.xds.status()
	return c
}

func (w *watcher) selfStatus() api.Self {
	return w.Flags.selfStatus(membership.RoleObserver, w.started, w.cluster)
}

// ready returns an error while the view is unusable. The server then still serves what it has, and Envoys keep what
// they have.
func (w *watcher) ready() error {
	if why := w.cluster.View().Problem; why != "" {
		return fmt.Errorf("not ready: cluster (%s)", why)
	}
	return nil
}

// stop stops the parts that have started.
func (w *watcher) stop() {
	if w.page != nil {
		_ = w.page.Close() // this closes connections on which a client still reads
	}
	if w.cluster != nil {
		w.cluster.Close()
	}
	w.tasks.stop()
	if w.versions != nil {
		w.versions.Close()
	}
	if w.xds != nil {
		w.xds.stop()
	}
}
