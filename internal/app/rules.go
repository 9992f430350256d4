package app

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/config/source"
	"github.com/keyward/keyward/internal/settings"
)

// ruleSource is where rules come from.
type ruleSource struct {
	config  settings.RuleSourceSettings
	options func() config.Options // read for each load
	log     *slog.Logger
	offer   func(source.LoadResult) // called after each load
}

// watch loads the rules, and loads them again when they change, as one of the tasks.
func (r *ruleSource) watch(t *tasks) error {
	c := r.config
	switch c.Type {
	case "FILE":
		o := source.FileOptions{
			Root: c.Root, Subdirectory: c.Subdirectory, AppDirectory: c.AppDirectory, WatchRoot: c.WatchRoot, IgnoreDotFiles: c.IgnoreDotFiles,
			Config: r.options, Logger: r.log,
		}
		t.start(func(ctx context.Context) { source.WatchFiles(ctx, o, r.offer) })
		return nil
	case "GRPC_XDS_SOTW":
		x := c.XDS
		o := source.XDSOptions{
			Server: x.Server, NodeID: x.NodeID, NodeMetadata: pairs(x.NodeMetadata), Headers: x.Headers, ConnectRetry: x.RetryInterval,
			Backoff:    source.Backoff{Initial: x.BackoffInitial, Max: x.BackoffMax, Factor: x.BackoffRandom, Steady: !x.BackoffJitter},
			MaxMessage: x.MaxMessage, TLS: x.UseTLS, Files: certs.Files{Cert: x.Cert, Key: x.Key, CA: x.CA}, ServerName: x.ServerSAN,
			Config: r.options, Logger: r.log,
		}
		t.start(func(ctx context.Context) {
			if err := source.WatchXDS(ctx, o, r.offer); err != nil {
				r.log.Error("xDS is not configured to deliver rules", "error", err)
				r.offer(source.LoadResult{Err: err, Source: source.FromXDS, Detail: x.Server})
			}
		})
		return nil
	default:
		return fmt.Errorf("CONFIG_TYPE=%q: want FILE or GRPC_XDS_SOTW", c.Type)
	}
}

// pairs parses key=value,key=value.
func pairs(s string) map[string]string {
	m := map[string]string{}
	for part := range strings.SplitSeq(s, ",") {
		if k, v, ok := strings.Cut(part, "="); ok {
			m[k] = v
		}
	}
	return m
}
