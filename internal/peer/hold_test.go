package peer

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
)

// The owner learns all of a request's hold.
func TestHoldRequest(t *testing.T) {
	for _, op := range []owner.Op{owner.Take, owner.Reserve, owner.Commit, owner.Release, owner.Keep, owner.Extend} {
		want := owner.Hold{ID: claim.Ident{1, 2}, Caller: 3, TTL: 1500 * time.Millisecond, Max: 7, Flags: claim.Releases | claim.InFlight, ChargeOver: true, Oldest: true, Ahead: true}
		in := owner.Request{Key: owner.Key{1, 2}, Hits: 4, Op: op, Rule: limit.Rule{Window: time.Second, Limit: 5}, Hold: &want}
		b := appendRequests(nil, requestGroup{count: 1}, []owner.Request{in}, []uint16{0})
		var q owner.Request
		if o, err := parseRequest(wire.NewReader(firstRecord(t, b)), &q); err != nil || o != groupServed || q.Hold == nil || *q.Hold != want || q.Op != op {
			t.Errorf("%d: %d, %v: %+v of %+v", op, o, err, q.Hold, q)
		}
	}
}

// A settlement without a hold names nothing.
func TestSettlementWithoutHold(t *testing.T) {
	in := owner.Request{Op: owner.Commit, Rule: limit.Rule{Window: time.Second, Limit: 5}}
	b := appendRequests(nil, requestGroup{count: 1}, []owner.Request{in}, []uint16{0})
	var q owner.Request
	if o, err := parseRequest(wire.NewReader(firstRecord(t, b)), &q); err != nil || o != groupMalformed {
		t.Errorf("%d, %v", o, err)
	}
}

// Members of earlier versions get no counters that they cannot read.
func TestCountersForEarlierVersions(t *testing.T) {
	m := &protocol.Message{Counters: []protocol.CounterRecord{
		{Rule: limit.Rule{Algorithm: limit.InFlight}}, {Rule: limit.Rule{Algorithm: limit.SlidingLog}},
	}}
	if got := forVersion(m, membership.ProtocolHolds); got != m {
		t.Error("a copy for the present version")
	}
	if got := forVersion(m, membership.ProtocolHandoff); len(got.Counters) != 1 || got.Counters[0].Rule.Algorithm != limit.SlidingLog || len(m.Counters) != 2 {
		t.Errorf("%+v", got.Counters)
	}
}
