// Package source loads rules from files or xDS and switches versions together with the other members.
//
// [WatchFiles] or [WatchXDS] reports each attempt to load rules as a [LoadResult] to [Versions]. Versions announces the
// new rules by gossip, and activates them when every live member has them. [Versions.Current] returns the active rules.
package source

import (
	"log/slog"

	"github.com/keyward/keyward/internal/config"
)

// Kinds of sources, as shown in metrics and in the list of versions.
const (
	FromFiles = "files"
	FromXDS   = "xds"
)

// LoadResult is the result of one attempt to load rules: either Rules or Err is set.
type LoadResult struct {
	Rules  *config.Rules // the loaded rules
	Err    error         // why the attempt failed; the active rules stay in force
	Source string        // [FromFiles] or [FromXDS]
	Detail string        // the directory or server
}

func loggerOr(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
