package replica

import (
	"slices"
	"testing"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner/internal/counter"
	"github.com/keyward/keyward/ring"
)

const (
	t0     = int64(1_700_000_000_000_000_000)
	resend = 10 * time.Millisecond
)

var minute = limit.Rule{Algorithm: limit.FixedWindow, Window: time.Minute, Limit: 100}

// sender is member a of a ring of a, b and c, with one shard of counters.
type sender struct {
	*Replicator
	t        *testing.T
	machine  *handoff.Machine
	ring     *ring.Ring
	counters counter.Shard
	backlog  Backlog
}

func newSender(t *testing.T) *sender { return newSenderIn(t, nil) }

// newSenderIn is newSender with members in these zones.
func newSenderIn(t *testing.T, zones map[ring.ID]string) *sender {
	t.Helper()
	m := handoff.NewMachine(handoff.Options{Self: "a", BootID: 1})
	s := &sender{Replicator: New(resend, m), t: t, machine: m}
	s.ring = ring.New([]ring.Member{
		{ID: "a", BootID: 1, Weight: 1, Zone: zones["a"]}, {ID: "b", BootID: 3, Weight: 1, Zone: zones["b"]},
		{ID: "c", BootID: 5, Weight: 1, Zone: zones["c"]},
	})
	m.SetMembership(t0, &membership.View{
		Self: "a", BootID: 1, Ring: s.ring, NRef: 3, Joined: true,
		Members: []membership.Member{
			{ID: "a", BootID: 1, State: membership.Active}, {ID: "b", BootID: 3, State: membership.Active},
			{ID: "c", BootID: 5, State: membership.Active},
		},
	})
	s.SetView(m.View(), true)
	store := counter.New(counter.Config{BootID: 1, MaxKeys: 1000, DomainQuota: 1000, MaxHolds: 100})
	store.Init(&s.counters)
	s.backlog.Init(&s.counters)
	return s
}

// charge charges a hit to the i-th key that a owns, whose successor is b.
func (s *sender) charge(i int) *counter.Owned {
	pos := uint64(0)
	for n := 0; ; pos += 1 << 40 {
		if s.ring.At(s.ring.Owner(pos)).ID == "a" && s.ring.At(s.ring.Successor(pos)).ID == "b" {
			if n == i {
				break
			}
			n++
		}
	}
	key := counter.Key{uint64(i) + 1, pos}
	r := counter.Ref{Key: key, Hash: s.counters.Hash(key), RingPos: pos, Now: t0, Rule: minute, Full: minute}
	e := s.counters.Find(key)
	if e == nil {
		if e = s.counters.Insert(r, false, &limit.State{}); e == nil {
			s.t.Fatal("no room for a counter")
		}
	}
	s.counters.Charge(e, minute, s.counters.Newest(e, minute), 1)
	if u, _ := s.backlog.Track(e, minute, 1); u == nil {
		s.t.Fatal("no room for an unreplicated charge")
	}
	return e
}

// batch returns the only message that is to be sent, to a member.
func (s *sender) batch(now int64, to ring.ID) protocol.Message {
	s.t.Helper()
	s.Gather(now, &s.backlog)
	out := s.Send(now)
	if len(out) != 1 || out[0].To != to || out[0].Msg.Kind != protocol.Replica || len(out[0].Msg.Counters) != 1 {
		s.t.Fatalf("%d messages: %+v", len(out), out)
	}
	return out[0].Msg
}

func TestConfirmedChargesAreForgotten(t *testing.T) {
	s := newSender(t)
	e := s.charge(0)
	u := s.counters.Unreplicated(e)
	msg := s.batch(t0, "b")
	if items := s.Confirm(msg.Seq, "c"); items != nil {
		t.Errorf("a member that has no batch confirmed it: %+v", items)
	}
	s.charge(0)
	items := s.Confirm(msg.Seq, "b")
	if len(items) != 1 || !items[0].Covers(u.Seq(), 1) || items[0].Covers(u.Seq(), 2) || !items[0].Covers(u.Seq()-1, 2) {
		t.Fatalf("confirmed: %+v", items)
	}
	if !s.backlog.Confirm(&items[0]) || u.Unconfirmed() != 1 || s.InFlight() {
		t.Errorf("%d hits are not confirmed, in flight: %v", u.Unconfirmed(), s.InFlight())
	}
	items = s.Confirm(s.batch(t0, "b").Seq, "b")
	if s.backlog.Confirm(&items[0]); s.counters.Unreplicated(e) != nil {
		t.Error("there are unreplicated charges, although all are confirmed")
	}
}

// TestSuccessorThatIsSilent requires that another member gets a batch that the successor does not confirm, and that the
// successor gets it later.
func TestSuccessorThatIsSilent(t *testing.T) {
	s := newSender(t)
	s.charge(0)
	s.batch(t0, "b")
	now := t0 + int64(resend)
	items := s.Unconfirmed(now)
	if len(items) != 1 || !s.backlog.Requeue(&items[0]) {
		t.Fatalf("to be sent again: %+v", items)
	}
	other := s.batch(now, "c")
	for _, item := range s.Confirm(other.Seq, "c") {
		s.backlog.Confirm(&item)
	}
	if missed := slices.Collect(s.Missed(now)); len(missed) > 0 {
		t.Errorf("%v is sent to a member that is silent", missed)
	}
	s.machine.Contact(now, "b")
	for range 2 { // until it is confirmed
		for key := range s.Missed(now) {
			s.AddMissed(now, &s.backlog, key)
		}
		other = s.batch(now, "b")
	}
	s.Confirm(other.Seq, "b")
	if missed := slices.Collect(s.Missed(now)); len(missed) > 0 {
		t.Errorf("%v is still missed", missed)
	}
}

