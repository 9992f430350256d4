package rls

import (
	"math"
	"testing"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
)

// TestEverySettlementEndsARequestInFlight requires that a settlement of a slot, or of one that is not known, leaves no slot
// taken, whatever its hits: nothing could give back what a Commit charges.
func TestEverySettlementEndsARequestInFlight(t *testing.T) {
	r := newRig(t, `domain: d
descriptors:
- {key: streams, rate_limit: {unit: hour, requests_per_unit: 2}, metadata: {keyward: {algorithm: in_flight, window: 10m}}}
`)
	for _, op := range []string{"commit", "release", "keep", "nonsense"} {
		for _, hits := range []uint64{0, 1, 50, math.MaxUint64} {
			settlement := addend(descriptor("streams", op, HoldIDEntry, "1", HoldEntry, op), hits)
			r.ask(t, request("d", descriptor("streams", op, HoldIDEntry, "1")))
			r.ask(t, request("d", settlement))
			r.ask(t, request("d", addend(descriptor("streams", op, HoldIDEntry, "unknown", HoldEntry, op), hits)))
			if left := r.hold(owner.Read, op); left != 2 {
				t.Errorf("after %s of %d hits, %d slots are left", op, hits, left)
			}
		}
	}
	// The API has the operations as fields, and Commit without hits is a Keep.
	for _, op := range []owner.Op{owner.Commit, owner.Keep, owner.Release} {
		r.hold(owner.Reserve, "api")
		if left := r.hold(op, "api"); left != 2 {
			t.Errorf("after operation %d of the API, %d slots are left", op, left)
		}
	}
}

// hold decides a call of the API about the hold 1 of streams, and returns what is left of the limit.
func (r *rig) hold(op owner.Op, stream string) (left uint32) {
	c := r.NewCall()
	defer r.Release(c)
	c.Request = RateLimitRequest{Domain: "d", Descriptors: []Descriptor{{Entries: []config.Entry{{Key: "streams", Value: stream}}}}}
	r.DecideHold(c, HoldRequest{Op: op, ID: "1"}, Caller{})
	return c.Outcome(0).Remaining
}
