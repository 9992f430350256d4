package owner

import (
	"time"

	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/lending"
	"github.com/keyward/keyward/ring"
)

const (
	// maxDegradedKeys is the number of keys with audit logs of one shard whose degraded decisions are recorded.
	maxDegradedKeys = 1024
	// degradedIdle is how long after a degraded decision it is taken for the last one.
	degradedIdle = int64(10 * time.Second)
)

// Audit describes an event of a key whose rule has audit logs.
type Audit = lending.Audit

// TakeAudits returns the Audits that no Ready has returned, and how many were lost. It ends all windows with decisions
// without the owner. A driver calls it last.
func (n *Node) TakeAudits(now int64) (audits []Audit, lost uint64) {
	var out lending.Outbox
	for i := range n.shards {
		s := &n.shards[i]
		s.mu.Lock()
		s.endDegraded(s.clock(now), true)
		s.leases.TakeAudits(&out)
		s.mu.Unlock()
	}
	return out.Audits, out.LostAudits
}

// auditTransfer adds an Audit of the counter e, which this member sends to its key's new owner, if its rule has audit
// logs.
func (s *shard) auditTransfer(now int64, e *counter.Owned, to ring.ID) {
	if s.counters.Audited(e) {
		s.auditMove(now, e, Audit{Kind: lending.AuditTransfer, Member: to})
	}
}

// auditTakeover adds an Audit if this member decides op, whose counter is e, because the key's owner has failed. It is
// called for the first decision since the key came here.
func (s *shard) auditTakeover(op *shardOp, e *counter.Owned) {
	if len(s.view.changes) == 0 {
		return
	}
	r := s.counters.Rule(e)
	end := s.counters.End(e, r)
	if end <= op.now {
		return
	}
	if failed := s.view.failedOwner(op.RingPos, startOf(r, end)); failed != "" {
		s.auditMove(op.now, e, Audit{Kind: lending.AuditTakeover, Member: failed})
	}
}

// auditMove adds a, of the key of e, with its count at now.
func (s *shard) auditMove(now int64, e *counter.Owned, a Audit) {
	r := s.counters.Rule(e)
	s.counters.Load(e, r, &s.state)
	a.Key, a.Used, a.Limit, a.At = e.Key(), r.Used(&s.state, now), r.Depth(), now
	s.leases.AddAudit(a)
}

// failedOwner returns the member that owned the key at ringPos, and whose failure has changed the ring, if the window
// that began at start may be affected. It returns the one of the latest such change, or "".
func (v *view) failedOwner(ringPos uint64, start int64) ring.ID {
	for i := range v.changes {
		c := &v.changes[i]
		if o := c.ring.Owner(ringPos); start < c.settled && o >= 0 && o != c.self && c.crashed[o] {
			return c.ring.At(o).ID
		}
	}
	return ""
}

// degradedWindow is the decisions without the owner in one window of a key with audit logs.
type degradedWindow struct {
	first, last, end int64
	hits             uint64 // admitted
	limit            uint32
}

// auditDegraded records a decision by a degraded policy. Above maxDegradedKeys, it counts a lost Audit instead.
func (s *shard) auditDegraded(op *shardOp, res *Result) {
	w := s.degraded[op.Key]
	if w != nil && w.end <= op.now {
		s.endDegradedWindow(op.Key, w)
		w = nil
	}
	if w == nil {
		if len(s.degraded) >= maxDegradedKeys {
			s.leases.LoseAudit()
			return
		}
		if s.degraded == nil {
			s.degraded = map[Key]*degradedWindow{}
		}
		r := op.Request.Rule
		w = &degradedWindow{first: op.now, end: r.End(r.Index(op.now)), limit: r.Depth()}
		s.degraded[op.Key] = w
		s.leases.AddAudit(Audit{Key: op.Key, Kind: lending.AuditDegradedFirst, Limit: w.limit, At: op.now})
	}
	if w.last = op.now; !res.Over {
		w.hits += op.Hits
	}
}

// endDegraded ends the windows that have had their last decision: those that have ended, and those without a decision
// for degradedIdle; a later one in the same window begins a new record. With all, it ends every window.
func (s *shard) endDegraded(now int64, all bool) {
	if len(s.degraded) == 0 {
		return
	}
	for _, key := range counter.SortedKeys(s.degraded) {
		if w := s.degraded[key]; all || w.end <= now || now-w.last >= degradedIdle {
			s.endDegradedWindow(key, w)
		}
	}
}

// endDegradedWindow adds the Audit of the last decision of w and drops it.
func (s *shard) endDegradedWindow(key Key, w *degradedWindow) {
	s.leases.AddAudit(Audit{
		Key: key, Kind: lending.AuditDegradedLast, Hits: w.hits, Limit: w.limit, At: w.last, Since: w.first,
	})
	delete(s.degraded, key)
}
