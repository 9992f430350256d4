package fair

import "github.com/keyward/keyward/owner/internal/counter"

// rowOf returns the group of d's key and the row of its tenant, which it adds if necessary. The row is -1 if there is
// no memory for it.
func (t *Divider) rowOf(d *Demand) (*group, int) {
	g := t.find(d)
	if g == nil {
		if g = t.add(d); g == nil {
			return nil, -1
		}
	}
	if i := g.place(d.Tenant); i >= 0 {
		return g, i
	}
	tenant := d.Tenant
	if len(g.rows) >= MaxTenants {
		tenant = 0
	}
	if !t.grow(g) {
		return g, -1
	}
	g.rows = append(g.rows, row{tenant: tenant, weight: max(1, d.Weight)})
	return g, len(g.rows) - 1
}

// find returns the group of d's key, in d's window, or nil.
func (t *Divider) find(d *Demand) *group {
	i, ok := t.index[d.Key]
	if !ok {
		return nil
	}
	g := t.groups[i]
	g.advance(d)
	return g
}

// place returns the row of a tenant: its own, or the shared one if g has no place for more. The result is -1 if there
// is none yet.
func (g *group) place(tenant uint64) int {
	shared := -1
	for i := range g.rows {
		switch g.rows[i].tenant {
		case tenant:
			return i
		case 0:
			shared = i
		}
	}
	if len(g.rows) < MaxTenants {
		return -1
	}
	return shared
}

// advance makes g's window that of d. Tenants that asked for nothing in the window before it lose their rows.
func (g *group) advance(d *Demand) {
	if d.Width == g.width && d.Window <= g.window {
		return
	}
	next := d.Width == g.width && d.Window == g.window+1
	g.window, g.width = d.Window, d.Width
	if g.seen, g.weight = 0, [2]uint32{0, g.weight[0]}; !next {
		g.weight[1] = 0
	}
	kept := g.rows[:0]
	for _, r := range g.rows {
		if r.offered > 0 && next {
			r.last, r.used, r.offered = r.offered, 0, 0
			kept = append(kept, r)
		}
	}
	g.rows = kept
}

// weightOf returns the weight of a row. That of the shared row is the sum of its tenants' weights. Tenants with the
// same bit of seen count once.
func (g *group) weightOf(i int) uint64 {
	if r := &g.rows[i]; r.tenant != 0 {
		return uint64(r.weight)
	}
	return uint64(max(1, g.weight[0], g.weight[1]))
}

// addWeight adds the weight of d's tenant to the shared row, once in a window.
func (g *group) addWeight(d *Demand) {
	bit := uint64(1) << (d.Tenant >> 58)
	if g.seen&bit == 0 {
		g.seen |= bit
		g.weight[0] = saturated(uint64(g.weight[0]), uint64(max(1, d.Weight)))
	}
}

// firstRows is the number of rows that a group begins with. It grows to four times as many, up to MaxTenants + 1.
const firstRows = 4

// add adds a group for d's key. It returns nil if there is no memory for it.
func (t *Divider) add(d *Demand) *group {
	if t.rows+firstRows > maxRows {
		return nil
	}
	if t.index == nil {
		t.index = map[counter.Key]int32{}
	}
	g := &group{key: d.Key, window: d.Window, width: d.Width, rows: make([]row, 0, firstRows)}
	t.rows += firstRows
	t.index[d.Key] = int32(len(t.groups))
	t.groups = append(t.groups, g)
	return g
}

// grow makes room for one more row in g. It returns false if there is no memory for it, or if g has all its rows.
func (t *Divider) grow(g *group) bool {
	have := cap(g.rows)
	if len(g.rows) < have {
		return true
	}
	size := min(4*have, MaxTenants+1)
	if size == have || t.rows+size-have > maxRows {
		return false
	}
	rows := make([]row, len(g.rows), size)
	copy(rows, g.rows)
	g.rows = rows
	t.rows += size - have
	return true
}

// sweepStep is the number of groups that Sweep visits.
const sweepStep = 64

// Sweep drops groups that no request has used in the last two windows. It visits a part of them.
func (t *Divider) Sweep(now int64) {
	for range min(sweepStep, len(t.groups)) {
		if t.swept >= len(t.groups) {
			t.swept = 0
		}
		if g := t.groups[t.swept]; now/max(1, g.width) > g.window+1 {
			t.drop(t.swept)
		} else {
			t.swept++
		}
	}
}

func (t *Divider) drop(i int) {
	g, last := t.groups[i], len(t.groups)-1
	t.rows -= cap(g.rows)
	delete(t.index, g.key)
	if t.groups[i] = t.groups[last]; i != last {
		t.index[t.groups[i].key] = int32(i)
	}
	t.groups[last] = nil
	t.groups = t.groups[:last]
}

// Tenant describes a tenant of a key.
type Tenant struct {
	Digest  uint64 // of its name; 0 for the tenants that share a row
	Weight  uint32
	Used    uint64 // hits admitted in this window
	Offered uint64 // hits asked for in this window
	Last    uint64 // hits asked for in the last window
	Left    uint64 // hits that it would be admitted now
}

// Tenants returns the tenants of d's key, in the order in which they came. Only the key, the window and the room of d
// matter.
func (t *Divider) Tenants(d *Demand) (all []Tenant) {
	g := t.find(d)
	if g == nil {
		return nil
	}
	for i := range g.rows {
		r := &g.rows[i]
		of := Demand{Weight: r.weight, Room: d.Room, Left: d.Left, Rolls: d.Rolls}
		all = append(all, Tenant{
			Digest: r.tenant, Weight: uint32(g.weightOf(i)), Used: uint64(r.used), Offered: uint64(r.offered),
			Last: uint64(r.last), Left: g.most(i, &of),
		})
	}
	return all
}

// Tracked returns the number of rows for which there is memory.
func (t *Divider) Tracked() int { return t.rows }

// Counts returns what t has counted.
func (t *Divider) Counts() Counts { return t.counts }
