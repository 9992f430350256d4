package claim

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	pageBits    = 6
	pageRecords = 1 << pageBits
	// manyOfKey is the number of open claims from which on Records store the totals of a key; of fewer, it counts them.
	manyOfKey = 8
)

// Allowance bounds the claims of all Records of a member. It is safe for concurrent use.
type Allowance struct {
	own, copies atomic.Int64
	max, quota  int64
	domains     [domainSlots]atomic.Int64
	seed        [2]uint64
}

// NewAllowance returns the limits of a member that makes at most most claims, of them half in one domain, and stores as
// many of other members. seed places keys in the Records, so that no client can choose keys that collide.
func NewAllowance(most int, seed [2]uint64) *Allowance {
	return &Allowance{max: int64(most), quota: int64(max(1, most/2)), seed: seed}
}

// Len returns how many claims this member has made and stores for others, settled ones among them.
func (l *Allowance) Len() (own, copies int64) { return l.own.Load(), l.copies.Load() }

// reserve makes room for c. It returns false, and changes nothing, if there is none.
func (l *Allowance) reserve(c *Claim) bool {
	if c.word&copiedBit != 0 {
		if l.copies.Add(1) > l.max {
			l.copies.Add(-1)
			return false
		}
		return true
	}
	if l.own.Add(1) > l.max {
		l.own.Add(-1)
		return false
	}
	if l.domains[c.Domain()].Add(1) > l.quota {
		l.domains[c.Domain()].Add(-1)
		l.own.Add(-1)
		return false
	}
	return true
}

func (l *Allowance) release(c *Claim) {
	if c.word&copiedBit != 0 {
		l.copies.Add(-1)
		return
	}
	l.own.Add(-1)
	l.domains[c.Domain()].Add(-1)
}

// OpenClaims are the sums of one key's open claims.
type OpenClaims struct {
	Open uint32 // claims
	Held uint64 // hits
}

// Records holds the claims of one shard of the counters. Its owner guards it with a lock. A *Claim is valid until the
// Records next adds or removes one.
type Records struct {
	limits *Allowance
	pages  [][]Claim
	free   uint32 // first of the records that are not in use, by next
	used   uint32 // records ever taken from the pages
	n      int
	byID   []uint32 // heads of the chains by ID, and by key
	byKey  []uint32
	swept  uint32 // record that Sweep visited last
	seq    uint32 // of the latest change

	totals  map[[2]uint64]*OpenClaims
	given   map[[2]uint64]int64 // nanoseconds given back of buckets with open claims
	changes map[[2]uint64]*changes
}

// Init sets the limits. It is called once, before any other method.
func (t *Records) Init(l *Allowance) { t.limits = l }

// Len returns the number of claims, settled ones among them.
func (t *Records) Len() int { return t.n }

// at returns record i, from 1 on.
func (t *Records) at(i uint32) *Claim {
	i--
	return &t.pages[i>>pageBits][i&(pageRecords-1)]
}

func (t *Records) idSlot(id Ident) *uint32 { return &t.byID[id[0]&uint64(len(t.byID)-1)] }

func (t *Records) keySlot(key [2]uint64) *uint32 {
	hi, lo := bits.Mul64(key[0]^t.limits.seed[0], key[1]^t.limits.seed[1])
	return &t.byKey[(hi^lo^key[0])*0x9E3779B97F4A7C15>>32&uint64(len(t.byKey)-1)]
}

// Find returns the claim with that ID, or nil.
func (t *Records) Find(id Ident) *Claim {
	if t.n == 0 {
		return nil
	}
	for i := *t.idSlot(id); i != 0; {
		c := t.at(i)
		if c.ID == id {
			return c
		}
		i = c.nextID
	}
	return nil
}

// Each calls f with each claim of key until it returns false. f must not add or remove claims.
func (t *Records) Each(key [2]uint64, f func(*Claim) bool) {
	if t.n == 0 {
		return
	}
	for i := *t.keySlot(key); i != 0; {
		c := t.at(i)
		i = c.next
		if c.Key == key && !f(c) {
			return
		}
	}
}

