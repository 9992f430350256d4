package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/ops/mirror"
)

// mirrorFlags are the flags of `keyward mirror`.
type mirrorFlags struct {
	listen, metrics, answer, log string
	options                      mirror.Options
	tls                          certs.Files
	listenTLS, oldTLS, newTLS    bool
	lasts                        time.Duration
	format                       *string
}

func newMirror() *cobra.Command {
	var f mirrorFlags
	cmd := &cobra.Command{
		Use:     "mirror --old HOST:PORT --new HOST:PORT",
		Short:   "Return the old rate limit service's answers, call Keyward as well, and report differences",
		Long:    helpText("mirror"),
		Example: helpExamples("mirror"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return f.run(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.format = outputFlag(cmd)
	f.define(cmd)
	return cmd
}

func (f *mirrorFlags) define(cmd *cobra.Command) {
	s := cmd.Flags()
	s.SortFlags = false
	s.StringVar(&f.listen, "listen", ":8081", "`host:port` to listen on for Envoy")
	s.StringVar(&f.options.Old, "old", "", "`host:port` of envoyproxy/ratelimit, gRPC")
	s.StringVar(&f.options.New, "new", "", "`host:port` of Keyward, gRPC")
	s.StringVar(&f.answer, "answer", "old", "`service` whose answers are returned: old, or new (and the old one's if the new one fails)")
	s.StringVar(&f.metrics, "metrics", ":9090", "`host:port` of /metrics, /healthcheck and the summary at /; empty: none")
	s.StringVar(&f.log, "log", "-", "`file` for differences, a JSON line for each; -: standard error; empty: none")
	s.Float64Var(&f.options.LogRate, "log-rate", 10, "largest number of `lines` per second; all differences are counted")
	s.DurationVar(&f.options.Timeout, "timeout", time.Second, "time for the answer that callers do not wait for")
	s.IntVar(&f.options.InFlight, "in-flight", 1024, "open calls to that service; further calls are not mirrored, and counted")
	s.DurationVar(&f.lasts, "for", 0, "end after this time (default: at SIGTERM or SIGINT)")
	s.BoolVar(&f.listenTLS, "listen-tls", false, "serve Envoy with TLS, using the --tls-* files")
	s.BoolVar(&f.oldTLS, "old-tls", false, "call the old service with TLS, using the --tls-* files")
	s.BoolVar(&f.newTLS, "new-tls", false, "call the new service with TLS, using the --tls-* files")
	s.StringVar(&f.tls.Cert, "tls-cert", "", "`file` of a certificate, reloaded when it changes")
	s.StringVar(&f.tls.Key, "tls-key", "", "`file` of its key")
	s.StringVar(&f.tls.CA, "tls-ca", "", "`file` of the CA of the other side")
	for _, name := range []string{"old", "new"} {
		_ = cmd.MarkFlagRequired(name) // the flag exists
	}
}

func (f *mirrorFlags) run(ctx context.Context, out, messages io.Writer) (err error) {
	if f.answer != "old" && f.answer != "new" {
		return fmt.Errorf("--answer %s: want old or new", f.answer)
	}
	f.options.AnswerNew = f.answer == "new"
	closeLog, err := f.openLog(messages)
	if err != nil {
		return err
	}
	defer closeLog()
	creds, err := f.credentials()
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	f.options.Registerer = reg
	m, err := mirror.New(f.options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if f.lasts > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.lasts)
		defer cancel()
	}
	if err := f.serve(ctx, m, m.NewServer(creds), reg); err != nil {
		return err
	}
	sum := m.Totals()
	return show(out, *f.format, &sum, sum.Text)
}

// serve serves until ctx ends or a listener fails.
func (f *mirrorFlags) serve(ctx context.Context, m *mirror.Mirror, g *grpc.Server, reg *prometheus.Registry) error {
	ln, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	failed := make(chan error, 2)
	go func() { failed <- g.Serve(ln) }()
	if f.metrics != "" {
		page, err := net.Listen("tcp", f.metrics)
		if err != nil {
			g.Stop()
			return fmt.Errorf("--metrics: %w", err)
		}
		h := &http.Server{Handler: mirrorPage(m, reg), ReadHeaderTimeout: 10 * time.Second}
		defer h.Close()
		go func() { failed <- h.Serve(page) }()
	}
	select {
	case err := <-failed:
		g.Stop()
		return err
	case <-ctx.Done():
	}
	force := time.AfterFunc(10*time.Second, g.Stop)
	defer force.Stop()
	g.GracefulStop()
	return nil
}

func mirrorPage(m *mirror.Mirror, reg *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthcheck", func(w http.ResponseWriter, r *http.Request) {
		if err := m.Healthy(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "OK") // the client may have disconnected
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		sum, format := m.Totals(), "text"
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if strings.Contains(r.Header.Get("Accept"), "application/json") {
			format = "json"
			w.Header().Set("Content-Type", "application/json")
		}
		w.Header().Set("Cache-Control", "no-store")
		_ = show(w, format, &sum, sum.Text) // the client may have disconnected
	})
	return mux
}

func (f *mirrorFlags) openLog(messages io.Writer) (closeLog func(), err error) {
	switch f.log {
	case "":
		return func() {}, nil
	case "-":
		f.options.Log = messages
		return func() {}, nil
	}
	file, err := os.OpenFile(f.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("--log: %w", err)
	}
	f.options.Log = file
	return func() { file.Close() }, nil
}

// credentials returns those of the listener, and sets those of the services in the options.
func (f *mirrorFlags) credentials() (door credentials.TransportCredentials, err error) {
	if f.oldTLS || f.newTLS {
		conf, err := certs.Client(f.tls, certs.ClientOptions{})
		if err != nil {
			return nil, err
		}
		if f.oldTLS {
			f.options.OldTLS = credentials.NewTLS(conf)
		}
		if f.newTLS {
			f.options.NewTLS = credentials.NewTLS(conf)
		}
	}
	if !f.listenTLS {
		return nil, nil
	}
	conf, err := certs.Server(f.tls, certs.ServerOptions{MinVersion: tls.VersionTLS12}) // Envoy's default maximum
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(conf), nil
}
