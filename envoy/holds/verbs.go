package holds

import (
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/keyward/keyward/envoy/holds/keywardv1"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
)

const (
	maxDescriptors = 64
	maxEntries     = 64
	maxID          = 256 // bytes of an id, and of the name of a caller
	minTTL         = time.Second
	maxTTL         = 24 * time.Hour
)

// verb is one of the calls: how it is decoded, decided and answered.
type verb struct {
	request func() proto.Message
	plan    func(proto.Message) (*plan, error)
	answer  func(*rls.Call, *plan) proto.Message
}

// plan is a call of the rate limit service.
type plan struct {
	domain      string
	descriptors []rls.Descriptor
	hits        uint32 // of descriptors without their own; 0: none
	hold        rls.HoldRequest
	caller      string
	answer      proto.Message // not nil: nothing is to be decided
}

// fill makes the request of c that of p.
func (p *plan) fill(c *rls.Call) {
	c.Request = rls.RateLimitRequest{Domain: p.domain, Descriptors: p.descriptors, HitsAddend: p.hits}
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func newVerb[R any, P interface {
	*R
	proto.Message
}](of func(P) (*plan, error), answer func(*rls.Call, *plan) proto.Message) verb {
	return verb{
		request: func() proto.Message { return P(new(R)) },
		plan:    func(m proto.Message) (*plan, error) { return of(m.(P)) },
		answer:  answer,
	}
}

// verbs returns the unary calls by name.
func (s *HoldServer) verbs() map[string]verb {
	return map[string]verb{
		"Reserve": newVerb(planReserve, answerReserve),
		"Commit":  newVerb(planCommit, answerSettle),
		"Release": newVerb(planRelease, answerSettle),
		"Extend":  newVerb(planExtend, answerExtend),
		"Usage":   newVerb(planUsage, answerUsage),
	}
}

func planReserve(r *pb.ReserveRequest) (*plan, error) {
	p, err := newPlan(owner.Reserve, r.GetDomain(), r.GetDescriptors())
	if err == nil {
		p.hits, err = hits(r.GetHits())
	}
	if err == nil {
		p.hold.TTL, err = ttl(r.GetTtl())
	}
	if err == nil && len(r.GetId()) > maxID {
		err = invalid("id is longer than %d bytes", maxID)
	}
	if err == nil && len(r.GetCaller()) > maxID {
		err = invalid("caller is longer than %d bytes", maxID)
	}
	if err != nil {
		return nil, err
	}
	p.caller = r.GetCaller()
	if p.hold.ID = r.GetId(); p.hold.ID == "" {
		p.hold.ID = newID()
	}
	return p, nil
}

// settlement returns the plan of a call about holds that exist.
func settlement(op owner.Op, domain string, ds []*pb.Descriptor, id string) (*plan, error) {
	switch {
	case id == "":
		return nil, invalid("id must not be empty")
	case len(id) > maxID:
		return nil, invalid("id is longer than %d bytes", maxID)
	}
	p, err := newPlan(op, domain, ds)
	if err == nil {
		p.hold.ID = id
	}
	return p, err
}

func planCommit(r *pb.CommitRequest) (*plan, error) {
	p, err := settlement(owner.Commit, r.GetDomain(), r.GetDescriptors(), r.GetId())
	if err != nil {
		return nil, err
	}
	actual, err := hits(r.GetActual())
	if err != nil {
		return nil, err
	}
	own := 0
	for i := range p.descriptors {
		if d := &p.descriptors[i]; d.HasAddend {
			own++
		} else {
			d.HasAddend, d.Addend = true, uint64(actual)
		}
	}
	switch {
	case r.Actual != nil || own == len(p.descriptors):
	case own > 0:
		return nil, invalid("actual must be set, because some descriptors have no hits of their own")
	default:
		p.hold.Op = owner.Keep
	}
	return p, nil
}

func planRelease(r *pb.ReleaseRequest) (*plan, error) {
	return settlement(owner.Release, r.GetDomain(), r.GetDescriptors(), r.GetId())
}

func planExtend(r *pb.ExtendRequest) (*plan, error) {
	p, err := settlement(owner.Extend, r.GetDomain(), r.GetDescriptors(), r.GetId())
	if err == nil {
		p.hold.TTL, err = ttl(r.GetTtl())
	}
	return p, err
}

func planUsage(r *pb.UsageRequest) (*plan, error) {
	return newPlan(owner.Read, r.GetDomain(), r.GetDescriptors())
}

// newPlan returns the plan of a call, or an error that the caller has made.
func newPlan(op owner.Op, domain string, ds []*pb.Descriptor) (*plan, error) {
	switch {
	case domain == "":
		return nil, invalid("domain must not be empty")
	case len(ds) == 0:
		return nil, invalid("descriptors must not be empty")
	case len(ds) > maxDescriptors:
		return nil, invalid("there are more than %d descriptors", maxDescriptors)
	}
	p := &plan{domain: domain, hold: rls.HoldRequest{Op: op}, descriptors: make([]rls.Descriptor, len(ds))}
	for i, d := range ds {
		to := &p.descriptors[i]
		switch n := len(d.GetEntries()); {
		case n == 0:
			return nil, invalid("descriptor %d has no entries", i)
		case n > maxEntries:
			return nil, invalid("descriptor %d has more than %d entries", i, maxEntries)
		}
		for _, e := range d.GetEntries() {
			if e.GetKey() == "" || e.GetKey() == rls.HoldEntry || e.GetKey() == rls.HoldIDEntry {
				return nil, invalid("descriptor %d: %q cannot be a key", i, e.GetKey())
			}
			to.Entries = append(to.Entries, config.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		if d.Hits != nil {
			n, err := hits(d.GetHits())
			if err != nil {
				return nil, err
			}
			to.HasAddend, to.Addend = true, uint64(n)
		}
	}
	return p, nil
}

// hits returns n, which a hold must be able to store.
func hits(n uint64) (uint32, error) {
	if n > math.MaxUint32 {
		return 0, invalid("hits must be at most %d", uint32(math.MaxUint32))
	}
	return uint32(n), nil
}

func ttl(d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, invalid("ttl: %v", err)
	}
	if n := d.AsDuration(); n < minTTL || n > maxTTL {
		return 0, invalid("ttl must be from %v to %v", minTTL, maxTTL)
	}
	return d.AsDuration(), nil
}

func answerReserve(c *rls.Call, p *plan) proto.Message {
	r := &pb.ReserveResponse{Admitted: c.Response.Code == rls.OK, Statuses: statuses(c, p)}
	if r.Admitted {
		r.Id = p.hold.ID
	}
	return r
}

func answerSettle(c *rls.Call, p *plan) proto.Message {
	return &pb.SettleResponse{Statuses: statuses(c, p)}
}

func answerExtend(c *rls.Call, p *plan) proto.Message {
	r := &pb.ExtendResponse{Extended: true, Statuses: statuses(c, p)}
	for i := range p.descriptors {
		o := c.Outcome(i)
		r.Extended = r.Extended && !(o.HasHold && o.Refused)
	}
	return r
}

func answerUsage(c *rls.Call, p *plan) proto.Message {
	r := &pb.UsageResponse{}
	for i := range p.descriptors {
		r.Limits = append(r.Limits, usage(c, i))
	}
	return r
}

func statuses(c *rls.Call, p *plan) (all []*pb.Status) {
	for i := range p.descriptors {
		o := c.Outcome(i)
		st := &pb.Status{Counted: o.Counted}
		if o.Counted {
			st.Over, st.Name, st.Limit, st.Remaining = o.Over, o.Name, o.Limit, o.Remaining
			st.Reset_, st.Reserved = durationpb.New(o.Reset), o.Reserved
		}
		if o.Reserved > 0 {
			st.Ttl = durationpb.New(o.TTL)
		}
		all = append(all, st)
	}
	return all
}

func usage(c *rls.Call, i int) *pb.LimitUsage {
	o := c.Outcome(i)
	if !o.Counted {
		return &pb.LimitUsage{}
	}
	return &pb.LimitUsage{
		Counted: true, Name: o.Name, Limit: o.Limit, Spent: o.Count - min(o.Held, o.Count), Held: o.Held, Holds: o.Holds,
		Left: o.Remaining, Reset_: durationpb.New(o.Reset),
	}
}
