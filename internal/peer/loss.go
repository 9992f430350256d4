package peer

import (
	"errors"
	"slices"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/ring"
)

const (
	maxLosses     = 8    // in one message
	minLostMember = 22   // bytes of a member
	maxLostWeight = 4096 // cost of the rings of all losses, which the receiver builds; see ring.Parameters.Cost
)

var errLosses = errors.New("invalid loss")

// appendLosses appends losses until one would end behind offset bound or make all rings cost more than maxLostWeight.
// The rest, which is older or of a ring that is too large, is left out: the receiver does not charge lost state for
// these keys. Losses on rings with Envoy's parameters follow the others, and builds without such rings skip them. So do the zones
// of the members of all these rings, if any is known.
func appendLosses(b []byte, losses []protocol.Loss, bound int) []byte {
	if len(losses) == 0 {
		return b
	}
	left := uint64(maxLostWeight)
	b, written := appendLossesOn(b, losses, bound, &left, false)
	zones := slices.ContainsFunc(losses, hasZones)
	if zones || slices.ContainsFunc(losses, func(l protocol.Loss) bool { return l.Parameters.Envoy }) {
		var more []protocol.Loss
		b, more = appendLossesOn(b, losses, bound, &left, true)
		written = append(written, more...)
	}
	if !zones {
		return b
	}
	w := wire.Writer(b)
	for i := range written {
		for _, m := range written[i].Members {
			w = appendID(w, ring.ID(m.Zone))
		}
	}
	if len(w) > bound {
		return b // the receiver charges lost state for keys with zone replicas, too
	}
	return w
}

// hasZones reports whether the zone of a member of l's ring is known.
func hasZones(l protocol.Loss) bool {
	return slices.ContainsFunc(l.Members, func(m ring.Member) bool { return m.Zone != "" })
}

// appendLossesOn appends the losses on rings with Envoy's parameters, or the others. It subtracts the cost of their
// rings from left, and returns the losses that it has appended.
func appendLossesOn(
	b []byte, losses []protocol.Loss, bound int, left *uint64, envoy bool,
) (_ []byte, written []protocol.Loss) {
	at := len(b)
	b = append(b, 0)
	for i := range losses {
		l := &losses[i]
		if l.Parameters.Envoy != envoy {
			continue
		}
		next, cost := appendLoss(b, l), costOf(l)
		if len(next) > bound || b[at] == maxLosses || cost > *left {
			break
		}
		b = next
		b[at]++
		*left -= cost
		written = append(written, *l)
	}
	return b, written
}

// costOf returns the cost of building the ring of l.
func costOf(l *protocol.Loss) uint64 {
	weight := uint64(0)
	for _, m := range l.Members {
		weight += uint64(max(m.Weight, 1))
	}
	return l.Parameters.Cost(weight)
}

func appendLoss(b []byte, l *protocol.Loss) []byte {
	w := wire.Writer(b)
	w = w.I64(l.FoundAt).U16(uint16(len(l.Members)))
	if l.Parameters.Envoy {
		w = appendID(w, ring.ID(l.Parameters.String()))
	}
	for _, m := range l.Members {
		w = appendID(w, m.ID)
		w = w.U64(m.BootID).U64(m.Incarnation).U32(m.Weight).U8(bit(slices.Contains(l.Dead, m.ID), 1))
		if l.Parameters.Envoy {
			w = appendID(w, ring.ID(m.Host))
		}
	}
	return w
}

// parseLosses reads the losses behind a message's counters. Members of an earlier build send none, or none on rings
// with Envoy's parameters, or no zones.
func parseLosses(r wire.Reader) (losses []protocol.Loss, err error) {
	left := uint64(maxLostWeight)
	for _, envoy := range [...]bool{false, true} {
		if r.Len() == 0 {
			break
		}
		n := int(r.U8())
		if n > maxLosses {
			return nil, errLosses
		}
		for range n {
			var l protocol.Loss
			if err := parseLoss(&r, &l, &left, envoy); err != nil {
				return nil, err
			}
			losses = append(losses, l)
		}
	}
	for i := 0; i < len(losses) && r.Len() > 0; i++ {
		for j := range losses[i].Members {
			zone := readID(&r)
			if len(zone) > membership.MaxZone {
				return nil, errLosses
			}
			losses[i].Members[j].Zone = string(zone)
		}
	}
	return losses, r.Err()
}

// parseLoss reads one loss and subtracts the cost of its ring from left.
func parseLoss(r *wire.Reader, l *protocol.Loss, left *uint64, envoy bool) error {
	l.FoundAt = r.I64()
	n := int(r.U16())
	if r.Len() < n*minLostMember {
		return wire.ErrMalformed
	}
	if envoy {
		var err error
		if l.Parameters, err = ring.ParseParameters(string(readID(r))); err != nil || l.Parameters.Validate() != nil {
			return errLosses
		}
	}
	l.Members = make([]ring.Member, n)
	for i := range l.Members {
		m := &l.Members[i]
		m.ID = readID(r)
		m.BootID, m.Incarnation, m.Weight = r.U64(), r.U64(), r.U32()
		dead := r.U8() != 0
		if envoy {
			m.Host = string(readID(r))
		}
		if err := r.Err(); err != nil {
			return err
		}
		if i > 0 && l.Members[i-1].ID >= m.ID || m.ID == "" || max(m.Weight, 1) > maxLostWeight {
			return errLosses
		}
		if dead {
			l.Dead = append(l.Dead, m.ID)
		}
	}
	cost := costOf(l)
	if cost > *left {
		return errLosses
	}
	*left -= cost
	return r.Err()
}
