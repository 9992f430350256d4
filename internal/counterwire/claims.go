package counterwire

import (
	"errors"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
)

// minClaimSize is the least number of bytes of a claim.
const minClaimSize = 30

// givesBit is a bit next to the state and the flags of a claim: the receiver gives back its hits.
const givesBit = 1 << 7

// ErrClaims is returned for a counter with more claims than a record may have.
var ErrClaims = errors.New("too many claims")

// appendClaims appends claims, which are all of one key and at most protocol.MaxClaims, with their number.
func appendClaims(w wire.Writer, claims []claim.Claim) wire.Writer {
	w = w.Uvarint(uint64(len(claims)))
	for i := range claims {
		c := &claims[i]
		bits := byte(c.State()) | byte(c.Flags())<<2
		if c.Gives() {
			bits |= givesBit
		}
		w = w.U64(c.ID[0]).U64(c.ID[1]).U64(c.Caller).U8(bits)
		w = w.Varint(c.At).Varint(c.Made()).Uvarint(uint64(c.Amount)).Uvarint(uint64(c.TTL()))
	}
	return w
}

// readClaims reads the claims of counter c, which is read otherwise.
func (r *Decoder) readClaims(in *wire.Reader, c *protocol.CounterRecord) error {
	n := in.Uvarint()
	switch {
	case in.Err() != nil:
		return in.Err()
	case n > protocol.MaxClaims:
		return ErrClaims
	case in.Len() < int(n)*minClaimSize:
		return wire.ErrMalformed
	}
	from := len(r.claims)
	for range n {
		x := claim.Claim{ID: claim.Ident{in.U64(), in.U64()}, Key: c.Key, RingPos: c.RingPos, Caller: in.U64()}
		bits := in.U8()
		x.At = in.Varint()
		x.SetMade(in.Varint())
		amount := in.Uvarint()
		x.SetTTL(time.Duration(min(in.Uvarint(), uint64(maxTTL))))
		if in.Err() != nil {
			return in.Err()
		}
		if amount > 1<<32-1 {
			return wire.ErrMalformed
		}
		x.Amount = uint32(amount)
		x.SetDomain(c.Domain)
		x.SetFlags(claim.Flags(bits&^givesBit>>2) &^ claim.Set) // no member sends those of sets
		x.SetGives(bits&givesBit != 0)
		x.SetState(claim.Stage(bits & 3))
		r.claims = append(r.claims, x)
	}
	c.Claims = r.claims[from:len(r.claims):len(r.claims)]
	return nil
}

// maxTTL is the longest time until a claim lapses, so that sums of times do not overflow.
const maxTTL = 366 * 24 * time.Hour
