package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/keyward/keyward/internal/settings"
)

// Version is set by the linker (-ldflags "-X github.com/keyward/keyward/internal/app.Version=v1.2.3").
var Version = "dev"

// logger returns a logger that writes text or JSON to w.
func logger(w io.Writer, s settings.ServerSettings) *slog.Logger {
	o := &slog.HandlerOptions{Level: s.LogLevel}
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// Setup is the configuration and the logger of a process.
type Setup struct {
	Flags    flags
	Settings settings.Settings
	Getenv   settings.Getenv
	Log      *slog.Logger
}

// Program is a command: cmd/sidecar or cmd/xds.
type Program struct {
	Name, About string                   // for --help
	Defaults    func(*settings.Settings) // changes the defaults of variables that are not set; nil: none
	Run         func(ctx context.Context, p Setup) error
}

// Main parses the command line, runs the program until SIGTERM or SIGINT, and returns the exit code. A second signal
// ends the process at once.
func (p Program) Main(args []string) int {
	if asksVersion(args) {
		printVersion(p.Name)
		return 0
	}
	f, err1 := Parse(p.Name, p.About, args, os.Getenv)
	if errors.Is(err1, pflag.ErrHelp) {
		return 0
	}
	s, err2 := settings.Read(os.LookupEnv)
	if err := errors.Join(err1, err2); err != nil {
		fmt.Fprintf(os.Stderr, "%s: cannot start:\n%v\n", p.Name, err)
		return 1
	}
	if p.Defaults != nil {
		p.Defaults(&s)
	}
	log := logger(os.Stderr, s.Server)
	ctx, cancel := untilSignal(log)
	defer cancel()
	if err := p.Run(ctx, Setup{f, s, os.LookupEnv, log}); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		return 1
	}
	return 0
}

// asksVersion reports whether the command line contains the flag --version.
func asksVersion(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--version")
}

// printVersion prints the version as keyward --version does.
func printVersion(program string) { fmt.Printf("%s version %s\n", program, Version) } //nolint:forbidigo // this is the output that was asked for

// untilSignal returns a context that ends at SIGTERM or SIGINT. A second signal ends the process at once.
func untilSignal(log *slog.Logger) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		log.Info("shutdown requested", "signal", (<-signals).String())
		cancel()
		log.Error("second signal; exiting at once", "signal", (<-signals).String())
		os.Exit(1)
	}()
	return ctx, cancel
}
