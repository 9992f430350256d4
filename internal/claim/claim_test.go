package claim

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// open returns an open claim of key k.
func open(id uint64, k uint64) *Claim {
	c := &Claim{ID: Ident{id * 0x9E3779B97F4A7C15, id}, Key: [2]uint64{k, k}, Amount: 3}
	c.SetMade(start)
	c.SetTTL(time.Minute)
	return c
}

func newTable(most int) *Records {
	t := &Records{}
	t.Init(NewAllowance(most, [2]uint64{1, 2}))
	return t
}

// TestClaimFields requires that no field of the packed word changes another one.
func TestClaimFields(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var c Claim
		made, ttl := start+rnd.Int64N(math.MaxInt64/2-start), time.Duration(rnd.Int64N(int64(365*24*time.Hour)))
		state, flags, domain := Stage(rnd.IntN(4)), Flags(rnd.IntN(16)), rnd.Uint64()
		set := []func(){
			func() { c.SetMade(made) }, func() { c.SetTTL(ttl) }, func() { c.SetState(state) },
			func() { c.SetFlags(flags) }, func() { c.SetDomain(domain) },
		}
		for range 3 {
			for _, i := range rnd.Perm(len(set)) {
				set[i]()
			}
		}
		if c.Made() != made-made%int64(time.Millisecond) || c.TTL() < ttl || c.TTL() >= ttl+time.Second || c.State() != state ||
			c.Flags() != flags || uint64(c.Domain()) != domain%domainSlots || c.Changed() || c.Tracked() {
			t.Fatalf("made %d, ttl %v, state %d, flags %d, domain %d: %+v", made, ttl, state, flags, domain, c)
		}
		if want := c.Made() + int64(c.TTL()); state == Open && c.Ends() != want || state != Open && c.Ends() != want+int64(MarkLife) {
			t.Fatalf("%+v ends at %d", c, c.Ends())
		}
	}
	var c Claim
	c.SetTTL(-time.Second)
	if c.SetMade(-5); c.Made() <= 0 || c.TTL() != 0 {
		t.Errorf("made at %d, lapses after %v", c.Made(), c.TTL())
	}
}

// TestSettledClaimsAreForgottenFirst requires that only settled claims make room for new ones.
func TestSettledClaimsAreForgottenFirst(t *testing.T) {
	x := newTable(400) // 200 in one domain
	for id := range uint64(200) {
		if x.Add(open(id, id%3), false) == nil {
			t.Fatalf("claim %d found no room", id)
		}
	}
	if x.Add(open(1000, 1), false) != nil {
		t.Fatal("a claim more than the domain's quota")
	}
	other := open(1001, 1)
	other.SetDomain(5)
	if x.Add(other, false) == nil {
		t.Fatal("another domain has no room")
	}
	for id := range uint64(50) {
		x.Settle(start, x.Find(open(id, 0).ID), Settled, 0)
	}
	x.Settle(start, x.Find(open(50, 0).ID), Settling, 1)
	for id := range uint64(50) {
		if x.Add(open(2000+id, 1), false) == nil {
			t.Fatalf("claim %d found no room in the places of settled ones", id)
		}
	}
	if x.Add(open(3000, 1), false) != nil {
		t.Fatal("a claim took the place of an open one")
	}
	for id := uint64(50); id < 200; id++ {
		if x.Find(open(id, 0).ID) == nil {
			t.Fatalf("claim %d, which is not settled, was forgotten", id)
		}
	}
}

// TestCopiesHaveTheirOwnLimit requires that copies of others' claims never refuse this member's.
func TestCopiesHaveTheirOwnLimit(t *testing.T) {
	x := newTable(100)
	for id := range uint64(100) {
		if x.Add(open(id, 1), true) == nil {
			t.Fatalf("copy %d found no room", id)
		}
	}
	if x.Add(open(500, 1), true) != nil {
		t.Error("a copy more than the limit")
	}
	if x.Add(open(501, 1), false) == nil {
		t.Error("copies have refused this member's claim")
	}
}

