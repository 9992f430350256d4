package owner

import (
	"time"

	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/owner/internal/lending"
)

const (
	// maxDegradedKeys is the number of keys with audit logs of one shard whose degraded decisions are recorded.
	maxDegradedKeys = 1024
	// degradedIdle is how long after a degraded decision it is taken for the last one.
	degradedIdle = int64(10 * time.Second)
)

// degradedWindows records which windows of keys with audit logs had decisions without the owner. The shard's mu guards
// it. The zero value is empty.
type degradedWindows struct {
	keys   map[Key]*degradedWindow
	audits []Audit // the first decisions, until take
}

// degradedWindow is the decisions without the owner in one window of a key.
type degradedWindow struct {
	first, last, end int64
	hits             uint64 // admitted
	limit            uint32
}

// record records a decision by a degraded policy.
func (d *degradedWindows) record(op *shardOp, res *Result) {
	w := d.keys[op.Key]
	if w != nil && w.end <= op.now {
		d.finish(op.Key, w)
		w = nil
	}
	if w == nil {
		if len(d.keys) >= maxDegradedKeys {
			return
		}
		if d.keys == nil {
			d.keys = map[Key]*degradedWindow{}
		}
		r := op.Request.Rule
		w = &degradedWindow{first: op.now, end: r.End(r.Index(op.now)), limit: r.Depth()}
		d.keys[op.Key] = w
		d.audits = append(d.audits, Audit{Key: op.Key, Kind: lending.AuditDegradedFirst, Limit: w.limit, At: op.now})
	}
	if w.last = op.now; !res.Over {
		w.hits += op.Hits
	}
}

// finish adds the Audit of the last decision of w and drops it.
func (d *degradedWindows) finish(key Key, w *degradedWindow) {
	d.audits = append(d.audits, Audit{
		Key: key, Kind: lending.AuditDegradedLast, Hits: w.hits, Limit: w.limit, At: w.last, Since: w.first,
	})
	delete(d.keys, key)
}

// take appends the Audits since the last call to all. A window has had its last decision when it has ended, or when
// there was none for degradedIdle; a later one in the same window begins a new record.
func (d *degradedWindows) take(now int64, all []Audit) []Audit {
	if len(d.keys) > 0 {
		for _, key := range counter.SortedKeys(d.keys) {
			if w := d.keys[key]; w.end <= now || now-w.last >= degradedIdle {
				d.finish(key, w)
			}
		}
	}
	all = append(all, d.audits...)
	d.audits = d.audits[:0]
	return all
}
