package app

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/keyward/keyward/internal/audit"
	"github.com/keyward/keyward/owner"
)

// startAudit opens the audit log. SIGHUP makes it open its file again.
func (m *sidecar) startAudit() (err error) {
	m.audit, err = audit.New(audit.Options{
		Target: m.Flags.AuditLog, Member: m.Flags.Node, Service: m.Settings.Tracing.Service, Logger: m.Log, Registerer: m.reg,
	})
	if err != nil || m.Flags.AuditLog == "stdout" || m.Flags.AuditLog == "otlp" {
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
		Kind: a.Kind.String(), Key: cmp.Or(a.Name, digestText(a.Key)), Peer: string(a.Member), Hits: a.Hits, Used: a.Used,
		Limit: a.Limit,
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

// auditReset writes an audit record of a reset of k, if its rule has audit logs.
func (m *sidecar) auditReset(k *limitedKey, q *owner.Request, before, after uint64) {
	if q.LeaseTerms == nil || !q.LeaseTerms.Audit {
		return
	}
	m.audit.Add(audit.Record{
		Kind: "reset", Key: k.match.Rule.FullKey, Peer: string(m.ownerOf(k.match.Owner)), Hits: before - min(before, after),
		Used: after, Limit: q.Rule.Depth(),
	})
}

// digestText returns a key's digest as it is shown to operators.
func digestText(k owner.Key) string { return fmt.Sprintf("%016x%016x", k[0], k[1]) }
