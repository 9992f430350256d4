// Package client makes and settles holds of a Keyward member, from Go.
//
// A hold is charged when it is made, so concurrent callers cannot spend a limit twice. Commit gives back what was not
// used:
//
//	h, err := holds.Reserve(ctx, client.Reserve{Domain: "llm", Descriptors: client.One("tenant", "acme"), Hits: 1200})
//	if err != nil {
//		return err // *client.RefusedError: the limit has no room
//	}
//	defer h.Release(ctx) // has no effect after Commit
//	used, err := complete(prompt)
//	if err != nil {
//		return err
//	}
//	return h.Commit(ctx, used)
package client

import (
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/keyward/keyward/envoy/holds/keywardv1"
)

const service = "/keyward.v1.Holds/"

// HoldClient calls one member. It is safe for concurrent use.
type HoldClient struct {
	conn   grpc.ClientConnInterface
	caller string
}

// New returns a HoldClient that uses conn, which the caller closes. caller names this process in Reserve and Session, at most
// 256 bytes; "" for its address. Two processes must not have the same name.
func New(conn grpc.ClientConnInterface, caller string) *HoldClient { return &HoldClient{conn, caller} }

// One returns a descriptor of one entry, as the descriptors of a call.
func One(key, value string) []*pb.Descriptor { return []*pb.Descriptor{Descriptor(key, value)} }

