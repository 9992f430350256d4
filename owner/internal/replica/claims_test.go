package replica

import (
	"slices"
	"testing"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

// claims returns the number and the claims of the only message in out.
func (s *sender) claims(out []protocol.Outbound) (seq uint64, claims []claim.Claim) {
	s.t.Helper()
	if len(out) != 1 {
		s.t.Fatalf("%d messages", len(out))
	}
	for _, c := range out[0].Msg.Counters {
		claims = append(claims, c.Claims...)
	}
	return out[0].Msg.Seq, claims
}

// TestMissedClaims requires that a successor gets the claims that another member has confirmed in its place, also if it has
// confirmed later ones of the same key in between: a batch has all of a counter, and only the changed ones of its claims.
func TestMissedClaims(t *testing.T) {
	s := newSender(t)
	reserve := func(id uint64) {
		e := s.charge(0)
		c := claim.Claim{ID: claim.Ident{id, id}, Key: e.Key(), RingPos: e.RingPos(), Amount: 1}
		c.SetMade(t0)
		s.counters.Claims.Change(s.counters.Claims.Add(&c, false))
	}
	confirm := func(seq uint64, from ring.ID) {
		for _, item := range s.Confirm(seq, from) {
			s.backlog.Confirm(&item)
			s.backlog.ConfirmClaims(&item, func(*claim.Claim) {})
		}
	}
	send := func(now int64) (uint64, []claim.Claim) {
		s.Gather(now, &s.backlog)
		return s.claims(s.Send(now))
	}
	reserve(1)
	send(t0) // lost
	now := t0 + int64(resend)
	for _, item := range s.Unconfirmed(now) {
		s.backlog.Requeue(&item)
	}
	seq, got := send(now)
	if confirm(seq, "c"); len(got) != 1 {
		t.Fatalf("%d claims", len(got))
	}
	s.machine.Contact(now, "b")
	reserve(2)
	seq, got = send(now)
	if confirm(seq, "b"); len(got) != 1 {
		t.Fatalf("%d claims", len(got))
	}
	for key := range s.Missed(now) {
		s.AddMissed(now, &s.backlog, key)
	}
	seq, got = s.claims(s.Send(now))
	if !slices.ContainsFunc(got, func(c claim.Claim) bool { return c.ID[0] == 1 }) {
		t.Errorf("the successor gets %+v", got)
	}
	confirm(seq, "b")
	if missed := slices.Collect(s.Missed(now)); len(missed) > 0 {
		t.Errorf("%v is still missed", missed)
	}
}
