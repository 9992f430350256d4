package peer

import (
	"math"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
)

// holdSize is the size of what follows the tenant in the record of a request with flagHold.
const holdSize = 34

// flagChargeOver is a bit next to those of claim.Flags.
const flagChargeOver = 128

// holdRecordSize returns the bytes that a request's record has for its hold.
func holdRecordSize(q *owner.Request) int {
	if q.Hold == nil {
		return 0
	}
	return holdSize
}

func appendHold(w wire.Writer, h *owner.Hold) wire.Writer {
	ttl := uint32(min(max(0, (h.TTL+time.Millisecond-1).Milliseconds()), math.MaxUint32))
	return w.U64(h.ID[0]).U64(h.ID[1]).U64(h.Caller).U32(ttl).U32(h.Max).U16(uint16(h.Flags) | uint16(bit(h.ChargeOver, flagChargeOver)))
}

func parseHold(r *wire.Reader) *owner.Hold {
	h := &owner.Hold{
		ID: claim.ID{r.U64(), r.U64()}, Caller: r.U64(), TTL: time.Duration(r.U32()) * time.Millisecond, Max: r.U32(),
	}
	flags := r.U16()
	h.Flags, h.ChargeOver = claim.Flags(flags&^flagChargeOver), flags&flagChargeOver != 0
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
