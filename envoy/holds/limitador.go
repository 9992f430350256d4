package holds

import (
	extpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	pb "github.com/keyward/keyward/envoy/holds/keywardv1"
	kpb "github.com/keyward/keyward/envoy/holds/kuadrantv1"
	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/owner"
)

const limitadorService = "/kuadrant.service.ratelimit.v1.RateLimitService/"

// addLimitador adds the methods of Limitador's service.
func (s *HoldServer) addLimitador(m map[string]h2.Handler) {
	for name, v := range map[string]verb{
		"CheckRateLimit": newVerb(planCheck, answerCheck),
		"Report":         newVerb(planReport, answerReported),
		"Reserve":        newVerb(planLimitadorReserve, answerLimitadorReserve),
		"Commit":         newVerb(planLimitadorCommit, answerLimitadorCommit),
	} {
		m[limitadorService+name] = &unary{s, name, v}
	}
}

// planCheck asks whether one hit fits, whatever hits_addend is, as Limitador does.
func planCheck(r *rlspb.RateLimitRequest) (*plan, error) {
	if r.GetDomain() == "" {
		return &plan{answer: &rlspb.RateLimitResponse{}}, nil
	}
	return newPlan(owner.DryRun, r.GetDomain(), descriptors(r.GetDescriptors()))
}

// planReport charges hits, even if they exceed the limit.
func planReport(r *rlspb.RateLimitRequest) (*plan, error) {
	if r.GetDomain() == "" {
		return &plan{answer: &rlspb.RateLimitResponse{}}, nil
	}
	return report(r.GetDomain(), r.GetDescriptors(), uint64(max(1, r.GetHitsAddend())))
}

// report returns the plan to charge n hits, at least 1. For rules with holds it is the Commit of a hold that does not
// exist, because that is charged in full.
func report(domain string, ds []*extpb.RateLimitDescriptor, n uint64) (*plan, error) {
	p, err := planCommit(&pb.CommitRequest{Domain: domain, Descriptors: descriptors(ds), Id: newID(), Actual: &n})
	if err == nil {
		p.hold.Report = true
	}
	return p, err
}

func planLimitadorReserve(r *kpb.ReserveRequest) (*plan, error) {
	if r.GetDomain() == "" {
		return &plan{answer: &kpb.ReserveResponse{}}, nil
	}
	return planReserve(&pb.ReserveRequest{
		Domain: r.GetDomain(), Descriptors: descriptors(r.GetDescriptors()), Hits: r.GetAmount(), Ttl: r.GetTtl(),
	})
}

func planLimitadorCommit(r *kpb.CommitRequest) (*plan, error) {
	n := r.GetActualAmount()
	switch {
	case r.GetDomain() == "", r.GetReservationId() == "" && n == 0: // there is nothing to charge
		return &plan{answer: &kpb.CommitResponse{}}, nil
	case r.GetReservationId() == "":
		return report(r.GetDomain(), r.GetDescriptors(), n)
	}
	return planCommit(&pb.CommitRequest{
		Domain: r.GetDomain(), Descriptors: descriptors(r.GetDescriptors()), Id: r.GetReservationId(), Actual: &n,
	})
}

// descriptors returns ds in the form of keyward.v1. Limits in descriptors are not used, as in Limitador.
func descriptors(ds []*extpb.RateLimitDescriptor) (all []*pb.Descriptor) {
	for _, d := range ds {
		to := &pb.Descriptor{}
		for _, e := range d.GetEntries() {
			to.Entries = append(to.Entries, &pb.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		all = append(all, to)
	}
	return all
}

func code(c *rls.Call) rlspb.RateLimitResponse_Code {
	if c.Response.Code == rls.OverLimit {
		return rlspb.RateLimitResponse_OVER_LIMIT
	}
	return rlspb.RateLimitResponse_OK
}

func answerCheck(c *rls.Call, _ *plan) proto.Message {
	return &rlspb.RateLimitResponse{OverallCode: code(c)}
}

func answerReported(*rls.Call, *plan) proto.Message {
	return &rlspb.RateLimitResponse{OverallCode: rlspb.RateLimitResponse_OK}
}

func answerLimitadorReserve(c *rls.Call, p *plan) proto.Message {
	r := &kpb.ReserveResponse{Code: code(c)}
	if c.Response.Code == rls.OK {
		r.ReservationId = p.hold.ID
	}
	return r
}

func answerLimitadorCommit(*rls.Call, *plan) proto.Message { return &kpb.CommitResponse{} }
