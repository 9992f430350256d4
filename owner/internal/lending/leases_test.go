package lending

import (
	"testing"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

const t0 = int64(1_700_000_000_000_000_000)

var hourly = limit.Rule{Algorithm: limit.FixedWindow, Window: time.Hour, Limit: 1000}

// member is one member of a ring of a and b, with one shard of counters. It implements Owner.
type member struct {
	reclaimed uint64
	*Leases
	ring    *ring.Ring
	machine *handoff.Machine
	state   limit.State
	flushes int
	await   bool // all grants wait for their replicas
	waiting []*PendingGrant
}

func newMember(id ring.ID) *member {
	m := &member{Leases: &Leases{}}
	m.ring = ring.New([]ring.Member{{ID: "a", BootID: 1, Weight: 1}, {ID: "b", BootID: 3, Weight: 1}})
	boots := map[ring.ID]uint64{"a": 1, "b": 3}
	m.machine = handoff.NewMachine(handoff.Options{Self: id, BootID: boots[id]})
	m.machine.SetMembership(t0, &membership.View{
		Self: id, BootID: boots[id], Ring: m.ring, NRef: 2, Joined: true,
		Members: []membership.Member{
			{ID: "a", BootID: 1, State: membership.Active}, {ID: "b", BootID: 3, State: membership.Active},
		},
	})
	store, shard := counter.New(counter.Config{BootID: boots[id], MaxKeys: 1000, DomainQuota: 1000}), &counter.Shard{}
	store.Init(shard)
	lender := NewLender(m.machine, LenderConfig{BootID: boots[id], HotRate: 1e6, MaxLeases: 10})
	m.Init(lender, shard, m)
	m.SetView(m.machine.View())
	return m
}

func (m *member) Charge(c *Charge) {
	m.state.TAT, m.state.Slots = 0, m.state.Slots[:0]
	if c.Entry != nil {
		m.counters.Load(c.Entry, c.Rule, &m.state)
	}
	if c.Hits == 0 {
		c.Decision = c.Rule.Peek(&m.state, c.Now, 0)
		return
	}
	c.Decision = c.Rule.Take(&m.state, c.Now, m.lender.config.BootID, c.Hits)
	c.Overflow = !m.counters.Store(c.Entry, c.Rule, &m.state)
}

func (m *member) Refund(c *Charge, _ int64) bool {
	m.counters.Load(c.Entry, c.Rule, &m.state)
	c.Rule.Refund(&m.state, c.Now, m.lender.config.BootID, c.Hits)
	return m.counters.Store(c.Entry, c.Rule, &m.state)
}

func (m *member) AwaitReplication(_ *Charge, g *PendingGrant) bool {
	if m.await {
		m.waiting = append(m.waiting, g)
	}
	return !m.await
}

func (m *member) Merge(int64, *protocol.CounterRecord) {}

func (m *member) RecordReclaim(_, _ int64, hits uint64) { m.reclaimed += hits }
func (m *member) RequestFlush(bool)                     { m.flushes++ }

// spend returns a request of b for hits of a key that a owns, by a rule that requires leases.
func (m *member) spend(now int64, hits uint64) *Spend {
	pos := uint64(0)
	for m.ring.At(m.ring.Owner(pos)).ID != "a" {
		pos += 1 << 40
	}
	return &Spend{Ref: m.ref(Key{1, 2}, pos, hourly, now), Hits: hits, Mechanism: policy.ByLease}
}

// exchange sends the requests of holder to grantor, and returns the grants.
func exchange(t *testing.T, now int64, holder, grantor *member) (replies Outbox) {
	t.Helper()
	var out Outbox
	holder.Flush(now, &out)
	if len(out.Leases) != 1 || out.Leases[0].To != "a" || len(out.Leases[0].Batch.Requests) != 1 {
		t.Fatalf("requests: %+v", out.Leases)
	}
	grantor.Grant(now, lease.Holder{ID: "b", BootID: 3}, &out.Leases[0].Batch.Requests[0], &replies)
	return replies
}

// TestHolderSpendsWhatItWasLent requires that a holder asks the owner until it has a lease, and then decides by itself
// hits that the owner has charged.
func TestHolderSpendsWhatItWasLent(t *testing.T) {
	grantor, holder := newMember("a"), newMember("b")
	now := t0
	if _, result := holder.Decide(holder.spend(now, 1)); result != lease.Unknown || holder.flushes == 0 {
		t.Fatalf("%v without a lease, %d flushes", result, holder.flushes)
	}
	replies := exchange(t, now, holder, grantor)
	if len(replies.Leases) != 1 || replies.Leases[0].To != "b" {
		t.Fatalf("replies: %+v", replies.Leases)
	}
	g := &replies.Leases[0].Batch.Grants[0]
	if holder.AcceptGrant(now, "c", g); holder.held[g.Key].Left(now) != 0 {
		t.Error("a grant of a member that was not asked is accepted")
	}
	holder.AcceptGrant(now, "a", g)
	left := holder.held[g.Key].Left(now)
	if d, result := holder.Decide(holder.spend(now, 1)); result != lease.Admitted || d.Over || left == 0 {
		t.Fatalf("%v with a lease of %d hits: %+v", result, left, d)
	}
	var f, h LeaseStats
	grantor.AddStats(now, &f)
	holder.AddStats(now, &h)
	if f.Lent != left || f.LentKeys != 1 || f.Holders != 1 || h.Held != 1 || h.HeldHits != left-1 || h.LocalHits != 1 {
		t.Errorf("grantor %+v\nholder %+v", f, h)
	}
	e := grantor.counters.Find(g.Key)
	if grantor.counters.Load(e, hourly, &grantor.state); hourly.Used(&grantor.state, now) != left {
		t.Errorf("%d hits are charged for a lease of %d", hourly.Used(&grantor.state, now), left)
	}
}

// TestGrantWaitsForItsReplica requires that a grant is not sent before the owner has confirmed it.
func TestGrantWaitsForItsReplica(t *testing.T) {
	grantor, holder := newMember("a"), newMember("b")
	grantor.await = true
	holder.Decide(holder.spend(t0, 1))
	out := exchange(t, t0, holder, grantor)
	if len(out.Leases) > 0 || len(grantor.waiting) != 1 {
		t.Fatalf("sent %+v, waiting %d", out.Leases, len(grantor.waiting))
	}
	grantor.waiting[0].Send(&out)
	if len(out.Leases) != 1 || out.Leases[0].Batch.Grants[0].Total == 0 {
		t.Errorf("sent %+v", out.Leases)
	}
}

// TestHoldersAreNotifiedOfAnExhaustedLimit requires one notice when nothing is left of a lent limit.
func TestHoldersAreNotifiedOfAnExhaustedLimit(t *testing.T) {
	grantor, holder := newMember("a"), newMember("b")
	holder.Decide(holder.spend(t0, 1))
	g := exchange(t, t0, holder, grantor).Leases[0].Batch.Grants[0]
	holder.AcceptGrant(t0, "a", &g)
	e := grantor.counters.Find(g.Key)
	grantor.Charge(&Charge{Ref: holder.spend(t0, 1).Ref, Entry: e, Hits: uint64(hourly.Limit)})
	for range 2 {
		grantor.Update(e, &Count{Now: t0, Rule: hourly, Hits: uint64(hourly.Limit)})
	}
	var out Outbox
	grantor.Flush(t0, &out)
	if len(out.Leases) != 1 || len(out.Leases[0].Batch.Notices) != 1 || out.Leases[0].Batch.Notices[0].Kind != lease.Deny {
		t.Fatalf("sent %+v", out.Leases)
	}
	holder.AcceptNotice(t0, "a", &out.Leases[0].Batch.Notices[0])
	if _, result := holder.Decide(holder.spend(t0, 1000)); result != lease.Refused {
		t.Errorf("%v after the notice", result)
	}
}

func TestLeasesEndWithTheOwnership(t *testing.T) {
	grantor, holder := newMember("a"), newMember("b")
	holder.Decide(holder.spend(t0, 1))
	exchange(t, t0, holder, grantor)
	elsewhere := grantor.view
	alone := handoff.NewMachine(handoff.Options{Self: "a", BootID: 1})
	alone.SetMembership(t0, &membership.View{
		Self: "a", BootID: 1, Ring: ring.New([]ring.Member{{ID: "a", BootID: 1, Weight: 1}}), NRef: 1, Joined: true,
	})
	grantor.SetView(alone.View())
	if grantor.DropUnowned(); !grantor.LendsAny() {
		t.Error("a key that the member owns is not lent any more")
	}
	grantor.SetView(elsewhere) // of a ring whose other member has not acknowledged it
	if grantor.DropUnowned(); grantor.LendsAny() {
		t.Error("a key that the member does not own is lent")
	}
}
