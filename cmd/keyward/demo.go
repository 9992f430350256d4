package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/keyward/keyward/internal/lab"
)

const demoRules = `domain: demo
descriptors:
  - key: api_key                 # every API key may send 5 requests a second ...
    rate_limit: {unit: second, requests_per_unit: 5}
  - key: api_key
    value: gold*                 # ... a gold customer's 20
    rate_limit: {unit: second, requests_per_unit: 20}
  - key: api_key
    value: viral*
    rate_limit: {unit: second, requests_per_unit: 200}
  - key: api_key
    value: month*                # ... and some have a quota for a month, which the sidecars keep on disk
    rate_limit: {unit: month, requests_per_unit: 200}
`

// demoOptions are the flags of `keyward demo`.
type demoOptions struct {
	envoy    string
	sidecars int
	length   time.Duration
	control  string
	keep     string
	regions  int
	noCall   bool
}

func newDemo() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch three sidecars, xDS and Envoy limit a dozen API keys on this machine",
		Long:  helpText("demo"),
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.length == 0 && !term.IsTerminal(int(os.Stdout.Fd())) {
				o.length = 50 * time.Second
			}
			e, ctx, stop := newEnding(cmd.Context())
			defer stop()
			switch {
			case o.noCall && o.regions > 0:
				return errors.New("--no-call and --regions exclude each other")
			case o.noCall:
				return runFrugal(ctx, cmd.OutOrStdout(), o, e)
			case o.regions > 0:
				return runRegions(ctx, cmd.OutOrStdout(), o, e)
			}
			return runDemo(ctx, cmd.OutOrStdout(), o, e)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.envoy, "envoy", os.Getenv("ENVOY_BIN"), "`path` of Envoy's binary (default $ENVOY_BIN, else envoy on PATH)")
	f.IntVar(&o.sidecars, "sidecars", 3, "`number` of members of the cluster")
	f.IntVar(&o.regions, "regions", 0, "show one limit for this `number` of regions instead, each with one sidecar, without Envoy")
	f.BoolVar(&o.noCall, "no-call", false, "show three Envoys that spend one limit without calls instead, next to the same with calls")
	f.DurationVar(&o.length, "for", 0, "how long to send traffic (default: until q on a terminal, else 50 s)")
	f.StringVar(&o.control, "control", "127.0.0.1:0", "`host:port` of the demo's page")
	f.StringVar(&o.keep, "keep", "", "`directory` in which to keep logs, certificates and Envoy's configuration")
	return cmd
}

// findEnvoy sets the path of Envoy's binary if none was given.
func (o *demoOptions) findEnvoy() (err error) {
	if o.envoy == "" {
		if o.envoy, err = exec.LookPath("envoy"); err != nil {
			return errors.New("no Envoy found: add it to PATH, set ENVOY_BIN, or run `make demo`, which downloads it")
		}
	}
	return nil
}

// folder returns the folder of a demo's files, and what removes it at the end unless it is to be kept.
func (o *demoOptions) folder() (dir string, remove func(), err error) {
	if o.keep != "" {
		return o.keep, func() {}, nil
	}
	dir, err = lab.TempDir("keyward-demo-")
	return dir, func() { _ = os.RemoveAll(dir) }, err
}

func runDemo(ctx context.Context, out io.Writer, o demoOptions, e *ending) (err error) {
	if err := o.findEnvoy(); err != nil {
		return err
	}
	dir, removeDir, err := o.folder()
	if err != nil {
		return err
	}
	defer removeDir()
	upstream, stopUpstream, err := startUpstream()
	if err != nil {
		return err
	}
	defer stopUpstream()
	l, err := newDemoLab(dir, o.sidecars)
	if err != nil {
		return err
	}
	defer func() {
		fmt.Fprintln(out, "\nstopping Envoy, then the sidecars, which leave the ring one after the other ...")
		err = errors.Join(err, l.Stop())
	}()
	fmt.Fprintf(out, demoIntroduction, o.sidecars)
	c := demoCluster{demoOptions: o, Lab: l, out: out}
	envoy, err := c.start(ctx, upstream)
	if err != nil {
		return err
	}
	s := newStage(l, envoy, o.length)
	s.ending = e
	stopPage, err := s.page(out, o.control)
	if err != nil {
		return err
	}
	defer stopPage()
	return showDemo(ctx, out, s)
}

const demoIntroduction = `Keyward: global rate limits for Envoy, without Redis.

   12 API keys ──▶ Envoy ──▶ your application
                     │ rate limit call to the ONE sidecar that counts the key,
                     ▼ which Envoy finds by its own hash ring
              %d sidecars  (gossip, mTLS, the YAML of envoyproxy/ratelimit)

`

// newDemoLab returns a Lab that runs the binaries in the folder of this one, and keeps its files in dir.
func newDemoLab(dir string, sidecars int) (*lab.Lab, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(demoData(dir)); err != nil { // of an earlier demo with the same --keep
		return nil, err
	}
	return lab.New(lab.Options{
		Dir: dir, Bin: filepath.Dir(self), Expect: sidecars,
		Rules: map[string]string{"demo.yaml": demoRules},
		// A laptop can decide so many requests that no key of the demo would be hot by default.
		Args: []string{"--hot-rate", "100", "--data", demoData(dir)},
	})
}

// demoCluster starts the processes of the demo and prints what it does.
type demoCluster struct {
	demoOptions
	*lab.Lab
	out io.Writer
}

// start starts the sidecars, xDS and Envoy, which serves the application at the address upstream.
func (c *demoCluster) start(ctx context.Context, upstream string) (*lab.Envoy, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var names []string
	for i := range c.sidecars {
		name := fmt.Sprintf("sidecar-%c", 'a'+i)
		names = append(names, name)
		if _, err := c.AddSidecar(name); err != nil {
			return nil, err
		}
		fmt.Fprintf(c.out, "  started %s\n", name)
	}
	xds, err := c.AddXDS("xds")
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(c.out, "  started xds")
	if err := c.AwaitRing(ctx, names...); err != nil {
		return nil, err
	}
	fmt.Fprintln(c.out, "  the sidecars have found each other and use the same ring")
	envoy, err := c.AddEnvoy(lab.EnvoyOptions{
		Name: "envoy", Path: c.envoy, Shape: "owner-direct", XDS: xds.Addr, Upstream: upstream,
		// All processes share one machine, which may be busy.
		Args: []string{"--from", "api_key=header:x-api-key", "--failure-mode-deny", "--hot-routes", "--timeout", "1s"},
	})
	if err != nil {
		return nil, err
	}
	if err := envoy.Await(ctx, "keyward", c.sidecars); err != nil {
		return nil, err
	}
	fmt.Fprintf(c.out, "  started Envoy on http://%s (try: curl -i -H 'x-api-key: me' http://%s/)\n", envoy.Listener, envoy.Listener)
	return envoy, nil
}

// startUpstream starts the application behind Envoy.
func startUpstream() (addr string, stop func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("start the application: %w", err)
	}
	srv := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello\n")
	})}
	return ln.Addr().String(), serveHTTP(srv, ln), nil
}

// serveHTTP serves on ln until stop is called, which also waits until the server has stopped accepting connections.
func serveHTTP(srv *http.Server, ln net.Listener) (stop func()) {
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(ln)
	}()
	return func() {
		_ = srv.Close()
		<-served
	}
}
