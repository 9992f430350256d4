package peer

import (
	"math"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
)

// Flags of how a federation uses its store.
const (
	flagStoreApproximate = 1
	flagStoreNamed       = 2
)

// storeRecordSize returns the bytes that a request's record has for its federation's store: none for most rules.
func storeRecordSize(q *owner.Request) int {
	if t := q.Federation; t == nil || t.Store == (federation.StoreTerms{}) && !t.Named {
		return 0
	}
	return storeSize + len(sharedName(q))
}

// sharedName returns the name of q's counter, or none if that is too long for a frame. The owner then refuses the request.
func sharedName(q *owner.Request) string {
	if len(q.Name) > maxSharedName {
		return ""
	}
	return q.Name
}

func appendStoreTerms(w wire.Writer, q *owner.Request) wire.Writer {
	if storeRecordSize(q) == 0 {
		return w
	}
	s, name := &q.Federation.Store, sharedName(q)
	milliseconds := func(d time.Duration) uint32 { return uint32(min(max(0, d.Milliseconds()), math.MaxUint32)) }
	w = w.U8(bit(s.Approximate, flagStoreApproximate) | bit(q.Federation.Named, flagStoreNamed)).U8(s.Watermark).U32(s.Slack)
	w = w.U32(milliseconds(s.Sync)).U32(s.LotMin).U32(s.LotMax).U32(milliseconds(s.Reclaim)).U16(uint16(len(name)))
	return append(w, name...)
}

// parseStoreTerms reads what appendStoreTerms has written into t, if it is present, and returns the counter's name.
func parseStoreTerms(r *wire.Reader, t *federation.RuleTerms) (name string) {
	if r.Len() < storeSize {
		return ""
	}
	flags := r.U8()
	t.Named = flags&flagStoreNamed != 0
	t.Store = federation.StoreTerms{
		Approximate: flags&flagStoreApproximate != 0, Watermark: min(r.U8(), 100), Slack: r.U32(),
		Sync: time.Duration(r.U32()) * time.Millisecond, LotMin: r.U32(), LotMax: r.U32(),
		Reclaim: time.Duration(r.U32()) * time.Millisecond,
	}
	if n := int(r.U16()); n <= min(maxSharedName, r.Len()) {
		name = string(r.Bytes(n))
	}
	return name
}
