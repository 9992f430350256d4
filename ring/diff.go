package ring

import "math"

// Move is an arc of the hash space, from First to Last inclusive, whose owner changes. From or To is empty if that ring
// has no members.
type Move struct {
	First, Last uint64
	From, To    ID
}

// Share returns the fraction of the hash space in the arc, 0 to 1.
func (m Move) Share() float64 { return (float64(m.Last-m.First) + 1) / (math.MaxUint64 + 1.0) }

// MovedShare returns the fraction of the hash space in all moves, 0 to 1.
func MovedShare(moves []Move) float64 {
	sum := 0.0
	for _, m := range moves {
		sum += m.Share()
	}
	return sum
}

// Diff returns the arcs whose owner differs between rings a and b, in ascending order. Arcs do not overlap, and
// adjacent arcs with the same owners are merged. Owners are compared by ID, so another boot of a member is not a move.
func Diff(a, b *Ring) []Move {
	var moves []Move
	ca, cb := cursor{table: &a.table}, cursor{table: &b.table}
	inB := matching(a, b)
	for first := uint64(0); ; {
		last := min(ca.last(), cb.last())
		oa, ob := ca.owner(), cb.owner()
		if oa >= 0 && inB[oa] != ob || oa < 0 && ob >= 0 {
			moves = appendMove(moves, Move{first, last, a.id(oa), b.id(ob)})
		}
		if last == math.MaxUint64 {
			return moves
		}
		first = last + 1
		ca.advance(last)
		cb.advance(last)
	}
}

// appendMove appends m, or extends the last move if m continues it.
func appendMove(moves []Move, m Move) []Move {
	if n := len(moves); n > 0 {
		if p := &moves[n-1]; p.Last+1 == m.First && p.From == m.From && p.To == m.To {
			p.Last = m.Last
			return moves
		}
	}
	return append(moves, m)
}

// matching returns, for each member of a, its index in b, or -2. The value differs from -1, which means an empty ring.
func matching(a, b *Ring) []int {
	out := make([]int, a.Len())
	for i, m := range a.members {
		if out[i] = b.Index(m.ID); out[i] < 0 {
			out[i] = -2
		}
	}
	return out
}

func (r *Ring) id(i int) ID {
	if i < 0 {
		return ""
	}
	return r.members[i].ID
}

// cursor iterates over a table's arcs in the order of hashes.
type cursor struct {
	table *table
	at    int // the point that ends the current arc; len(hashes) for the arc after the last point
}

// last returns the last hash of the current arc.
func (c *cursor) last() uint64 {
	if c.at == len(c.table.hashes) {
		return math.MaxUint64
	}
	return c.table.hashes[c.at]
}

// owner returns the owner of the current arc. Hashes after the last point belong to the owner of the first one.
func (c *cursor) owner() int {
	n := len(c.table.hashes)
	if n == 0 {
		return -1
	}
	return c.table.at(c.at % n)
}

// advance skips all arcs that end at or before h.
func (c *cursor) advance(h uint64) {
	for c.at < len(c.table.hashes) && c.table.hashes[c.at] <= h {
		c.at++
	}
}
