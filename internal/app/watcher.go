package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/settings"
)

// RunXDS serves Envoys the ring of members that it watches by gossip, being none itself, until ctx ends. Rules that the
// environment names are served as RateLimitConfig.
func RunXDS(ctx context.Context, f flags, s settings.Settings, getenv settings.Getenv, log *slog.Logger) error {
	if f.XDS == "" {
		f.XDS = ":18000"
	}
	reg, started := newRegistry(), time.Now()
	safe := newSecurity(&f, certs.Files{}, reg, log)
	x, err := startXDS(f.XDS, f.TLSPeerNames, safe, reg)
	if err != nil {
		return err
	}
	defer x.stop()
	// It answers no questions, so what it reads is in force here at once; those who take rules from here agree among themselves.
	versions := source.NewVersions(source.VersionsOptions{Self: f.Node, OnSwitch: x.setRules, Registerer: reg, Logger: log})
	defer versions.Close()
	background, cancel := context.WithCancel(context.Background())
	defer cancel()
	if s.Config.Type != "FILE" || s.Set("RUNTIME_ROOT") {
		options := func() config.Options {
			return config.Options{MergeDomains: s.Reloadable.MergeDomains, Cluster: f.Cluster}
		}
		if err := watchRules(background, s.Config, options, log, versions.Offer); err != nil {
			return err
		}
	}
	o := f.gossip(membership.RoleObserver, 0, getenv, reg, log)
	o.OnRefused = safe.gates.Guard("gossip").Refuse
	var seen timeline
	o.OnView = func(v *membership.View) {
		seen.addView(time.Now(), v)
		x.setView(v)
	}
	o.OnRoutes = func(rs []hotkey.Route) {
		seen.addRoutes(time.Now(), rs)
		x.setHot(rs)
	}
	c, err := cluster.Start(o)
	if err != nil {
		return err
	}
	var ringMap ringMapCache
	page, err := servePage([]string{f.Metrics}, admin.Options{
		Gatherer: reg,
		RingMap:  func() api.RingMap { return ringMap.get(c.View()) },
		Timeline: seen.Events,
		Cluster: func() api.ClusterStatus {
			p := clusterStatus(f.Cluster, c.View(), versions.Status())
			p.XDS = x.status()
			return p
		},
		Self: func() api.Self { return f.selfStatus(membership.RoleObserver, started, c) },
		Ready: func() error { // what is known is served, and an Envoy keeps what it has
			if why := c.View().Problem; why != "" {
				return fmt.Errorf("not ready: cluster (%s)", why)
			}
			return nil
		},
	}, safe)
	if err != nil {
		c.Close()
		return err
	}
	defer page.Close()
	select {
	case <-ctx.Done():
	case err = <-c.Fatal():
	}
	bounded, cancelLeave := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancelLeave()
	c.Leave(bounded)
	return err
}
