package peer

import (
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
)

func sampleFederatedRequest() []byte {
	q := owner.Request{
		Key: owner.Key{1, 2}, RingPos: 3, Hits: 4, Rule: limit.Rule{Window: time.Second, Limit: 5},
		Federation: &federation.RuleTerms{Authority: 0x0a0b0c0d, Floor: 5, Outage: federation.Snapshot, Batch: 2 * time.Second},
	}
	return appendRequests(nil, requestGroup{id: 7, sent: 9, ttl: time.Millisecond, count: 1}, []owner.Request{q}, []uint16{0})
}

// sampleFederatedTenant is a request of a tenant, whose limit is that of all regions.
func sampleFederatedTenant() []byte {
	q := owner.Request{
		Key: owner.Key{1, 2}, RingPos: 3, Hits: 4, Rule: limit.Rule{Window: time.Second, Limit: 5}, Tenant: 0x1112131415161718, TenantWeight: 9,
		Federation: &federation.RuleTerms{Authority: 0x0a0b0c0d, Floor: 5},
	}
	return appendRequests(nil, requestGroup{id: 7, sent: 9, ttl: time.Millisecond, count: 1}, []owner.Request{q}, []uint16{0})
}

func TestGoldenFederation(t *testing.T) {
	golden(t, map[string][]byte{
		"federated-request": sampleFederatedRequest(), "federated-tenant-request": sampleFederatedTenant(),
		"store-request": sampleStoreRequest(),
	})
}

// The owner learns who asks for a part of a limit that regions share.
func TestFederatedTenant(t *testing.T) {
	var q owner.Request
	if o, err := parseRequest(wire.NewReader(firstRecord(t, sampleFederatedTenant())), &q); err != nil || o != groupServed {
		t.Fatalf("%d, %v", o, err)
	}
	if q.Tenant != 0x1112131415161718 || q.TenantWeight != 9 || q.Federation == nil || q.Federation.Floor != 5 {
		t.Errorf("%+v, %+v", q, q.Federation)
	}
}

// storeRequest returns a request of a rule with settings of its store.
func storeRequest() owner.Request {
	return owner.Request{
		Key: owner.Key{1, 2}, RingPos: 3, Hits: 4, Rule: limit.Rule{Window: time.Second, Limit: 5}, Name: "edge_key_value_",
		Federation: &federation.RuleTerms{Authority: 0x0a0b0c0d, Named: true, Store: federation.StoreTerms{
			Approximate: true, Slack: 1000, Watermark: 20, Sync: 100 * time.Millisecond, LotMin: 2, LotMax: 1 << 20, Reclaim: 3 * time.Second,
		}},
	}
}

func sampleStoreRequest() []byte {
	return appendRequests(nil, requestGroup{id: 7, sent: 9, ttl: time.Millisecond, count: 1}, []owner.Request{storeRequest()}, []uint16{0})
}

// The owner learns how the rule's federation uses its store, and the name of the counter.
func TestStoreRequest(t *testing.T) {
	var q owner.Request
	if o, err := parseRequest(wire.NewReader(firstRecord(t, sampleStoreRequest())), &q); err != nil || o != groupServed {
		t.Fatalf("%d, %v", o, err)
	}
	if want := storeRequest(); q.Federation == nil || *q.Federation != *want.Federation || q.Name != want.Name {
		t.Errorf("%+v of %q, not %+v", q.Federation, q.Name, want.Federation)
	}
	long := storeRequest()
	long.Name = strings.Repeat("x", maxSharedName+1)
	if o, err := parseRequest(wire.NewReader(firstRecord(t, appendRequests(nil, requestGroup{count: 1}, []owner.Request{long}, []uint16{0}))), &q); err != nil || o != groupServed || q.Name != "" || !q.Federation.Named {
		t.Errorf("a name that is too long: %+v, %v", q, err)
	}
}

// The owner learns what the rule says about its federation.
func TestFederatedRequest(t *testing.T) {
	var q owner.Request
	if o, err := parseRequest(wire.NewReader(firstRecord(t, sampleFederatedRequest())), &q); err != nil || o != groupServed {
		t.Fatalf("%d, %v", o, err)
	}
	want := federation.RuleTerms{Authority: 0x0a0b0c0d, Floor: 5, Outage: federation.Snapshot, Batch: 2 * time.Second}
	if q.Federation == nil || *q.Federation != want || q.Tenant != 0 {
		t.Errorf("%+v, not %+v", q.Federation, want)
	}
}
