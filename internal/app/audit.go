package app

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/audit"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
)

// startAudit opens the audit log. SIGHUP makes it open its file again.
func (m *sidecar) startAudit() (err error) {
	m.audit, err = audit.New(audit.Options{
		Target: m.Flags.AuditLog, Member: m.Flags.Node, Service: m.Settings.Tracing.Service, Logger: m.Log, Registerer: m.reg,
	})
	if err != nil || !audit.IsFile(m.Flags.AuditLog) {
		return err
	}
	renamed := make(chan os.Signal, 1)
	signal.Notify(renamed, syscall.SIGHUP)
	m.tasks.start(func(ctx context.Context) {
		defer signal.Stop(renamed)
		for {
			select {
			case <-renamed:
				m.audit.Reopen()
			case <-ctx.Done():
				return
			}
		}
	})
	return nil
}

// onAudit writes an audit record of a. It does not block.
func (m *sidecar) onAudit(a *owner.Audit) {
	r := audit.Record{
		Kind: a.Kind.String(), Domain: a.Name.Domain, Key: a.Name.Name, Digest: digestText(a.Key), Peer: string(a.Member),
		Hits: a.Hits, Used: a.Used, Limit: a.Limit,
	}
	if a.At != 0 {
		r.Time = time.Unix(0, a.At)
	}
	if a.Since != 0 {
		since := time.Unix(0, a.Since)
		r.Since = &since
	}
	m.audit.Add(r)
}

// onLostAudits counts audit records that could not be made.
func (m *sidecar) onLostAudits(n uint64) { m.audit.Lose(n) }

// auditReset writes an audit record of a reset of k, if its rule has audit logs.
func (m *sidecar) auditReset(k *limitedKey, entries []config.Entry, r *api.ResetResult) {
	if x := k.match.Extension().Lease; x == nil || !x.Audit {
		return
	}
	m.audit.Add(audit.Record{
		Kind: "reset", Domain: k.domain, Key: string(k.match.AppendName(nil, entries)),
		Digest: digestText(owner.Key(k.match.Digest)), Peer: r.Owner, Hits: r.Before - min(r.Before, r.After), Used: r.After,
		Limit: k.match.Limit.Depth(),
	})
}

// digestText returns a key's digest as it is shown to operators.
func digestText(k owner.Key) string { return fmt.Sprintf("%016x%016x", k[0], k[1]) }