// Totals returns the sums of key's open claims.
func (t *Records) Totals(key [2]uint64) (s OpenClaims) {
	if x := t.totals[key]; x != nil {
		return *x
	}
	t.Each(key, func(c *Claim) bool {
		if c.live() {
			s.Open++
			s.Held += uint64(c.Amount)
		}
		return true
	})
	return s
}

// Add adds c, whose ID the Records must not have. A copy is a claim that another member has made. Add returns nil if
// there is no room, even after it has forgotten settled claims and those of sets. For a claim of a set it forgets none.
func (t *Records) Add(c *Claim, copied bool) *Claim {
	x := *c
	x.word &^= changedBit | trackedBit | copiedBit
	if copied {
		x.word |= copiedBit
	}
	if !t.limits.reserve(&x) && (x.Flags()&Set != 0 || !t.evict() || !t.limits.reserve(&x)) {
		return nil
	}
	t.grow()
	i := t.take()
	p := t.at(i)
	*p = x
	id, key := t.idSlot(x.ID), t.keySlot(x.Key)
	p.nextID, *id = *id, i
	p.next, *key = *key, i
	t.n++
	if x.live() {
		t.hold(&x)
	}
	return p
}

// Restore adds c, a claim of the Records that was removed, again. It returns nil if there is no room.
func (t *Records) Restore(c *Claim) *Claim { return t.Add(c, c.word&copiedBit != 0) }

// hold counts an open claim that was added.
func (t *Records) hold(c *Claim) {
	if x := t.totals[c.Key]; x != nil {
		x.Open++
		x.Held += uint64(c.Amount)
		return
	}
	if s := t.Totals(c.Key); s.Open >= manyOfKey {
		if t.totals == nil {
			t.totals = map[[2]uint64]*OpenClaims{}
		}
		t.totals[c.Key] = &s
	}
}

// unhold counts an open claim of key that is settled or removed.
func (t *Records) unhold(key [2]uint64, amount uint32) {
	x := t.totals[key]
	if x != nil {
		x.Open--
		x.Held -= uint64(amount)
		if x.Open == 0 {
			delete(t.totals, key)
		}
	}
	t.dropGiven(key)
}

// dropGiven forgets what was given back of key's bucket if no claim is left that needs it.
func (t *Records) dropGiven(key [2]uint64) {
	if _, bucket := t.given[key]; bucket && !t.anyOpen(key) {
		delete(t.given, key)
	}
}

// anyOpen reports whether any claim of key is open, of a set or not.
func (t *Records) anyOpen(key [2]uint64) (open bool) {
	if t.totals[key] != nil {
		return true
	}
	t.Each(key, func(c *Claim) bool {
		open = c.State() == Open && c.Flags()&Once == 0
		return !open
	})
	return open
}

// Settle sets the state of a claim at time now, and the hits that it gives back. The caller passes the claim to Change;
// until then, no confirmation is one of this state.
func (t *Records) Settle(now int64, c *Claim, s Stage, amount uint32) {
	was, held := c.Amount, c.live()
	if c.State() == Open {
		c.SetTTL(time.Duration(now - c.Made()))
	}
	c.SetState(s)
	c.word &^= trackedBit
	c.Amount = amount
	if held {
		t.unhold(c.Key, was)
	}
}

// End makes c, an open claim, one that has lapsed and is given back.
func (t *Records) End(c *Claim) {
	held := c.live()
	c.ttl = 0
	c.SetFlags(c.Flags() | Releases)
	if held {
		t.unhold(c.Key, c.Amount)
	}
}

// take returns the number of a record that is not in use.
func (t *Records) take() uint32 {
	if i := t.free; i != 0 {
		t.free = t.at(i).next
		return i
	}
	if int(t.used) == len(t.pages)*pageRecords {
		t.pages = append(t.pages, make([]Claim, pageRecords))
	}
	t.used++
	return t.used
}

