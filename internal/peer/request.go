package peer

import (
	"fmt"
	"math"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
)

// requestGroup is the head of a request frame.
type requestGroup struct {
	id    uint64
	sent  int64         // the requester's monotonic clock
	ttl   time.Duration // how long the requester waits, in microseconds on the wire
	stop  bool          // all-or-nothing
	count int
}

// appendRequests appends one frame with the requests of qs that index selects.
func appendRequests(b []byte, g requestGroup, reqs []owner.Request, index []uint16) []byte {
	w, at := beginFrame(b, frameRequest)
	w = appendRequestHead(w, &g)
	for _, i := range index {
		w = appendRequest(w, &reqs[i])
	}
	w.EndLen32(at)
	return w
}

func appendRequestHead(w wire.Writer, g *requestGroup) wire.Writer {
	micros := uint32(min(max(g.ttl.Microseconds(), 0), math.MaxUint32))
	return w.U64(g.id).I64(g.sent).U32(micros).U8(bit(g.stop, flagStop)).U16(uint16(g.count))
}

// parseRequestHead reads the head of a request frame. The records follow it in r.
func parseRequestHead(r *wire.Reader) (g requestGroup, err error) {
	g.id, g.sent = r.U64(), r.I64()
	g.ttl = time.Duration(r.U32()) * time.Microsecond
	g.stop = r.U8()&flagStop != 0
	g.count = int(r.U16())
	if err := r.Err(); err != nil {
		return g, err
	}
	if g.count == 0 || g.count > maxRequests || r.Len() < g.count*recordHead {
		return g, errCount
	}
	return g, nil
}

func appendRequest(b []byte, q *owner.Request) []byte {
	flags, mechanism := requestFlags(q)
	size := requestSize
	switch {
	case q.Hold != nil:
		size += requestExtraSize + tenantSize + holdSize
	case q.Federation != nil:
		size += requestExtraSize + tenantSize + federationSize + storeRecordSize(q)
	case q.Tenant != 0:
		size += requestExtraSize + tenantSize
	case q.HotFactor > 0:
		size += requestExtraSize
	case flags != 0:
		size++
	}
	w := wire.Writer(b).U16(uint16(size))
	w = w.U64(q.Key[0]).U64(q.Key[1]).U64(q.RingPos).U64(q.Domain).U64(q.Rules).U64(q.Hits)
	w = w.I64(int64(q.Rule.Window)).U32(q.Rule.Limit).U32(q.Rule.Burst).U32(q.LocalCap)
	w = append(w, byte(q.Rule.Algorithm), byte(q.Op), mechanism, byte(q.Degraded))
	if size > requestSize {
		w = w.U8(flags)
	}
	if size >= requestSize+requestExtraSize {
		w = w.U16(q.HotFactor)
	}
	if size >= requestSize+requestExtraSize+tenantSize {
		w = w.U64(q.Tenant).U32(q.TenantWeight)
	}
	if q.Hold != nil {
		return appendHold(w, q.Hold)
	}
	if t := q.Federation; t != nil {
		w = w.U32(t.Authority).U8(t.Floor).U8(byte(t.Outage)).U32(uint32(min(t.Batch.Milliseconds(), math.MaxUint32)))
		w = appendStoreTerms(w, q)
	}
	return w
}

func requestFlags(q *owner.Request) (flags, mechanism byte) {
	flags = bit(q.Strict, flagStrict) | byte(q.Partition)<<partitionShift | bit(q.Audit, flagAudit) |
		bit(q.Volatile, flagVolatile) | bit(q.Hold != nil, flagHold)
	switch q.Mechanism {
	case policy.ByOwner:
	case policy.ByLease:
		flags |= flagByLease
	case policy.Approximate:
		flags |= flagApproximate
	default:
		mechanism = byte(q.Mechanism)
	}
	return flags, mechanism
}

// parseRequest reads one record into q. It returns the outcome of the group if the request cannot be served.
func parseRequest(r wire.Reader, q *owner.Request) (outcome byte, err error) {
	*q = owner.Request{}
	q.Key[0], q.Key[1] = r.U64(), r.U64()
	q.RingPos, q.Domain = r.U64(), r.U64()
	q.Rules, q.Hits = r.U64(), r.U64()
	q.Rule.Window = time.Duration(r.I64())
	q.Rule.Limit, q.Rule.Burst, q.LocalCap = r.U32(), r.U32(), r.U32()
	q.Rule.Algorithm, q.Op = limit.Algorithm(r.U8()), owner.Op(r.U8())
	q.Mechanism, q.Degraded = policy.Mechanism(r.U8()), policy.Degraded(r.U8())
	if err := r.Err(); err != nil {
		return groupMalformed, err
	}
	if !supported(q) {
		return groupUnknownAlgorithm, nil
	}
	parseRequestExtra(&r, q)
	if q.Op > owner.Read && q.Hold == nil {
		return groupMalformed, nil
	}
	if invalid := q.Rule.Validate(); invalid != nil {
		return groupMalformed, nil //nolint:nilerr // the reply reports the error, and the stream continues
	}
	return groupServed, nil
}

