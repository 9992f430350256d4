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

// watchRules reads rules from where the environment says, until ctx ends.
func watchRules(ctx context.Context, c settings.Config, options func() config.Options, log *slog.Logger, offer func(source.LoadResult)) error {
	switch c.Type {
	case "FILE":
		o := source.FileOptions{
			Root: c.Root, Subdirectory: c.Subdirectory, AppDirectory: c.AppDirectory, WatchRoot: c.WatchRoot, IgnoreDotFiles: c.IgnoreDotFiles,
			Config: options, Logger: log,
		}
		go source.WatchFiles(ctx, o, offer)
		return nil
	case "GRPC_XDS_SOTW":
		x := c.XDS
		o := source.XDSOptions{
			Server: x.Server, NodeID: x.NodeID, NodeMetadata: pairs(x.NodeMetadata), Headers: x.Headers, ConnectRetry: x.RetryInterval,
			Backoff:    source.Backoff{Initial: x.BackoffInitial, Max: x.BackoffMax, Factor: x.BackoffRandom, Steady: !x.BackoffJitter},
			MaxMessage: x.MaxMessage, TLS: x.UseTLS, Files: certs.Files{Cert: x.Cert, Key: x.Key, CA: x.CA}, ServerName: x.ServerSAN,
			Config: options, Logger: log,
		}
		go func() {
			if err := source.WatchXDS(ctx, o, offer); err != nil {
				log.Error("no rules will come", "error", err)
				offer(source.LoadResult{Err: err, Source: source.FromXDS, Detail: x.Server})
			}
		}()
		return nil
	default:
		return fmt.Errorf("CONFIG_TYPE=%q: want FILE or GRPC_XDS_SOTW", c.Type)
	}
}

// pairs reads key=value,key=value.
func pairs(s string) map[string]string {
	m := map[string]string{}
	for part := range strings.SplitSeq(s, ",") {
		if k, v, ok := strings.Cut(part, "="); ok {
			m[k] = v
		}
	}
	return m
}
