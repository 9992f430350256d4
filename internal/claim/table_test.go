package claim

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const (
	start  = int64(1_700_000_000e9)
	second = int64(time.Second)
)

// naive is a Table made of maps: what a Table must do, without its memory layout.
type naive struct {
	claims  map[Ident]*Claim
	order   uint64 // of the latest change
	changed map[Ident]uint64
	pending map[[2]uint64][]naiveChange
	given   map[[2]uint64]int64
	copied  map[Ident]bool
}

// naiveChange is one change that no other member has confirmed.
type naiveChange struct {
	id    Ident
	order uint64
}

func newNaive() *naive {
	return &naive{
		claims: map[Ident]*Claim{}, changed: map[Ident]uint64{}, pending: map[[2]uint64][]naiveChange{},
		given: map[[2]uint64]int64{}, copied: map[Ident]bool{},
	}
}

func (n *naive) totals(key [2]uint64) (s OpenClaims) {
	for _, c := range n.claims {
		if c.Key == key && c.State() == Open && c.Flags()&Once == 0 {
			s.Open++
			s.Held += uint64(c.Amount)
		}
	}
	return s
}

func (n *naive) remove(id Ident) {
	key := n.claims[id].Key
	n.pending[key] = slices.DeleteFunc(n.pending[key], func(x naiveChange) bool { return x.id == id })
	delete(n.claims, id)
	delete(n.changed, id)
	delete(n.copied, id)
	n.trim(key)
}

// trim forgets what was given back of a bucket without open claims.
func (n *naive) trim(key [2]uint64) {
	if n.totals(key).Open == 0 {
		delete(n.given, key)
	}
}

func (n *naive) change(id Ident) {
	n.order++
	n.changed[id] = n.order
	key := n.claims[id].Key
	n.pending[key] = append(n.pending[key], naiveChange{id, n.order})
}

// confirm confirms the changes of key up to order, and returns the claims that may give back.
func (n *naive) confirm(key [2]uint64, order uint64) map[Ident]bool {
	ready := map[Ident]bool{}
	n.pending[key] = slices.DeleteFunc(n.pending[key], func(x naiveChange) bool {
		if x.order > order {
			return false
		}
		if n.changed[x.id] == x.order && n.claims[x.id].State() == Settling {
			ready[x.id] = true
		}
		return true
	})
	return ready
}

// twin drives a Table and its naive model with the same calls.
type twin struct {
	t      *testing.T
	rnd    *rand.Rand
	limits *Allowance
	table  Records
	model  *naive
	now    int64
	next   uint64
	keys   [][2]uint64
	sent   []sentChanges
}

// sentChanges is a message with changes that may be confirmed at any later time, or never.
type sentChanges struct {
	key   [2]uint64
	seq   uint32
	order uint64
}

func newTwin(t *testing.T, seed uint64, most int) *twin {
	w := &twin{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), limits: NewAllowance(most, [2]uint64{seed, 3}), model: newNaive(), now: start}
	w.table.Init(w.limits)
	for i := range uint64(1 + w.rnd.IntN(6)) {
		w.keys = append(w.keys, [2]uint64{i, i * 7})
	}
	return w
}

func (w *twin) key() [2]uint64 { return w.keys[w.rnd.IntN(len(w.keys))] }

// some returns a random claim of the model, or nil.
func (w *twin) some() *Claim {
	ids := slices.SortedFunc(maps.Keys(w.model.claims), compareIDs)
	if len(ids) == 0 {
		return nil
	}
	return w.model.claims[ids[w.rnd.IntN(len(ids))]]
}

func compareIDs(a, b Ident) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) }

func (w *twin) add() {
	w.next++
	c := Claim{ID: Ident{w.next % 5, w.next}, Key: w.key(), RingPos: w.next, At: int64(w.next), Caller: 9, Amount: uint32(w.rnd.IntN(50))}
	c.SetMade(w.now)
	c.SetTTL(time.Duration(1+w.rnd.IntN(100)) * time.Second)
	c.SetFlags(Flags(w.rnd.IntN(16)))
	c.SetDomain(uint64(w.rnd.IntN(3)))
	if w.rnd.IntN(8) == 0 {
		c.SetState(Orphan)
	}
	copied := w.rnd.IntN(4) == 0
	before := maps.Clone(w.model.claims)
	got := w.table.Add(&c, copied)
	for id, old := range before { // what was forgotten to make room
		if w.table.Find(id) != nil {
			continue
		}
		if old.State() < Settled {
			w.t.Fatalf("claim %v in state %d was forgotten to make room", id, old.State())
		}
		w.model.remove(id)
	}
	if got == nil {
		w.refused(&c, copied)
		return
	}
	w.model.claims[c.ID], w.model.copied[c.ID] = &c, copied
}

