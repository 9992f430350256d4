package holds

import (
	"testing"
	"time"

	extpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/keyward/keyward/envoy/holds/client"
	kpb "github.com/keyward/keyward/envoy/holds/kuadrantv1"
)

// limitadorClient calls Limitador's service as the filter of Kuadrant does.
type limitadorClient struct {
	*testing.T
	conn *grpc.ClientConn
}

func (c limitadorClient) call(method string, req, resp proto.Message) error {
	c.Helper()
	return c.conn.Invoke(c.Context(), limitadorService+method, req, resp)
}

func limitadorDescriptors(key string) []*extpb.RateLimitDescriptor {
	return []*extpb.RateLimitDescriptor{{Entries: []*extpb.RateLimitDescriptor_Entry{{Key: key, Value: "acme"}}}}
}

func (c limitadorClient) reserve(amount uint64) *kpb.ReserveResponse {
	c.Helper()
	resp := &kpb.ReserveResponse{}
	req := &kpb.ReserveRequest{Domain: "llm", Descriptors: limitadorDescriptors("tenant"), Amount: amount, Ttl: durationpb.New(time.Minute)}
	if err := c.call("Reserve", req, resp); err != nil {
		c.Fatal(err)
	}
	return resp
}

func (c limitadorClient) commit(id string, actual uint64) {
	c.Helper()
	req := &kpb.CommitRequest{Domain: "llm", Descriptors: limitadorDescriptors("tenant"), ReservationId: id, ActualAmount: actual}
	if err := c.call("Commit", req, &kpb.CommitResponse{}); err != nil {
		c.Fatal(err)
	}
}

func TestLimitadorReservations(t *testing.T) {
	r := start(t)
	c, own := limitadorClient{t, r.dial(t, nil)}, client.New(r.dial(t, nil), "")
	acme := client.Descriptor("tenant", "acme")
	first := c.reserve(700)
	if first.Code != rlspb.RateLimitResponse_OK || first.ReservationId == "" {
		t.Fatal(first)
	}
	if second := c.reserve(400); second.Code != rlspb.RateLimitResponse_OVER_LIMIT || second.ReservationId != "" {
		t.Fatal(second)
	}
	expectUsage(t, own, acme, 0, 700, 300)
	c.commit(first.ReservationId, 150)
	expectUsage(t, own, acme, 150, 0, 850)
	c.commit(first.ReservationId, 150) // a second time
	expectUsage(t, own, acme, 150, 0, 850)
	c.commit("unknown", 30) // charged, as by Report
	c.commit("", 20)
	c.commit("", 0)
	expectUsage(t, own, acme, 200, 0, 800)
	third := c.reserve(100)
	c.commit(third.ReservationId, 0) // the usage is not known: nothing is charged
	expectUsage(t, own, acme, 200, 0, 800)
	c.commit("", 900) // charged although it exceeds the limit
	expectUsage(t, own, acme, 1100, 0, 0)
}

func TestLimitadorCheckAndReport(t *testing.T) {
	r := start(t)
	c, own := limitadorClient{t, r.dial(t, nil)}, client.New(r.dial(t, nil), "")
	for key, limit := range map[string]uint32{"tenant": 1000, "plain": 5} {
		check := func(want rlspb.RateLimitResponse_Code) {
			t.Helper()
			resp := &rlspb.RateLimitResponse{}
			err := c.call("CheckRateLimit", &rlspb.RateLimitRequest{Domain: "llm", Descriptors: limitadorDescriptors(key), HitsAddend: 7000}, resp)
			if err != nil || resp.OverallCode != want {
				t.Errorf("%s: %v, %v, want %v", key, resp, err, want)
			}
		}
		report := func(hits uint32) {
			t.Helper()
			resp := &rlspb.RateLimitResponse{}
			err := c.call("Report", &rlspb.RateLimitRequest{Domain: "llm", Descriptors: limitadorDescriptors(key), HitsAddend: hits}, resp)
			if err != nil || resp.OverallCode != rlspb.RateLimitResponse_OK {
				t.Errorf("%s: %v, %v", key, resp, err)
			}
		}
		d := client.Descriptor(key, "acme")
		check(rlspb.RateLimitResponse_OK)
		expectUsage(t, own, d, 0, 0, limit) // a check charges nothing
		report(0)
		report(limit - 2)
		expectUsage(t, own, d, uint64(limit-1), 0, 1)
		check(rlspb.RateLimitResponse_OK) // one hit fits, whatever the check says
		report(3)
		expectUsage(t, own, d, uint64(limit+2), 0, 0)
		check(rlspb.RateLimitResponse_OVER_LIMIT)
	}
}

func TestLimitadorFaults(t *testing.T) {
	r := start(t)
	c := limitadorClient{t, r.dial(t, nil)}
	check := &rlspb.RateLimitResponse{}
	if err := c.call("CheckRateLimit", &rlspb.RateLimitRequest{Descriptors: limitadorDescriptors("tenant")}, check); err != nil || check.OverallCode != rlspb.RateLimitResponse_UNKNOWN {
		t.Error(check, err) // as Limitador answers without a domain
	}
	reserve := &kpb.ReserveResponse{}
	if err := c.call("Reserve", &kpb.ReserveRequest{}, reserve); err != nil || reserve.Code != rlspb.RateLimitResponse_UNKNOWN {
		t.Error(reserve, err)
	}
	if err := c.call("Reserve", &kpb.ReserveRequest{Domain: "llm", Descriptors: limitadorDescriptors("plain")}, reserve); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	if err := c.call("Commit", &kpb.CommitRequest{Domain: "llm", ReservationId: "x"}, &kpb.CommitResponse{}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}
