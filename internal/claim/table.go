package claim

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	pageBits    = 4 // a page has exactly the size of one of the memory allocator's classes
	pageRecords = 1 << pageBits
	evictStep   = 512 // records that evict visits
	// manyOfKey is the number of open claims from which on Records store the totals of a key; of fewer, it counts them.
	manyOfKey = 8
)

// Allowance bounds the claims of all Records of a member. It is safe for concurrent use.
//
// Claims that may be forgotten take no room from others, whatever Records they are in: all Records can have as many others
// as fit. When there are more claims than that in total, Records forget those that they may.
type Allowance struct {
	own, copies roomUse
	max, quota  int64
	domains     [domainSlots]roomUse // own claims by domain
	seed        [2]uint64
}

// roomUse counts the claims that a member has made, or those that it stores for others.
type roomUse struct {
	all, kept atomic.Int64 // kept: those that must not be forgotten
}

// NewAllowance returns the limits of a member that makes at most most claims, of them half in one domain, and stores as
// many of other members. seed places keys in the Records, so that no client can choose keys that collide.
func NewAllowance(most int, seed [2]uint64) *Allowance {
	return &Allowance{max: int64(most), quota: int64(max(1, most/2)), seed: seed}
}

// Len returns how many claims this member has made and stores for others, settled ones among them.
func (l *Allowance) Len() (own, copies int64) { return l.own.all.Load(), l.copies.all.Load() }

func (l *Allowance) of(c *Claim) *roomUse {
	if c.word&copiedBit != 0 {
		return &l.copies
	}
	return &l.own
}

// reserve makes room for c. It returns false, and changes nothing, if there is none. Of the claims of a domain, those that may be
// forgotten have a quota of their own.
func (l *Allowance) reserve(c *Claim) bool {
	l.count(c, 1)
	u, d := l.of(c), &l.domains[c.Domain()]
	all, kept, own := u.all.Load(), u.kept.Load(), u == &l.own
	if c.forgettable() && all <= l.max && !(own && d.all.Load()-d.kept.Load() > l.quota) ||
		!c.forgettable() && kept <= l.max && !(own && d.kept.Load() > l.quota) {
		return true
	}
	l.count(c, -1)
	return false
}

func (l *Allowance) release(c *Claim) { l.count(c, -1) }

// count adds n to the counts of c's kind.
func (l *Allowance) count(c *Claim, n int64) {
	l.of(c).all.Add(n)
	if l.of(c) == &l.own {
		l.domains[c.Domain()].all.Add(n)
	}
	if !c.forgettable() {
		l.countKept(c, n)
	}
}

// countKept adds n to the counts of the claims that must not be forgotten, of which c is one.
func (l *Allowance) countKept(c *Claim, n int64) {
	l.of(c).kept.Add(n)
	if l.of(c) == &l.own {
		l.domains[c.Domain()].kept.Add(n)
	}
}

// exceeded reports whether there are too many claims of c's kind, so that those that may be forgotten have to be.
func (l *Allowance) exceeded(c *Claim) bool { return l.of(c).all.Load() > l.max }

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
	byKey  []uint32 // in pairs: of the open claims, and of the others
	swept  uint32   // record that Sweep visited last
	seq    uint32   // of the latest change

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

// keySlots returns the heads of the chains with key's claims: those that may hold hits, and the others. A key may have many
// more of the others, through which no request should have to search.
func (t *Records) keySlots(key [2]uint64) *[2]uint32 {
	hi, lo := bits.Mul64(key[0]^t.limits.seed[0], key[1]^t.limits.seed[1])
	i := (hi ^ lo ^ key[0]) * 0x9E3779B97F4A7C15 >> 32 & uint64(len(t.byKey)/2-1)
	return (*[2]uint32)(t.byKey[2*i:])
}

func (t *Records) keySlot(c *Claim) *uint32 { return &t.keySlots(c.Key)[c.chain()] }

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
	if t.eachIn(0, key, f) {
		t.eachIn(1, key, f)
	}
}