// TestBatchesInFlightAreLimited requires that charges remain queued while too many batches are not confirmed.
func TestBatchesInFlightAreLimited(t *testing.T) {
	s := newSender(t)
	seqs := []uint64{}
	for i := 0; s.HasRoom(); i++ {
		s.charge(i)
		seqs = append(seqs, s.batch(t0, "b").Seq)
	}
	if len(seqs) != maxFlight {
		t.Errorf("%d batches in flight", len(seqs))
	}
	s.charge(maxFlight)
	if _, more := s.Gather(t0, &s.backlog); !more || len(s.Send(t0)) > 0 {
		t.Errorf("more %v, or a message was sent", more)
	}
	s.Confirm(seqs[0], "b")
	s.batch(t0, "b")
}

// TestZoneReplicas requires that a charge whose successor is in the owner's zone is sent to another zone as well, that
// no charge waits for it, and that it is sent again until it is confirmed.
func TestZoneReplicas(t *testing.T) {
	s := newSenderIn(t, map[ring.ID]string{"a": "1", "b": "1", "c": "2"})
	e := s.charge(0)
	s.Gather(t0, &s.backlog)
	out := s.Send(t0)
	if len(out) != 2 || out[0].To != "b" || out[1].To != "c" || len(out[1].Msg.Counters) != 1 {
		t.Fatalf("%d messages: %+v", len(out), out)
	}
	if items := s.Confirm(out[0].Msg.Seq, "b"); len(items) != 1 || !s.backlog.Confirm(&items[0]) {
		t.Errorf("the successor confirmed %+v", items)
	}
	if u := s.counters.Unreplicated(e); u != nil {
		t.Errorf("%d hits are not confirmed, although the successor has all", u.Unconfirmed())
	}
	late := t0 + int64(resend)
	if items := s.Unconfirmed(late); len(items) != 0 {
		t.Errorf("zone replicas are sent to another member: %+v", items)
	}
	s.machine.Contact(late, "c") // it is not silent
	again := func(now int64) []protocol.Outbound {
		for key := range s.Missed(now) {
			s.AddMissed(now, &s.backlog, key)
		}
		return s.Send(now)
	}
	if out = again(late); len(out) != 1 || out[0].To != "c" || len(out[0].Msg.Counters) != 1 {
		t.Fatalf("sent again: %+v", out)
	}
	if items := s.Confirm(out[0].Msg.Seq, "c"); len(items) != 0 {
		t.Errorf("a zone replica confirms charges: %+v", items)
	}
	if out = again(late); len(out) != 0 || s.InFlight() {
		t.Errorf("sent after the confirmation: %+v", out)
	}
}

// TestZoneReplicasOfSilentMembers requires that a silent member gets its zone replicas when it sends something again.
func TestZoneReplicasOfSilentMembers(t *testing.T) {
	s := newSenderIn(t, map[ring.ID]string{"a": "1", "b": "1", "c": "2"})
	s.machine.NoReply(t0, "c", t0)
	s.charge(0)
	s.batch(t0, "b")
	s.machine.Contact(t0+1, "c")
	for key := range s.Missed(t0 + 1) {
		s.AddMissed(t0+1, &s.backlog, key)
	}
	if out := s.Send(t0 + 1); len(out) != 1 || out[0].To != "c" {
		t.Errorf("sent: %+v", out)
	}
}

// TestNoZoneReplica requires that a charge is sent to one member if its successor is in another zone, or if the zone of
// the owner or of the other members is unknown.
func TestNoZoneReplica(t *testing.T) {
	for name, zones := range map[string]map[ring.ID]string{
		"other zone": {"a": "1", "b": "2", "c": "3"}, "owner unknown": {"b": "1", "c": "2"},
		"others unknown": {"a": "1", "b": "1"}, "one zone": {"a": "1", "b": "1", "c": "1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSenderIn(t, zones)
			s.charge(0)
			s.batch(t0, "b")
		})
	}
}

// TestSuccessorInAnotherZoneConfirms requires that a successor in another zone, which another member has confirmed for,
// confirms the charges when it gets them.
func TestSuccessorInAnotherZoneConfirms(t *testing.T) {
	s := newSenderIn(t, map[ring.ID]string{"a": "1", "b": "2", "c": "3"})
	s.machine.NoReply(t0, "b", t0)
	s.charge(0)
	s.Confirm(s.batch(t0, "c").Seq, "c")
	s.machine.Contact(t0+1, "b")
	for key := range s.Missed(t0 + 1) {
		s.AddMissed(t0+1, &s.backlog, key)
	}
	out := s.Send(t0 + 1)
	if len(out) != 1 || out[0].To != "b" {
		t.Fatalf("sent: %+v", out)
	}
	if items := s.Confirm(out[0].Msg.Seq, "b"); len(items) != 1 {
		t.Errorf("the successor confirmed %+v", items)
	}
}
