package peer

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/ring"
)

// PROTOCOL.md specifies the layout of everything that is encoded here, and the golden files in testdata pin it.

const (
	maxFrame    = 128 << 10 // bytes of a frame's type and payload
	maxRequests = 256       // requests of one group
	maxID       = 128       // bytes of a ring.ID, as Envoy accepts
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

// Outcomes of a group, as a reply states them.
const (
	groupServed           = 0
	groupLate             = 1 // read after its requester had given up; nothing was charged
	groupMalformed        = 2 // a field has an impossible value; nothing was charged
	groupUnknownAlgorithm = 3 // an algorithm, mechanism or operation of a later version; nothing was charged
)

// Statuses of a result record.
const (
	statusDecided  = 0
	statusNotOwner = 1
)

// Sizes of this version's records and heads. Later versions may only append.
const (
	frameLength      = 4
	frameHead        = frameLength + 1 // and the type
	requestHeadSize  = 23
	requestSize      = 72
	requestExtraSize = 3  // a flags byte follows the record if a flag is set; a hot factor, if the rule has one
	tenantSize       = 12 // of the tenant and its weight, which follow the hot factor
	federationSize   = 10 // of the federation's terms, which follow the tenant
	storeSize        = 24 // of how the federation uses its store, and of the length of a name of the counter, if the rule says anything about it
	maxSharedName    = 256
	resultSize       = 32
	setResultSize    = 12 // of what a Read in place of a set's charge would show, which follows the result
	heldSize         = 12 // of the open holds of a key, which follow a result that reads it, if there are any
	recordHead       = 2
)

// flagStop marks an all-or-nothing group: if a request exceeds its limit, only such requests are charged.
const flagStop = 1

// Flags of a request. Mechanisms are flags, and not numbers in the field that version 1 has for them: an owner that
// does not support leases decides these requests correctly like all others.
const (
	flagStrict      = 1 // the reply waits until a replica has the charge
	flagByLease     = 2
	flagApproximate = 4
	// partitionShift is where the rule's policy for partitions begins, a policy.PartitionChoice of two bits. Owners that do
	// not read it use their own.
	partitionShift = 3
	// flagAudit is set by version 2 for rules with audit logs. Owners that do not support it write no records of the key.
	flagAudit = 32
	// flagVolatile is set by version 2 for rules whose counters are in no journal. Owners that do not support it write them.
	flagVolatile = 64
	// flagHold is set by version 3 for requests with a hold. Members send none to owners of an earlier version.
	flagHold = 128
)

// Flags of a result.
const (
	flagOver = 1 // the hits exceed the limit
	flagHot  = 2 // the key is hot or leased
	flagFair = 4 // refused to leave the rest of the limit to other tenants
	// What version 3 appends to the record.
	flagSetRead = 8  // what a Read in place of a set's charge would show
	flagHeld    = 16 // the open holds of the key
)

const (
	// fixedWindows is the bit set of the algorithms of version 1.
	fixedWindows = 1 << limit.FixedWindow
	// knownAlgorithms is the bit set of the algorithms that this build decides.
	knownAlgorithms = 1<<limit.FixedWindow | 1<<limit.SlidingWindow | 1<<limit.SlidingLog | 1<<limit.TokenBucket |
		1<<limit.LeakyBucket | 1<<limit.InFlight
)

var (
	errTooLong = errors.New("frame too long")
	errCount   = errors.New("count does not match the frame")
)

// beginFrame appends the head of a frame to b. After the payload, w.EndLen32(at) completes the frame.
func beginFrame(b []byte, typ byte) (w wire.Writer, at int) {
	return wire.Writer(b).U32(0).U8(typ), len(b)
}

// nextFrame splits the first frame off b. It returns ok == false if the frame is not complete.
func nextFrame(b []byte) (typ byte, payload, rest []byte, ok bool, err error) {
	if len(b) < frameLength {
		return 0, nil, b, false, nil
	}
	n, rest := binary.LittleEndian.Uint32(b), b[frameLength:]
	if n == 0 || n > maxFrame {
		return 0, nil, b, false, fmt.Errorf("%w: %d bytes", errTooLong, n)
	}
	if uint64(n) > uint64(len(rest)) {
		return 0, nil, b, false, nil
	}
	return rest[0], rest[1:n], rest[n:], true, nil
}

// nextRecord reads a record with a length of two bytes.
func nextRecord(r *wire.Reader) wire.Reader { return r.Record(int(r.U16())) }

// appendID appends a member's name, of which bytes behind maxID are cut off.
func appendID(w wire.Writer, id ring.ID) wire.Writer {
	id = id[:min(len(id), maxID)]
	return w.U8(byte(len(id))).String(string(id))
}

// readID reads a member's name. A longer one than maxID is an error.
func readID(r *wire.Reader) ring.ID {
	n := int(r.U8())
	if n > maxID {
		r.Fail()
		return ""
	}
	return ring.ID(r.Bytes(n))
}

// bit returns flag if it is set, or 0.
func bit(set bool, flag byte) byte {
	if set {
		return flag
	}
	return 0
}
