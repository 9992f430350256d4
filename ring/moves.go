package ring

import "math"

// Move is an arc of the hash space, First to Last with both ends, that changes its owner. An empty ID is nobody: the
// owner on a ring without members.
type Move struct {
	First, Last uint64
	From, To    ID
}

// Share is the arc's part of the hash space, 0 to 1.
func (m Move) Share() float64 { return (float64(m.Last-m.First) + 1) / (math.MaxUint64 + 1.0) }

// MovedShare is the part of the hash space that moves cover, 0 to 1.
func MovedShare(moves []Move) float64 {
	sum := 0.0
	for _, m := range moves {
		sum += m.Share()
	}
	return sum
}

// Diff is what changes its owner's ID when ring a becomes ring b: arcs in rising order, not overlapping, and as long as
// they can be. A new instance of the same ID owns what the old one owned and is no move.
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

// appendMove appends m, or makes the last move longer when m continues it.
func appendMove(moves []Move, m Move) []Move {
	if n := len(moves); n > 0 {
		if p := &moves[n-1]; p.Last+1 == m.First && p.From == m.From && p.To == m.To {
			p.Last = m.Last
			return moves
		}
	}
	return append(moves, m)
}

// matching gives for each member of a its index in b, or -2, which is not even nobody's.
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

// cursor goes over a table's arcs in the order of hashes.
type cursor struct {
	table *table
	at    int // the point that ends the present arc; len(hashes) for the arc after the last one
}

// last is the last hash of the present arc.
func (c *cursor) last() uint64 {
	if c.at == len(c.table.hashes) {
		return math.MaxUint64
	}
	return c.table.hashes[c.at]
}

// owner owns the present arc: the hashes after the last point belong to the first one.
func (c *cursor) owner() int {
	n := len(c.table.hashes)
	if n == 0 {
		return -1
	}
	return c.table.at(c.at % n)
}

// advance leaves all arcs that end at or before h behind.
func (c *cursor) advance(h uint64) {
	for c.at < len(c.table.hashes) && c.table.hashes[c.at] <= h {
		c.at++
	}
}