// grow keeps the number of chains above that of the claims.
func (t *Records) grow() {
	if t.n < len(t.byID) {
		return
	}
	size := max(16, 2*len(t.byID))
	t.byID, t.byKey = make([]uint32, size), make([]uint32, size)
	for i := uint32(1); i <= t.used; i++ {
		if c := t.at(i); c.word != 0 {
			id, key := t.idSlot(c.ID), t.keySlot(c.Key)
			c.nextID, *id = *id, i
			c.next, *key = *key, i
		}
	}
}

// Remove removes c.
func (t *Records) Remove(c *Claim) {
	at, key := t.unlink(c), c.Key
	if c.Changed() {
		t.forget(key, at)
	}
	held, set, amount := c.live(), c.Flags()&Set != 0, c.Amount
	t.limits.release(c)
	*c = Claim{next: t.free}
	t.free = at
	t.n--
	switch {
	case held:
		t.unhold(key, amount)
	case set:
		t.dropGiven(key)
	}
	if t.n == 0 && len(t.pages) > 1 {
		t.pages, t.byID, t.byKey, t.free, t.used, t.swept, t.changes = nil, nil, nil, 0, 0, 0, nil
	}
}

// unlink removes c from its chains and returns its number.
func (t *Records) unlink(c *Claim) (at uint32) {
	p := t.idSlot(c.ID)
	for t.at(*p) != c {
		p = &t.at(*p).nextID
	}
	at, *p = *p, c.nextID
	p = t.keySlot(c.Key)
	for *p != at {
		p = &t.at(*p).next
	}
	*p = c.next
	return at
}

// evict forgets settled claims, and claims of sets, that are next to be swept. It reports whether there were any.
func (t *Records) evict() (any bool) {
	for range min(t.used, 8*pageRecords) {
		if c := t.nextSwept(); c != nil && (c.State() >= Settled || c.Flags()&Set != 0) {
			t.Remove(c)
			any = true
		}
		if t.n == 0 {
			break
		}
	}
	return any
}

// nextSwept returns the record after the one that it returned last, or nil if that is not in use.
func (t *Records) nextSwept() *Claim {
	if t.swept >= t.used {
		t.swept = 0
	}
	t.swept++
	if c := t.at(t.swept); c.word != 0 {
		return c
	}
	return nil
}

// Sweep visits a part of the claims: at least step records, and an eighth of all. It removes the settled ones that have
// ended, and those for which f returns true, and calls f with all others. f may settle the claim, and must not add or
// remove any.
func (t *Records) Sweep(now int64, step int, f func(*Claim) (drop bool)) {
	for range max(uint32(step), t.used/8) {
		if t.n == 0 {
			return
		}
		c := t.nextSwept()
		if c == nil {
			continue
		}
		ended := c.Ends() <= now && (c.State() >= Settled || c.Flags()&Once != 0)
		if ended || f(c) {
			t.Remove(c)
		}
	}
}

// Scan calls f with each claim in the records from at on, about step of them, and returns where to go on. end reports
// that there is no more. f must not add or remove claims.
func (t *Records) Scan(at uint32, step int, f func(*Claim)) (next uint32, end bool) {
	for ; step > 0 && at < t.used; step-- {
		at++
		if c := t.at(at); c.word != 0 {
			f(c)
		}
	}
	return at, at >= t.used
}

// Given returns the nanoseconds that the Records know to have been given back of key's bucket while claims of it were
// open. Claim.At of buckets includes it.
func (t *Records) Given(key [2]uint64) int64 { return t.given[key] }

// Give adds d nanoseconds to Given, if an open claim of key remains.
func (t *Records) Give(key [2]uint64, d int64) {
	if d <= 0 || !t.anyOpen(key) {
		return
	}
	if t.given == nil {
		t.given = map[[2]uint64]int64{}
	}
	t.given[key] += d
}