// parseRequestExtra reads the fields that version 2 appended to a request's record, if they are present.
func parseRequestExtra(r *wire.Reader, q *owner.Request) {
	if r.Len() == 0 {
		return
	}
	flags := r.U8()
	q.Strict, q.Partition = flags&flagStrict != 0, policy.PartitionChoice(flags>>partitionShift&3)
	q.Audit, q.Volatile = flags&flagAudit != 0, flags&flagVolatile != 0
	switch {
	case flags&flagByLease != 0:
		q.Mechanism = policy.ByLease
	case flags&flagApproximate != 0:
		q.Mechanism = policy.Approximate
	}
	if r.Len() >= 2 {
		q.HotFactor = r.U16()
	}
	if r.Len() >= tenantSize {
		q.Tenant, q.TenantWeight = r.U64(), r.U32()
	}
	if flags&flagHold != 0 {
		if r.Len() >= holdSize {
			q.Hold = parseHold(r)
		}
		return
	}
	if r.Len() < federationSize {
		return
	}
	t := federation.RuleTerms{
		Authority: r.U32(), Floor: min(r.U8(), 100), Outage: federation.Outage(r.U8()),
		Batch: time.Duration(r.U32()) * time.Millisecond,
	}
	q.Name = parseStoreTerms(r, &t)
	if t != (federation.RuleTerms{}) {
		q.Federation = &t
	}
}

// supported reports whether this build can decide q, of which the fields of version 1 have been read.
func supported(q *owner.Request) bool {
	return q.Rule.Algorithm < 64 && knownAlgorithms>>q.Rule.Algorithm&1 != 0 &&
		q.Op <= owner.Extend && q.Mechanism == policy.ByOwner
}

// replyHead is the head of a reply frame.
type replyHead struct {
	id      uint64 // of the group
	outcome byte
	count   int
}

// appendReplyHead begins a reply frame. After the records, w.EndLen32(at) completes it.
func appendReplyHead(b []byte, h replyHead) (w wire.Writer, at int) {
	w, at = beginFrame(b, frameReply)
	return w.U64(h.id).U8(h.outcome).U16(uint16(h.count)), at
}

// appendReply appends one frame with the results of a group that was served.
func appendReply(b []byte, id uint64, results []owner.Result) []byte {
	w, at := appendReplyHead(b, replyHead{id, groupServed, len(results)})
	for i := range results {
		w = appendResult(w, &results[i])
	}
	w.EndLen32(at)
	return w
}

// parseReplyHead reads the head of a reply frame. The records follow it in r.
func parseReplyHead(r *wire.Reader) (h replyHead, err error) {
	h = replyHead{id: r.U64(), outcome: r.U8(), count: int(r.U16())}
	if err := r.Err(); err != nil {
		return h, err
	}
	if r.Len() < h.count*recordHead {
		return h, errCount
	}
	return h, nil
}

// appendResult appends a decision. Every other result is encoded as "not the owner" with the member to forward to.
func appendResult(b []byte, a *owner.Result) []byte {
	w := wire.Writer(b)
	if a.Kind != owner.Decided {
		w = w.U16(uint16(2 + min(len(a.Member), maxID))).U8(statusNotOwner)
		return appendID(w, a.Member)
	}
	flags := bit(a.Over, flagOver) | bit(a.Hot, flagHot) | bit(a.FairShare, flagFair)
	set, held := a.ReadReset > 0, a.Holds > 0
	size := resultSize
	if set {
		size += setResultSize
	}
	if held {
		size += heldSize
	}
	flags |= bit(set, flagSetRead) | bit(held, flagHeld)
	w = append(w.U16(uint16(size)), statusDecided, byte(a.Authority), flags, 0)
	w = w.U64(a.Before).U64(a.After).I64(int64(a.Reset)).U32(a.Remaining)
	if set {
		w = w.I64(int64(a.ReadReset)).U32(a.ReadRemaining)
	}
	if held {
		w = w.U32(a.Holds).U64(a.Held)
	}
	return w
}

// parseResult reads one record into a.
func parseResult(r wire.Reader, a *owner.Result) error {
	switch status := r.U8(); status {
	case statusDecided:
		*a = owner.Result{Kind: owner.Decided, Path: owner.Forwarded}
		a.Authority = authority(r.U8())
		flags := r.U8()
		a.Over, a.Hot, a.FairShare = flags&flagOver != 0, flags&flagHot != 0, flags&flagFair != 0
		r.U8() // reserved
		a.Before, a.After = r.U64(), r.U64()
		a.Reset, a.Remaining = readDuration(&r), r.U32()
		if flags&flagSetRead != 0 && r.Len() >= setResultSize {
			a.ReadReset, a.ReadRemaining = readDuration(&r), r.U32()
		}
		if flags&flagHeld != 0 && r.Len() >= heldSize {
			a.Holds, a.Held = r.U32(), r.U64()
		}
	case statusNotOwner:
		*a = owner.Result{Kind: owner.Forward, Member: readID(&r)}
	default:
		return fmt.Errorf("unknown result status %d", status)
	}
	return r.Err()
}

// authority returns the authority that b encodes. Values of later versions are decisions by the owner, so they count as
// Full.
func authority(b byte) owner.Authority {
	if a := owner.Authority(b); a <= owner.Cached || a == owner.Escrow {
		return a
	}
	return owner.Full
}

// readDuration reads a length of time. Negative values are read as 0.
func readDuration(r *wire.Reader) time.Duration { return max(0, time.Duration(r.I64())) }
