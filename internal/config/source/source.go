// Package source brings rules in from files or xDS and switches versions together with the other members.
//
// [WatchFiles] or [WatchXDS] reads -> each attempt is an [Event] -> [Versions] prepares what was read, says so to the
// others by gossip, puts it in force when every live member has it -> [Versions.Current] is what questions are matched
// against.
package source

import (
	"log/slog"

	"github.com/keyward/keyward/internal/config"
)

// Kinds of sources, as they stand in metrics and in the list of versions.
const (
	FromFiles = "files"
	FromXDS   = "xds"
)

// LoadResult is one attempt to bring rules in: Rules or Err is set.
type LoadResult struct {
	Rules  *config.Rules // what was read
	Err    error         // why nothing was: whatever is in force stays
	Source string        // [FromFiles] or [FromXDS]
	Detail string        // which directory or server
}

func loggerOr(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