// Descriptor returns a descriptor with entries of the keys and values in pairs. It panics if a value is missing.
func Descriptor(pairs ...string) *pb.Descriptor {
	d := &pb.Descriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &pb.Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

// Reserve describes a hold to make.
type Reserve struct {
	Domain      string
	Descriptors []*pb.Descriptor
	// Hits to reserve, of descriptors without their own; 0: those of each rule.
	Hits uint64
	// TTL is the life of the hold if it is shorter than the rule's; 0: the rule's.
	TTL time.Duration
	// ID identifies the hold. Who knows it can settle the hold. Empty: the member makes one.
	ID string
}

// OpenHold is a hold that was made. It is safe for concurrent use. The first settlement counts, later ones have no effect, so
// all of them may be repeated; for at most a minute, because then the member has forgotten the hold.
type OpenHold struct {
	ID       string
	Statuses []*pb.Status // one for each descriptor

	client      *HoldClient
	domain      string
	descriptors []*pb.Descriptor
}

// RefusedError is the error of a Reserve that exceeds a limit. Nothing is held.
type RefusedError struct {
	Statuses []*pb.Status // one for each descriptor
}

// Error implements error.
func (e *RefusedError) Error() string {
	for _, s := range e.Statuses {
		if s.GetOver() {
			return fmt.Sprintf("limit %q has no room: %d of %d left, for %v", s.GetName(), s.GetRemaining(), s.GetLimit(), s.GetReset_().AsDuration())
		}
	}
	return "the request exceeds a limit"
}

// RetryAfter returns the time until the limits that have refused the request have room again.
func (e *RefusedError) RetryAfter() (d time.Duration) {
	for _, s := range e.Statuses {
		if s.GetOver() {
			d = max(d, s.GetReset_().AsDuration())
		}
	}
	return d
}

// Reserve makes a hold. Its error is a *RefusedError if a limit has no room, and else that of gRPC.
func (c *HoldClient) Reserve(ctx context.Context, r Reserve) (*OpenHold, error) {
	req := &pb.ReserveRequest{
		Domain: r.Domain, Descriptors: r.Descriptors, Hits: r.Hits, Ttl: duration(r.TTL), Id: r.ID, Caller: c.caller,
	}
	resp := &pb.ReserveResponse{}
	if err := c.conn.Invoke(ctx, service+"Reserve", req, resp); err != nil {
		return nil, err
	}
	if !resp.GetAdmitted() {
		return nil, &RefusedError{resp.GetStatuses()}
	}
	return &OpenHold{resp.GetId(), resp.GetStatuses(), c, r.Domain, r.Descriptors}, nil
}

// Find returns the hold with an id, which another client may have made, to settle it. It calls no member: whether there is
// such a hold is only known to the member that settles it.
func (c *HoldClient) Find(domain, id string, descriptors ...*pb.Descriptor) *OpenHold {
	return &OpenHold{ID: id, client: c, domain: domain, descriptors: descriptors}
}

// Commit settles the hold with the hits that were used. Requests in flight end. The descriptors' own hits are those of the
// Reserve, so actual replaces them.
func (h *OpenHold) Commit(ctx context.Context, actual uint64) error { return h.commit(ctx, &actual) }

// Keep settles the hold, and leaves all of it charged, because it is not known how much was used.
func (h *OpenHold) Keep(ctx context.Context) error { return h.commit(ctx, nil) }

func (h *OpenHold) commit(ctx context.Context, actual *uint64) error {
	r := &pb.CommitRequest{Domain: h.domain, Descriptors: h.keys(), Id: h.ID, Actual: actual}
	return h.client.conn.Invoke(ctx, service+"Commit", r, &pb.SettleResponse{})
}

// keys returns the descriptors without their hits.
func (h *OpenHold) keys() []*pb.Descriptor {
	keys := make([]*pb.Descriptor, len(h.descriptors))
	for i, d := range h.descriptors {
		keys[i] = &pb.Descriptor{Entries: d.GetEntries()}
	}
	return keys
}

// Release settles the hold, and gives all of it back.
func (h *OpenHold) Release(ctx context.Context) error {
	r := &pb.ReleaseRequest{Domain: h.domain, Descriptors: h.keys(), Id: h.ID}
	return h.client.conn.Invoke(ctx, service+"Release", r, &pb.SettleResponse{})
}

// Extend lets the life of the hold begin again, of ttl, or of the rule's with 0. It returns false if the hold is settled or
// not known.
func (h *OpenHold) Extend(ctx context.Context, ttl time.Duration) (bool, error) {
	r := &pb.ExtendRequest{Domain: h.domain, Descriptors: h.keys(), Id: h.ID, Ttl: duration(ttl)}
	resp := &pb.ExtendResponse{}
	err := h.client.conn.Invoke(ctx, service+"Extend", r, resp)
	return resp.GetExtended(), err
}

// Usage returns how much of the limits of descriptors is used, in their order.
func (c *HoldClient) Usage(ctx context.Context, domain string, descriptors ...*pb.Descriptor) ([]*pb.LimitUsage, error) {
	resp := &pb.UsageResponse{}
	err := c.conn.Invoke(ctx, service+"Usage", &pb.UsageRequest{Domain: domain, Descriptors: descriptors}, resp)
	return resp.GetLimits(), err
}

// Session opens a session of the client's caller, which must have a name, and keeps it open until ctx is done. When it
// ends, the member releases the requests in flight that this HoldClient has reserved. notice, which may be nil, is called with
// the notices about the watched limits, and first with one that has the name of the caller. Session returns the error of
// ctx, or that of gRPC if the member cannot be reached.
func (c *HoldClient) Session(ctx context.Context, domain string, watch []*pb.Descriptor, notice func(*pb.Notice)) error {
	desc := &grpc.StreamDesc{StreamName: "Session", ServerStreams: true}
	for {
		s, err := c.conn.NewStream(ctx, desc, service+"Session")
		if err == nil {
			err = s.SendMsg(&pb.SessionRequest{Caller: c.caller, Domain: domain, Watch: watch})
		}
		if err == nil {
			err = s.CloseSend()
		}
		for err == nil {
			n := &pb.Notice{}
			if err = s.RecvMsg(n); err == nil && notice != nil {
				notice(n)
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != io.EOF { //nolint:errorlint // gRPC returns it as it is
			return err
		}
	}
}

func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}
