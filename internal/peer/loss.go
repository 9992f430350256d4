package peer

import (
	"errors"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/ring"
)

const (
	maxLosses     = 8    // of one message
	lossHead      = 10   // time, number of members
	minLostMember = 22   // bytes of a member of it
	maxLostWeight = 4096 // weight of all members of all of them: the receiver builds their rings
)

var errLosses = errors.New("impossible loss")

// appendLosses appends what is known to be lost, as far as it ends before the byte at bound and within maxLostWeight: what is older,
// or was lost by too large a ring, is left out, and such keys begin anew.
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
	b = le.AppendUint64(b, uint64(l.FoundAt))
	b = le.AppendUint16(b, uint16(len(l.Members)))
	for _, m := range l.Members {
		id := m.ID[:min(len(m.ID), maxID)]
		b = append(append(b, byte(len(id))), id...)
		b = le.AppendUint64(b, m.BootID)
		b = le.AppendUint64(b, m.Incarnation)
		b = le.AppendUint32(b, m.Weight)
		b = append(b, deadFlag(l, m.ID))
	}
	return b
}

func deadFlag(l *handoff.Loss, id ring.ID) byte {
	for _, d := range l.Dead {
		if d == id {
			return 1
		}
	}
	return 0
}

// parseLosses reads what follows a message's counters: nothing, from a member of an earlier build.
func parseLosses(b []byte) ([]handoff.Loss, error) {
	if len(b) == 0 || b[0] == 0 {
		return nil, nil
	}
	if b[0] > maxLosses {
		return nil, errLosses
	}
	losses, weight := make([]handoff.Loss, b[0]), uint64(maxLostWeight)
	b = b[1:]
	var err error
	for i := range losses {
		if b, err = parseLoss(b, &losses[i], &weight); err != nil {
			return nil, err
		}
	}
	return losses, nil
}

// parseLoss takes the weight of its members off what is left.
func parseLoss(b []byte, l *handoff.Loss, left *uint64) (rest []byte, err error) {
	if len(b) < lossHead {
		return nil, errShort
	}
	n := int(le.Uint16(b[8:]))
	l.FoundAt = int64(le.Uint64(b))
	if b = b[lossHead:]; len(b) < n*minLostMember {
		return nil, errShort
	}
	l.Members = make([]ring.Member, n)
	for i := range l.Members {
		m := &l.Members[i]
		if m.ID, b, err = parseID(b); err != nil {
			return nil, err
		}
		if len(b) < minLostMember-1 {
			return nil, errShort
		}
		m.BootID, m.Incarnation, m.Weight = le.Uint64(b), le.Uint64(b[8:]), le.Uint32(b[16:])
		weight := uint64(max(m.Weight, 1))
		if i > 0 && l.Members[i-1].ID >= m.ID || m.ID == "" || weight > *left {
			return nil, errLosses
		}
		*left -= weight
		if b[20] != 0 {
			l.Dead = append(l.Dead, m.ID)
		}
		b = b[minLostMember-1:]
	}
	return b, nil
}