// refused requires that a limit was reached: of this member's claims or copies, or of the domain.
func (w *twin) refused(c *Claim, copied bool) {
	own, copies, domain := w.count(c.Domain(), false)
	if c.forgettable() {
		total, _, keptOfDomain := w.count(c.Domain(), false)
		own, copies, ofDomain := w.count(c.Domain(), true)
		if copied && copies < w.limits.max || !copied && own < w.limits.max && ofDomain-keptOfDomain < w.limits.quota {
			w.t.Fatalf("a settled claim was refused: %d own, %d copies, %d to keep, at most %d", own, copies, total, w.limits.max)
		}
		return
	}
	if copied && copies < w.limits.max || !copied && own < w.limits.max && domain < w.limits.quota {
		w.t.Fatalf("a claim was refused: %d own, %d copies, %d of its domain, at most %d", own, copies, domain, w.limits.max)
	}
}

// count returns the numbers of the model's own claims, copies, and own ones of a domain: of all, or of those that must not
// be forgotten.
func (w *twin) count(domain uint16, all bool) (own, copies, of int64) {
	for id, c := range w.model.claims {
		switch {
		case !all && c.forgettable():
		case w.model.copied[id]:
			copies++
		case c.Domain() == domain:
			own, of = own+1, of+1
		default:
			own++
		}
	}
	return own, copies, of
}

func (w *twin) settle(c *Claim) {
	x := w.table.Find(c.ID)
	if x == nil || c.State() >= Settled {
		return
	}
	s, amount := Stage(1+w.rnd.IntN(2)), uint32(w.rnd.IntN(int(c.Amount)+1))
	w.table.Settle(w.now, x, s, amount)
	if c.State() == Open {
		c.SetTTL(time.Duration(w.now - c.Made()))
	}
	c.SetState(s)
	c.Amount = amount
	w.model.trim(c.Key)
	if w.rnd.IntN(8) > 0 { // else there was no room to track it: no earlier confirmation is about this settlement
		w.table.Change(x)
		w.model.change(c.ID)
	} else {
		w.model.changed[c.ID] = 0
	}
}

func (w *twin) send() {
	key, most := w.key(), 1+w.rnd.IntN(6)
	var ids []Ident
	seq := w.table.Unconfirmed(key, most, func(c *Claim) { ids = append(ids, c.ID) })
	list := w.model.pending[key]
	if (seq == 0) != (len(list) == 0) || w.table.HasChanges(key) != (len(list) > 0) {
		w.t.Fatalf("%d changes are sent as number %d", len(list), seq)
	}
	if seq == 0 {
		return
	}
	list = list[:min(most, len(list))]
	for i, x := range list {
		if i >= len(ids) || ids[i] != x.id {
			w.t.Fatalf("%v were sent, not %v", ids, list)
		}
	}
	w.sent = append(w.sent, sentChanges{key, seq, list[len(list)-1].order})
}

// confirm confirms a message, which may be an old one or one that was confirmed before.
func (w *twin) confirm() {
	if len(w.sent) == 0 {
		return
	}
	i := w.rnd.IntN(len(w.sent))
	x := w.sent[i]
	if w.rnd.IntN(3) > 0 {
		w.sent = slices.Delete(w.sent, i, i+1)
	}
	want, got := w.model.confirm(x.key, x.order), map[Ident]bool{}
	w.table.Confirm(x.key, x.seq, func(c *Claim) { got[c.ID] = true })
	if !maps.Equal(want, got) {
		w.t.Fatalf("%v may give back after a confirmation, not %v", got, want)
	}
}

