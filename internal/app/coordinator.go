package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/remote"
	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/settings"
)

const (
	setupTimeout = 10 * time.Second // of a store
	checkEvery   = 2 * time.Second  // between two checks of the store's health
	checkTimeout = 2 * time.Second
	sweepEvery   = time.Minute
	callsTimeout = 5 * time.Second // for calls in progress at the end
)

// CoordinatorProgram is cmd/coordinator.
type CoordinatorProgram struct {
	About  string               // for --help
	Stores map[string]OpenStore // by scheme, in addition to redis and rediss
}

// Main parses the command line, serves until SIGTERM or SIGINT, and returns the exit code. A second signal ends the
// process at once.
func (p CoordinatorProgram) Main(args []string) int {
	const name = "coordinator"
	if asksVersion(args) {
		printVersion(name)
		return 0
	}
	f, err1 := parseCoordinator(p.About, args, os.Getenv)
	if errors.Is(err1, pflag.ErrHelp) {
		return 0
	}
	s, err2 := settings.Read(os.LookupEnv) // LOG_LEVEL and LOG_FORMAT
	log := logger(os.Stderr, s.Server)
	c, err3 := newCoordinator(f, p.Stores, log)
	if err := errors.Join(err1, err2, err3); err != nil {
		fmt.Fprintf(os.Stderr, "%s: cannot start:\n%v\n", name, err)
		return 1
	}
	ctx, cancel := untilSignal(log)
	defer cancel()
	if err := c.run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// coordinator is one running process.
type coordinator struct {
	flags    *coordinatorFlags
	log      *slog.Logger
	reg      *prometheus.Registry
	security *security
	layouts  *layouts
	store    CoordinatorStore
	tls      *tls.Config // nil: none
	metrics  *coordinatorMetrics
	health   storeHealth
	tasks    *tasks
}

// newCoordinator reads the layout and the certificates, and opens the store. It returns all faults. Faulty flags, which
// were reported before, only keep it from doing so.
func newCoordinator(f *coordinatorFlags, stores map[string]OpenStore, log *slog.Logger) (*coordinator, error) {
	c := &coordinator{flags: f, log: log, reg: newRegistry(), tasks: newTasks()}
	c.metrics = newCoordinatorMetrics(c.reg)
	c.security = newSecurity(&f.flags, certs.Files{}, c.reg, log)
	var err1, err2, err3 error
	if f.Federation != "" {
		c.layouts, err1 = readLayouts(f.Federation, f.FederationMargin, log)
	}
	if f.Store != "" {
		c.store, err2 = openStore(f, c.layouts, stores)
	}
	if f.tlsFiles() == tlsFileFlags {
		o := certs.ServerOptions{NextProtos: []string{remote.ALPN}, Reload: c.security.reload()}
		if c.tls, err3 = certs.Server(f.TLS, o); err3 != nil {
			err3 = fmt.Errorf("--tls-cert, --tls-key and --tls-ca: %w", err3)
		}
	}
	return c, errors.Join(err1, err2, err3)
}

// readLayouts reads the file of --federation.
func readLayouts(file string, margin time.Duration, log *slog.Logger) (*layouts, error) {
	x, err := openLayouts(file, margin, log, func(*federation.Layout) string { return "" })
	if err != nil {
		return nil, fmt.Errorf("--federation: %w", err)
	}
	if x.now().Newest().Holders > 0 {
		return nil, fmt.Errorf("--federation: %s has holders, which use a Redis without a coordinator: sidecar --authority NAME=redis://host:port", file)
	}
	return x, nil
}

// run serves until ctx ends. Then it completes the calls in progress and stops.
func (c *coordinator) run(ctx context.Context) error {
	defer c.store.close()
	defer c.tasks.stop()
	if c.tls == nil {
		c.log.Warn("--insecure is set: clients without TLS may name any region")
	}
	if c.flags.Init {
		if err := c.initStore(ctx); err != nil {
			return fmt.Errorf("--init: %w", err)
		}
	}
	page, err1 := c.servePage()
	ln, err2 := net.Listen("tcp", c.flags.Listen)
	if err2 != nil {
		err2 = fmt.Errorf("--listen: %w", err2)
	}
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	server := remote.Serve(ln, c.serving())
	c.log.Info("listening", "listener", "coordinator", "address", ln.Addr().String())
	c.tasks.start(c.checkHealth)
	c.tasks.start(c.sweep)
	c.tasks.start(func(ctx context.Context) { c.layouts.follow(ctx, c.createMetrics) })
	<-ctx.Done()
	c.tasks.stop()
	c.health.set(errStopping)
	c.stop(server, page)
	return nil
}

// stop completes the calls in progress.
func (c *coordinator) stop(server *remote.CoordinatorServer, page *http.Server) {
	bounded, cancel := context.WithTimeout(context.Background(), callsTimeout)
	defer cancel()
	if err := server.Shutdown(bounded); err != nil {
		c.log.Warn("calls still in progress; exiting", "error", err)
	}
	if err := page.Shutdown(bounded); err != nil {
		c.log.Warn("pages still being served; exiting", "error", err)
	}
	c.log.Info("coordinator stopped")
}

// serving returns the options of the server for regions.
func (c *coordinator) serving() remote.ServeOptions {
	c.layouts.export(c.reg, "")
	exportRepaired(c.reg, "keyward_coordinator_repaired_hits_total", nil, c.store.Coordinator)
	c.createMetrics()
	return remote.ServeOptions{
		Coordinator: &measuredStore{c.store, c.metrics}, Schedule: c.layouts.now,
		TLS: c.tls, Guard: c.security.guards.Guard("coordinator"), Logger: c.log,
		OnConnection: func(region string, change int) { c.metrics.connections.WithLabelValues(region).Add(float64(change)) },
	}
}

// createMetrics creates the series of all regions.
func (c *coordinator) createMetrics() {
	for _, region := range c.layouts.now().Regions() {
		c.metrics.create(region)
	}
}

// initStore declares that the records of the store are complete.
func (c *coordinator) initStore(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	if err := c.store.setup(bounded); err != nil {
		return err
	}
	if err := c.store.init(bounded); err != nil {
		return err
	}
	c.log.Warn("--init is set: windows that began before the start are lent in full; remove the flag now")
	return nil
}

// checkHealth sets up the store and checks it until ctx ends. A store that is not available yet is tried again.
func (c *coordinator) checkHealth(ctx context.Context) {
	setUp := c.flags.Init
	check := func(ctx context.Context) {
		if !setUp {
			setUp = c.setUp(ctx)
		}
		c.check(ctx)
	}
	check(ctx)
	every(ctx, checkEvery, check)
}

// setUp sets up the store and reports whether that is done.
func (c *coordinator) setUp(ctx context.Context) bool {
	bounded, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	err := c.store.setup(bounded)
	if err != nil && c.health.set(err) && ctx.Err() == nil {
		c.log.Warn("store not set up; retrying", "error", err, "retry_in", checkEvery)
	}
	return err == nil
}

// check records whether the store is healthy.
func (c *coordinator) check(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := c.store.Healthy(bounded)
	if ctx.Err() != nil {
		return
	}
	changed := c.health.set(err)
	switch {
	case err != nil && changed:
		c.log.Warn("store unhealthy", "error", err)
	case changed:
		c.log.Info("store healthy")
	}
	up := 0.
	if err == nil {
		up = 1
	}
	c.metrics.up.Set(up)
}

// sweep removes records of windows that have ended, until ctx ends.
func (c *coordinator) sweep(ctx context.Context) {
	every(ctx, sweepEvery, func(ctx context.Context) {
		if err := c.store.sweep(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("store not swept; retrying", "error", err, "retry_in", sweepEvery)
		}
	})
}

// every calls f at intervals until ctx ends.
func every(ctx context.Context, interval time.Duration, f func(context.Context)) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f(ctx)
		}
	}
}
