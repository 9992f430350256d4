package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/keyward/keyward/internal/settings"
)

// Version is set by the linker (-ldflags "-X github.com/keyward/keyward/internal/app.Version=v1.2.3").
var Version = "dev"

// logger writes text or JSON to w.
func logger(w io.Writer, s settings.ServerSettings) *slog.Logger {
	o := &slog.HandlerOptions{Level: s.LogLevel}
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// Program is what cmd/sidecar and cmd/xds run: name and about are for --help.
type Program struct {
	Name, About string
	Defaults    func(*settings.Settings) // what differs from the original when its variables are not set
	Run         func(ctx context.Context, f flags, s settings.Settings, getenv settings.Getenv, log *slog.Logger) error
}

// Main parses, runs until SIGTERM or SIGINT and returns the exit code. A second signal ends at once.
func (p Program) Main(args []string) int {
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
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		log.Info("told to end", "signal", (<-signals).String())
		cancel()
		log.Error("told to end a second time: ending at once", "signal", (<-signals).String())
		os.Exit(1)
	}()
	if err := p.Run(ctx, f, s, os.LookupEnv, log); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		return 1
	}
	return 0
}
