package peer

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
)

func sampleTenantRequest() []byte {
	q := owner.Request{
		Key: owner.Key{1, 2}, RingPos: 3, Hits: 4, Rule: limit.Rule{Window: time.Second, Limit: 5}, Tenant: 0x0a0b0c0d0e0f1011,
		TenantWeight: 6,
	}
	return appendRequests(nil, requestGroup{id: 7, sent: 9, ttl: time.Millisecond, count: 1}, []owner.Request{q},
		[]uint16{0})
}

func TestGoldenTenants(t *testing.T) {
	refused := server{results: []owner.Result{{Kind: owner.Decided, Path: owner.Forwarded, FairShare: true}}}
	refused.results[0].Over = true
	refused.reply(7, groupServed)
	golden(t, map[string][]byte{"tenant-request": sampleTenantRequest(), "fair-reply": refused.out})
}

// An owner that does not support tenants reads the beginning of the record, and decides by the limit alone.
func TestTenantRequest(t *testing.T) {
	record := firstRecord(t, sampleTenantRequest())
	for size, want := range map[int]uint64{len(record): 0x0a0b0c0d0e0f1011, requestSize + requestExtraSize: 0, requestSize: 0} {
		var q owner.Request
		if o, err := parseRequest(wire.NewReader(record[:size]), &q); err != nil || o != groupServed || q.Tenant != want ||
			q.Hits != 4 || q.Rule.Limit != 5 {
			t.Errorf("%d bytes: %+v, %d, %v", size, q, o, err)
		}
	}
}

// A reply states why a request was refused, which a member that does not support tenants skips.
func TestFairReply(t *testing.T) {
	for _, want := range []owner.Result{
		{Kind: owner.Decided, Path: owner.Forwarded},
		{Kind: owner.Decided, Path: owner.Forwarded, FairShare: true, Decision: limit.Decision{Over: true, Before: 3, After: 4}},
	} {
		record, _ := cutRecord(t, appendResult(nil, &want))
		var got owner.Result
		if err := parseResult(wire.NewReader(record), &got); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}
