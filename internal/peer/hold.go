package peer

import (
	"math"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
)

// holdSize is the size of what follows the tenant in the record of a request with flagHold.
const holdSize = 34

// Bits next to those of claim.Flags.
const (
	flagChargeOver = 128
	flagOldest     = 64
	flagAhead      = 1 << 8
)

// holdRecordSize returns the bytes that a request's record has for its hold.
func holdRecordSize(q *owner.Request) int {
	if q.Hold == nil {
		return 0
	}
	return holdSize
}

func appendHold(w wire.Writer, h *owner.Hold) wire.Writer {
	ttl := uint32(min(max(0, (h.TTL+time.Millisecond-1).Milliseconds()), math.MaxUint32))
	flags := uint16(byte(h.Flags) | bit(h.ChargeOver, flagChargeOver) | bit(h.Oldest, flagOldest))
	if h.Ahead {
		flags |= flagAhead
	}
	return w.U64(h.ID[0]).U64(h.ID[1]).U64(h.Caller).U32(ttl).U32(h.Max).U16(flags)
}

func parseHold(r *wire.Reader) *owner.Hold {
	h := &owner.Hold{
		ID: claim.Ident{r.U64(), r.U64()}, Caller: r.U64(), TTL: time.Duration(r.U32()) * time.Millisecond, Max: r.U32(),
	}
	flags := r.U16()
	h.Flags = claim.Flags(flags) &^ (flagChargeOver | flagOldest)
	h.ChargeOver, h.Oldest, h.Ahead = flags&flagChargeOver != 0, flags&flagOldest != 0, flags&flagAhead != 0
	return h
}

// hasHold reports whether one of the requests that index selects has a hold.
func hasHold(reqs []owner.Request, index []uint16) bool {
	for _, i := range index {
		if reqs[i].Hold != nil {
			return true
		}
	}
	return false
}

// forVersion returns m without the counters that members with that protocol version cannot read: they would end the
// stream. Such members do not decide requests with them either.
func forVersion(m *protocol.Message, version uint16) *protocol.Message {
	unreadable := func(c protocol.CounterRecord) bool { return c.Rule.Algorithm == limit.InFlight }
	if version >= membership.ProtocolHolds || !slices.ContainsFunc(m.Counters, unreadable) {
		return m
	}
	old := *m
	old.Counters = slices.DeleteFunc(slices.Clone(m.Counters), unreadable)
	return &old
}