// EachOpen is Each for the claims that are open, without those that only recognize repeated requests.
func (t *Records) EachOpen(key [2]uint64, f func(*Claim) bool) { t.eachIn(0, key, f) }

// eachIn calls f with each claim of key in one of its chains until f returns false, and reports whether f never has.
func (t *Records) eachIn(chain int, key [2]uint64, f func(*Claim) bool) bool {
	if t.n == 0 {
		return true
	}
	for i := t.keySlots(key)[chain]; i != 0; {
		c := t.at(i)
		i = c.next
		if c.Key == key && !f(c) {
			return false
		}
	}
	return true
}

// Totals returns the sums of key's open claims.
func (t *Records) Totals(key [2]uint64) (s OpenClaims) {
	if x := t.totals[key]; x != nil {
		return *x
	}
	t.EachOpen(key, func(c *Claim) bool {
		if c.Live() {
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
	if !t.limits.reserve(&x) && (!x.forgettable() || x.Flags()&Set != 0 || !t.evict() || !t.limits.reserve(&x)) {
		return nil
	}
	if t.limits.exceeded(&x) {
		t.evict()
	}
	t.grow()
	i := t.take()
	p := t.at(i)
	*p = x
	t.link(p, i)
	t.n++
	if x.Live() {
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
	t.EachOpen(key, func(*Claim) bool {
		open = true
		return false
	})
	return open
}

// Settle sets the state of a claim at time now, and the hits that it gives back. The caller passes the claim to Change;
// until then, no confirmation is one of this state.
func (t *Records) Settle(now int64, c *Claim, s Stage, amount uint32) {
	was, held, kept := c.Amount, c.Live(), !c.forgettable()
	if c.State() == Open {
		c.SetTTL(time.Duration(now - c.Made()))
	}
	at := t.number(c)
	t.unlinkKey(c)
	c.SetState(s)
	t.linkKey(c, at)
	if kept && c.forgettable() {
		t.limits.countKept(c, -1)
	}
	c.word &^= trackedBit
	c.Amount = amount
	if held {
		t.unhold(c.Key, was)
	}
}

// End makes c, an open claim, one that has lapsed and is given back.
func (t *Records) End(c *Claim) {
	held := c.Live()
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
	if t.n < 2*len(t.byID) {
		return
	}
	size := max(16, 2*len(t.byID))
	t.byID, t.byKey = make([]uint32, size), make([]uint32, size/2) // 3 to 6 bytes a claim
	for i := uint32(1); i <= t.used; i++ {
		if c := t.at(i); c.word != 0 {
			t.link(c, i)
		}
	}
}

// link adds c, record i, to its chains.
func (t *Records) link(c *Claim, i uint32) {
	id := t.idSlot(c.ID)
	c.nextID, *id = *id, i
	t.linkKey(c, i)
}

// linkKey adds c, record i, to the chain of its key.
func (t *Records) linkKey(c *Claim, i uint32) {
	key := t.keySlot(c)
	c.prev, c.next, *key = 0, *key, i
	if c.next != 0 {
		t.at(c.next).prev = i
	}
}

// unlinkKey removes c from the chain of its key.
func (t *Records) unlinkKey(c *Claim) {
	if c.prev != 0 {
		t.at(c.prev).next = c.next
	} else {
		*t.keySlot(c) = c.next
	}
	if c.next != 0 {
		t.at(c.next).prev = c.prev
	}
}

// Remove removes c.
func (t *Records) Remove(c *Claim) {
	at, key := t.unlink(c), c.Key
	if c.Changed() {
		t.forget(key, at)
	}
	held, set, amount := c.Live(), c.Flags()&Set != 0, c.Amount
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
	t.unlinkKey(c)
	return at
}

// evict forgets settled claims, and claims of sets, that are next to be swept. It reports whether there were any.
func (t *Records) evict() (any bool) {
	for range min(t.used, evictStep) {
		if c := t.nextSwept(); c != nil && c.forgettable() {
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
// ended, those that may be forgotten if there are too many, and those for which f returns true. It calls f with all others. f may settle the claim, and must not add or
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
		if ended || c.forgettable() && t.limits.exceeded(c) || f(c) {
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
