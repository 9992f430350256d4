package lending

import "github.com/keyward/keyward/ring"

// AuditKind is the kind of event that an Audit describes.
type AuditKind uint8

// The kinds.
const (
	AuditGrant         AuditKind = iota // hits lent to Member
	AuditReport                         // hits of an approximate rule that Member has reported
	AuditReclaim                        // hits of silent or failed holders that are lent again
	AuditTransfer                       // this member has released the key to its new owner, Member
	AuditTakeover                       // this member decides the key, because its owner, Member, has failed
	AuditDegradedFirst                  // the first decision of a window without the owner
	AuditDegradedLast                   // the last decision of a window without the owner; Hits were admitted since Since
)

// String returns the name of k in audit records.
func (k AuditKind) String() string {
	names := [...]string{"lease", "report", "reclaim", "transfer", "takeover", "degraded_first", "degraded_last"}
	if int(k) < len(names) {
		return names[k]
	}
	return "unknown"
}

// Audit describes an event of a key whose rule has audit logs.
type Audit struct {
	Key    Key
	Name   KeyName // empty if it is not known
	Kind   AuditKind
	Member ring.ID // the other member; empty if there is none
	Hits   uint64  // granted, reported, reclaimed or admitted
	Used   uint64  // the count then
	Limit  uint32
	At     int64 // time of the event; 0: now
	Since  int64 // AuditDegradedLast: time of the first decision
}

// maxAudits is the number of Audits of one shard that wait for TakeAudits. More are lost, and counted.
const maxAudits = 1024

// auditQueue holds the Audits of events without an Outbox, until TakeAudits. The zero value is empty.
type auditQueue struct {
	waiting []Audit
	lost    uint64 // since the last TakeAudits
}

// AddAudit adds x, which TakeAudits returns.
func (l *Leases) AddAudit(x Audit) {
	q := &l.audits
	if len(q.waiting) >= maxAudits {
		q.lost++
		return
	}
	if m := l.names[x.Key]; m != nil {
		x.Name = m.KeyName
	}
	q.waiting = append(q.waiting, x)
}

// LoseAudit counts an Audit that could not be made.
func (l *Leases) LoseAudit() { l.audits.lost++ }

// TakeAudits appends the Audits since the last call to those of out, and adds how many were lost.
func (l *Leases) TakeAudits(out *Outbox) {
	out.Audits = append(out.Audits, l.audits.waiting...)
	out.LostAudits += l.audits.lost
	l.audits = auditQueue{}
}

// auditGrant adds an Audit of op to out if its rule requires it.
func (l *Leases) auditGrant(op *grantOp, hits, count uint64, out *Outbox) {
	if !op.Terms.Audit {
		return
	}
	x := Audit{Key: op.Key, Member: op.from.ID, Hits: hits, Used: count, Limit: op.Rule.Depth()}
	if op.Terms.Slack > 0 {
		x.Kind = AuditReport
	}
	if m := l.names[op.Key]; m != nil {
		x.Name = m.KeyName
	}
	out.Audits = append(out.Audits, x)
}
