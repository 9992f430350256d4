package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// The layout of everything here is PROTOCOL.md's, and is pinned by the golden files in testdata.

const (
	maxFrame    = 128 << 10 // bytes of a frame's type and payload
	maxRequests = 256       // questions of one group
	maxID       = 128       // bytes of a ring.ID, as Envoy can bear
)

// Frame types.
const (
	frameRequest = 1
	frameReply   = 2
	framePing    = 3
	framePong    = 4
	frameHello   = 16
	frameWelcome = 17
)

// Outcomes of a group, as an answer frame states them.
const (
	groupServed           = 0
	groupLate             = 1 // it waited longer than its asker does; nothing was charged
	groupMalformed        = 2 // a field has an impossible value; nothing was charged
	groupUnknownAlgorithm = 3 // an algorithm, mechanism or operation of a later version; nothing was charged
)

// Statuses of an answer record.
const (
	statusDecided  = 0
	statusNotOwner = 1
)

// Sizes of this version's records and heads. Later versions may only append.
const (
	frameHead        = 5 // length, type
	requestHeadSize  = 23
	replyHeadSize    = 11
	requestSize      = 72 // a flags byte follows when one is set, and a hot factor when the rule has one
	requestExtraSize = 3  // bytes of these
	resultSize       = 32
	recordHead       = 2
)

// flagStop marks a group whose questions are charged all or, when some would go over, only those.
const flagStop = 1

// Flags of a question. The mechanisms are flags, and not numbers in the field that version 1 has for them, because an
// owner that knows none but its own decides such questions as rightly as all others.
const (
	flagStrict      = 1 // answered only when its charge is in two members' memory
	flagByLease     = 2
	flagApproximate = 4
)

// Flags of an answer.
const (
	flagOver = 1 // the hits do not fit
	flagHot  = 2 // the key is hot or leased
)

// knownAlgorithms is the bit set of what this build decides; fixedWindows is what version 1 did.
const (
	fixedWindows    = 1 << limit.FixedWindow
	knownAlgorithms = 1<<limit.FixedWindow | 1<<limit.SlidingWindow | 1<<limit.SlidingLog | 1<<limit.TokenBucket | 1<<limit.LeakyBucket
)

var (
	errShort    = errors.New("truncated")
	errTooLong  = errors.New("frame too long")
	errTrailing = errors.New("count does not fit the frame")
)

var le = binary.LittleEndian

// beginFrame appends a frame's head; endFrame writes its length once the payload stands behind it.
func beginFrame(b []byte, typ byte) (_ []byte, at int) {
	return append(b, 0, 0, 0, 0, typ), len(b)
}

func endFrame(b []byte, at int) { le.PutUint32(b[at:], uint32(len(b)-at-4)) }

// nextFrame splits the first frame off b. A frame that has not arrived whole is ok == false.
func nextFrame(b []byte) (typ byte, payload, rest []byte, ok bool, err error) {
	if len(b) < 4 {
		return 0, nil, b, false, nil
	}
	n := le.Uint32(b)
	if n == 0 || n > maxFrame {
		return 0, nil, b, false, fmt.Errorf("%w: %d bytes", errTooLong, n)
	}
	if uint64(len(b)) < 4+uint64(n) {
		return 0, nil, b, false, nil
	}
	return b[4], b[5 : 4+n], b[4+n:], true, nil
}

// nextRecord splits the first length-prefixed record off b.
func nextRecord(b []byte) (record, rest []byte, err error) {
	if len(b) < recordHead {
		return nil, nil, errShort
	}
	n := int(le.Uint16(b))
	if len(b) < recordHead+n {
		return nil, nil, errShort
	}
	return b[recordHead : recordHead+n], b[recordHead+n:], nil
}

// requestGroup is the head of an ask frame.
type requestGroup struct {
	id    uint64
	sent  int64         // the asker's monotonic clock
	ttl   time.Duration // how long the asker waits; whole microseconds
	stop  bool
	count int
}

func appendRequestHead(b []byte, g requestGroup) []byte {
	b = le.AppendUint64(b, g.id)
	b = le.AppendUint64(b, uint64(g.sent))
	b = le.AppendUint32(b, uint32(min(max(g.ttl.Microseconds(), 0), math.MaxUint32)))
	var flags byte
	if g.stop {
		flags |= flagStop
	}
	b = append(b, flags)
	return le.AppendUint16(b, uint16(g.count))
}

func parseRequestHead(b []byte) (g requestGroup, records []byte, err error) {
	if len(b) < requestHeadSize {
		return g, nil, errShort
	}
	g = requestGroup{
		id:    le.Uint64(b),
		sent:  int64(le.Uint64(b[8:])),
		ttl:   time.Duration(le.Uint32(b[16:])) * time.Microsecond,
		stop:  b[20]&flagStop != 0,
		count: int(le.Uint16(b[21:])),
	}
	if g.count == 0 || g.count > maxRequests || len(b)-requestHeadSize < g.count*recordHead {
		return g, nil, errTrailing
	}
	return g, b[requestHeadSize:], nil
}

func appendRequest(b []byte, q *owner.Request) []byte {
	flags, mechanism := requestFlags(q)
	size := requestSize
	switch {
	case q.HotFactor > 0:
		size += requestExtraSize
	case flags != 0:
		size++
	}
	b = le.AppendUint16(b, uint16(size))
	b = le.AppendUint64(b, q.Key[0])
	b = le.AppendUint64(b, q.Key[1])
	b = le.AppendUint64(b, q.RingPos)
	b = le.AppendUint64(b, q.Domain)
	b = le.AppendUint64(b, q.Rules)
	b = le.AppendUint64(b, q.Hits)
	b = le.AppendUint64(b, uint64(q.Rule.Window))
	b = le.AppendUint32(b, q.Rule.Limit)
	b = le.AppendUint32(b, q.Rule.Burst)
	b = le.AppendUint32(b, q.LocalCap)
	b = append(b, byte(q.Rule.Algorithm), byte(q.Op), mechanism, byte(q.Degraded))
	if size > requestSize {
		b = append(b, flags)
	}
	if q.HotFactor > 0 {
		b = le.AppendUint16(b, q.HotFactor)
	}
	return b
}

