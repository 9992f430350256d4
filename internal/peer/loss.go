package peer

import (
	"errors"
	"slices"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/ring"
)

const (
	maxLosses     = 8    // in one message
	minLostMember = 22   // bytes of a member
	maxLostWeight = 4096 // weight of all members of all losses: the receiver builds their rings
)

var errLosses = errors.New("invalid loss")

// appendLosses appends losses until one would end behind offset bound or exceed maxLostWeight. The rest, which is older
// or of a ring that is too large, is left out: the receiver does not charge lost state for these keys.
func appendLosses(b []byte, losses []handoff.Loss, bound int) []byte {
	if len(losses) == 0 {
		return b
	}
	at, weight := len(b), uint64(0)
	b = append(b, 0)
	for i := range losses {
		for _, m := range losses[i].Members {
			weight += uint64(max(m.Weight, 1))
		}
		next := appendLoss(b, &losses[i])
		if len(next) > bound || b[at] == maxLosses || weight > maxLostWeight {
			break
		}
		b = next
		b[at]++
	}
	return b
}

func appendLoss(b []byte, l *handoff.Loss) []byte {
	w := wire.Writer(b)
	w = w.I64(l.FoundAt).U16(uint16(len(l.Members)))
	for _, m := range l.Members {
		w = appendID(w, m.ID)
		w = w.U64(m.BootID).U64(m.Incarnation).U32(m.Weight).U8(bit(slices.Contains(l.Dead, m.ID), 1))
	}
	return w
}

// parseLosses reads the losses behind a message's counters. Members of an earlier build send none.
func parseLosses(r wire.Reader) ([]handoff.Loss, error) {
	if r.Len() == 0 {
		return nil, r.Err()
	}
	n := r.U8()
	switch {
	case n == 0:
		return nil, nil
	case n > maxLosses:
		return nil, errLosses
	}
	losses, weight := make([]handoff.Loss, n), uint64(maxLostWeight)
	for i := range losses {
		if err := parseLoss(&r, &losses[i], &weight); err != nil {
			return nil, err
		}
	}
	return losses, nil
}

// parseLoss reads one loss and subtracts the weight of its members from left.
func parseLoss(r *wire.Reader, l *handoff.Loss, left *uint64) error {
	l.FoundAt = r.I64()
	n := int(r.U16())
	if r.Len() < n*minLostMember {
		return wire.ErrMalformed
	}
	l.Members = make([]ring.Member, n)
	for i := range l.Members {
		m := &l.Members[i]
		m.ID = readID(r)
		m.BootID, m.Incarnation, m.Weight = r.U64(), r.U64(), r.U32()
		dead := r.U8() != 0
		if err := r.Err(); err != nil {
			return err
		}
		weight := uint64(max(m.Weight, 1))
		if i > 0 && l.Members[i-1].ID >= m.ID || m.ID == "" || weight > *left {
			return errLosses
		}
		*left -= weight
		if dead {
			l.Dead = append(l.Dead, m.ID)
		}
	}
	return r.Err()
}