func (w *twin) sweep() {
	drop := func(c *Claim) bool { return c.ID[1]%17 == 0 }
	own, copies := w.limits.Len()
	full := map[bool]bool{false: own > w.limits.max, true: copies > w.limits.max} // by whether it is a copy
	w.table.Sweep(w.now, 1+w.rnd.IntN(40), func(c *Claim) bool {
		if c.Ends() <= w.now && (c.State() >= Settled || c.Flags()&Once != 0) {
			w.t.Fatalf("claim %v, which has ended, is visited", c.ID)
		}
		return drop(c)
	})
	for _, id := range slices.Collect(maps.Keys(w.model.claims)) {
		c := w.model.claims[id]
		if w.table.Find(id) != nil {
			continue
		}
		if c.forgettable() && full[w.model.copied[id]] {
			w.model.remove(id)
			continue
		}
		if !drop(c) && (c.Ends() > w.now || c.State() < Settled && c.Flags()&Once == 0) {
			w.t.Fatalf("claim %v in state %d was swept %v before its end", id, c.State(), time.Duration(c.Ends()-w.now))
		}
		w.model.remove(id)
	}
}

func (w *twin) step() {
	w.now += int64(w.rnd.IntN(int(second)))
	switch c := w.some(); w.rnd.IntN(12) {
	case 0, 1, 2, 3:
		w.add()
	case 4, 5:
		if c != nil {
			w.settle(c)
		}
	case 6:
		if c != nil {
			w.table.Change(w.table.Find(c.ID))
			w.model.change(c.ID)
		}
	case 7:
		w.send()
	case 8, 9:
		w.confirm()
	case 10:
		if c != nil && w.rnd.IntN(3) == 0 {
			w.table.Remove(w.table.Find(c.ID))
			w.model.remove(c.ID)
		} else if c != nil {
			w.give(c.Key)
		}
	default:
		w.sweep()
	}
}

func (w *twin) give(key [2]uint64) {
	d := w.rnd.Int64N(1000) - 10
	w.table.Give(key, d)
	if d > 0 && w.model.totals(key).Open > 0 {
		w.model.given[key] += d
	}
}

// check compares all that can be read.
func (w *twin) check() {
	t, m := &w.table, w.model
	if t.Len() != len(m.claims) {
		w.t.Fatalf("%d claims, not %d", t.Len(), len(m.claims))
	}
	for id, c := range m.claims {
		if x := t.Find(id); x == nil || !sameClaim(x, c) {
			w.t.Fatalf("found %+v, not %+v", x, c)
		}
	}
	if t.Find(Ident{1, w.next + 1}) != nil {
		w.t.Fatal("found a claim that was never added")
	}
	each := 0
	for _, key := range w.keys {
		if got, want := t.Totals(key), m.totals(key); got != want {
			w.t.Fatalf("totals %+v, not %+v", got, want)
		}
		if got, want := t.Given(key), m.given[key]; got != want {
			w.t.Fatalf("%d given back, not %d", got, want)
		}
		t.Each(key, func(c *Claim) bool {
			if each++; c.Key != key {
				w.t.Fatalf("%v is visited as one of %v", c.Key, key)
			}
			return true
		})
	}
	if each != len(m.claims) {
		w.t.Fatalf("%d claims by key, not %d", each, len(m.claims))
	}
	own, copies, _ := w.count(0, true)
	if o, c := w.limits.Len(); o != own || c != copies {
		w.t.Fatalf("%d own and %d copies, not %d and %d", o, c, own, copies)
	}
	seen := map[Ident]int{}
	for at, end := uint32(0), false; !end; {
		at, end = t.Scan(at, 7, func(c *Claim) { seen[c.ID]++ })
	}
	if len(seen) != len(m.claims) {
		w.t.Fatalf("%d claims by scan, not %d", len(seen), len(m.claims))
	}
}

// sameClaim reports whether two claims have the same properties.
func sameClaim(a, b *Claim) bool {
	return a.ID == b.ID && a.Key == b.Key && a.RingPos == b.RingPos && a.At == b.At && a.Caller == b.Caller &&
		a.Amount == b.Amount && a.Made() == b.Made() && a.TTL() == b.TTL() && a.State() == b.State() &&
		a.Flags() == b.Flags() && a.Domain() == b.Domain()
}

// TestTable requires that a Table does what a map does, with every limit reached in some of the runs.
func TestTable(t *testing.T) {
	seeds := uint64(80)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		w := newTwin(t, seed, []int{2, 12, 60, 1000}[seed%4])
		for range 500 {
			w.step()
			w.check()
		}
	}
}