func requestFlags(q *owner.Request) (flags, mechanism byte) {
	if q.Strict {
		flags = flagStrict
	}
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

// parseRequest reads one record into q, and says with what the group is to be answered if it cannot be served.
func parseRequest(b []byte, q *owner.Request) (outcome byte, err error) {
	if len(b) < requestSize {
		return groupMalformed, errShort
	}
	*q = owner.Request{
		Key:     owner.Key{le.Uint64(b), le.Uint64(b[8:])},
		RingPos: le.Uint64(b[16:]),
		Domain:  le.Uint64(b[24:]),
		Rules:   le.Uint64(b[32:]),
		Hits:    le.Uint64(b[40:]),
		Rule: limit.Rule{
			Window:    time.Duration(le.Uint64(b[48:])),
			Limit:     le.Uint32(b[56:]),
			Burst:     le.Uint32(b[60:]),
			Algorithm: limit.Algorithm(b[68]),
		},
		LocalCap:  le.Uint32(b[64:]),
		Op:        owner.Op(b[69]),
		Mechanism: policy.Mechanism(b[70]),
		Degraded:  policy.Degraded(b[71]),
	}
	if !supported(q) {
		return groupUnknownAlgorithm, nil
	}
	parseRequestExtra(b[requestSize:], q)
	if invalid := q.Rule.Validate(); invalid != nil {
		return groupMalformed, nil //nolint:nilerr // the answer says it, and the stream goes on
	}
	return groupServed, nil
}

// parseRequestExtra reads what version 2 appended to a question's record, as far as it is there.
func parseRequestExtra(b []byte, q *owner.Request) {
	if len(b) == 0 {
		return
	}
	q.Strict = b[0]&flagStrict != 0
	switch {
	case b[0]&flagByLease != 0:
		q.Mechanism = policy.ByLease
	case b[0]&flagApproximate != 0:
		q.Mechanism = policy.Approximate
	}
	if len(b) >= requestExtraSize {
		q.HotFactor = le.Uint16(b[1:])
	}
}

// supported says whether this version can decide q at all, of which the fields of version 1 have been read.
func supported(q *owner.Request) bool {
	return q.Rule.Algorithm < 64 && knownAlgorithms>>q.Rule.Algorithm&1 != 0 && q.Op <= owner.Read && q.Mechanism == policy.ByOwner
}

func appendReplyHead(b []byte, id uint64, outcome byte, count int) []byte {
	b = le.AppendUint64(b, id)
	b = append(b, outcome)
	return le.AppendUint16(b, uint16(count))
}

func parseReplyHead(b []byte) (id uint64, outcome byte, count int, records []byte, err error) {
	if len(b) < replyHeadSize {
		return 0, 0, 0, nil, errShort
	}
	id, outcome, count = le.Uint64(b), b[8], int(le.Uint16(b[9:]))
	if len(b)-replyHeadSize < count*recordHead {
		return 0, 0, 0, nil, errTrailing
	}
	return id, outcome, count, b[replyHeadSize:], nil
}

// appendResult writes what Serve said. Anything but a decision is "not the owner", with the member to ask instead.
func appendResult(b []byte, a *owner.Result) []byte {
	if a.Kind != owner.Decided {
		id := a.Member[:min(len(a.Member), maxID)]
		b = le.AppendUint16(b, uint16(2+len(id)))
		b = append(b, statusNotOwner, byte(len(id)))
		return append(b, id...)
	}
	var flags byte
	if a.Over {
		flags |= flagOver
	}
	if a.Hot {
		flags |= flagHot
	}
	b = le.AppendUint16(b, resultSize)
	b = append(b, statusDecided, byte(a.Authority), flags, 0)
	b = le.AppendUint64(b, a.Before)
	b = le.AppendUint64(b, a.After)
	b = le.AppendUint64(b, uint64(a.Reset))
	return le.AppendUint32(b, a.Remaining)
}

func parseResult(b []byte, a *owner.Result) error {
	if len(b) < 2 {
		return errShort
	}
	switch b[0] {
	case statusDecided:
		if len(b) < resultSize {
			return errShort
		}
		*a = owner.Result{
			Decision: limit.Decision{
				Before:    le.Uint64(b[4:]),
				After:     le.Uint64(b[12:]),
				Reset:     max(0, time.Duration(le.Uint64(b[20:]))),
				Remaining: le.Uint32(b[28:]),
				Over:      b[2]&flagOver != 0,
			},
			Authority: authority(b[1]),
			Kind:      owner.Decided,
			Path:      owner.Forwarded,
			Hot:       b[2]&flagHot != 0,
		}
		return nil
	case statusNotOwner:
		n := int(b[1])
		if n > maxID || len(b) < 2+n {
			return errShort
		}
		*a = owner.Result{Kind: owner.Forward, Member: ring.ID(b[2 : 2+n])}
		return nil
	}
	return fmt.Errorf("unknown answer status %d", b[0])
}

// authority is how b reads here: what a later version adds is by the owner, so it stands for the whole limit.
func authority(b byte) owner.Authority {
	if a := owner.Authority(b); a <= owner.Cached {
		return a
	}
	return owner.Full
}