// TestLateConfirmations requires that the confirmation of a message confirms no change that came after it, also if all
// earlier changes were confirmed in between by a repetition of the message.
func TestLateConfirmations(t *testing.T) {
	x := newTable(10)
	c := x.Add(open(1, 1), false)
	x.Change(c)
	first := x.Unconfirmed(c.Key, 10, func(*Claim) {})
	again := x.Unconfirmed(c.Key, 10, func(*Claim) {})
	x.Confirm(c.Key, again, func(*Claim) {})
	x.Settle(start, c, Settling, 3)
	x.Change(c)
	x.Confirm(c.Key, first, func(c *Claim) { t.Errorf("%+v may give back: its mark was never sent", c) })
	if !c.Changed() {
		t.Error("a change that was never sent is confirmed")
	}
	seq := x.Unconfirmed(c.Key, 10, func(*Claim) {})
	got := 0
	if x.Confirm(c.Key, seq, func(*Claim) { got++ }); got != 1 {
		t.Errorf("%d claims may give back after the confirmation of the mark", got)
	}
}

// TestUntrackedSettlements requires that an earlier confirmation is not taken for that of a settlement that found no
// room among the changes.
func TestUntrackedSettlements(t *testing.T) {
	x := newTable(10)
	c := x.Add(open(1, 1), false)
	x.Change(c)
	seq := x.Unconfirmed(c.Key, 10, func(*Claim) {})
	x.Settle(start, c, Settling, 3)
	x.Confirm(c.Key, seq, func(c *Claim) { t.Errorf("%+v may give back: its mark was never sent", c) })
	if c.Tracked() {
		t.Error("the settlement counts as confirmed")
	}
}

// TestChangesWrapAround requires that the numbers of changes may begin again.
func TestChangesWrapAround(t *testing.T) {
	x := newTable(10)
	c := x.Add(open(1, 1), false)
	x.seq = math.MaxUint32 - 3
	for range 8 {
		x.Change(c)
		late := x.Unconfirmed(c.Key, 10, func(*Claim) {})
		x.Change(c)
		seq := x.Unconfirmed(c.Key, 10, func(*Claim) {})
		if late == 0 || seq == 0 {
			t.Fatal("number 0 means no change")
		}
		if x.Confirm(c.Key, late, func(*Claim) {}); !x.HasChanges(c.Key) {
			t.Fatal("a later change is confirmed")
		}
		if x.Confirm(c.Key, seq, func(*Claim) {}); x.HasChanges(c.Key) {
			t.Fatal("a change is not confirmed")
		}
	}
}

// TestEmptyTablesHoldNoMemory requires that the last claim takes the memory of all with it.
func TestEmptyTablesHoldNoMemory(t *testing.T) {
	x := newTable(1000)
	for id := range uint64(300) {
		x.Change(x.Add(open(id, id%2), false))
	}
	x.Give([2]uint64{1, 1}, 5)
	for id := range uint64(300) {
		x.Remove(x.Find(open(id, 0).ID))
	}
	if x.pages != nil || x.byID != nil || x.byKey != nil || len(x.totals)+len(x.given)+len(x.changes) > 0 {
		t.Errorf("an empty table: %+v", x)
	}
	if own, copies := x.limits.Len(); own+copies != 0 {
		t.Errorf("%d own and %d copies", own, copies)
	}
}

func BenchmarkAddSettleRemove(b *testing.B) {
	x := newTable(1 << 20)
	for id := range uint64(100_000) {
		x.Add(open(id, id%100), false)
	}
	b.ReportAllocs()
	id := uint64(1 << 30)
	for b.Loop() {
		id++
		c := x.Add(open(id, id%100), false)
		x.Settle(start, c, Settled, 0)
		x.Remove(c)
	}
}

// TestSettledClaimsAreNotSearched requires that the search for a key's open claims visits no settled ones: a minute of
// requests leaves a hundred thousand of them.
func TestSettledClaimsAreNotSearched(t *testing.T) {
	x := newTable(1000)
	for id := range uint64(100) {
		x.Settle(start, x.Add(open(id+1, 7), false), Settled, 0)
	}
	c := x.Add(open(101, 7), false)
	key := c.Key
	if p := x.keySlots(key)[0]; x.at(p) != c || c.next != 0 {
		t.Error("settled claims are in the chain of the open ones")
	}
	all := 0
	x.Each(key, func(*Claim) bool { all++; return true })
	if all != 101 {
		t.Errorf("%d claims", all)
	}
}
