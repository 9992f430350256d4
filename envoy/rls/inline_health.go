package rls

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/internal/stats"
)

// addMethods adds gRPC's health service to the methods of a lean door. It answers and counts as Register's does.
func (h *HealthServer) addMethods(methods map[string]h2.Handler, st *stats.Store) {
	counted := countedHealth{h.grpc, st}
	methods[healthpb.Health_Check_FullMethodName] = unary[healthpb.HealthCheckRequest](func(r *healthpb.HealthCheckRequest) (proto.Message, error) {
		return counted.Check(context.Background(), r)
	})
	methods[healthpb.Health_List_FullMethodName] = unary[healthpb.HealthListRequest](func(r *healthpb.HealthListRequest) (proto.Message, error) {
		return counted.List(context.Background(), r)
	})
	methods[healthpb.Health_Watch_FullMethodName] = watch{h}
}

// unary is a method of messages that protobuf's own code reads and writes.
type unary[R any] func(*R) (proto.Message, error)

// Serve implements h2.Handler.
func (f unary[R]) Serve(k *h2.Stream) {
	var r R
	if !unmarshal(k, any(&r).(proto.Message)) {
		return
	}
	m, err := f(&r)
	if err != nil {
		fail(k, err)
		return
	}
	k.Reply(encoded{m})
}

// unmarshal reads a call's request; false has failed the call.
func unmarshal(k *h2.Stream, r proto.Message) bool {
	err := proto.Unmarshal(k.Message(), r)
	if err != nil {
		k.Fail(codes.Internal, "grpc: failed to unmarshal the received message: "+err.Error())
	}
	return err == nil
}

func fail(k *h2.Stream, err error) {
	st := status.Convert(err)
	k.Fail(st.Code(), st.Message())
}

// encoded is a message that protobuf's own code writes.
type encoded struct{ proto.Message }

// Append appends it in wire format.
func (m encoded) Append(b []byte) []byte {
	b, _ = proto.MarshalOptions{}.MarshalAppend(b, m.Message) // fails on strings that are not UTF-8 alone
	return b
}

// watch tells a client of every change of its health, on a goroutine that lives as long as the call.
type watch struct{ *HealthServer }

// Serve implements h2.Handler.
func (w watch) Serve(k *h2.Stream) {
	r := new(healthpb.HealthCheckRequest)
	if !unmarshal(k, r) {
		return
	}
	go func() { fail(k, w.grpc.Watch(r, &watching{call: k})) }()
}

// watching is a call of Watch as the generated code sees it.
type watching struct {
	grpc.ServerStream
	call *h2.Stream
}

// Send sends one status.
func (w *watching) Send(m *healthpb.HealthCheckResponse) error { return w.call.Send(encoded{m}) }

// Context ends with the call.
func (w *watching) Context() context.Context { return callContext{context.Background(), w.call.Done()} }

// callContext is done when a call is given up.
type callContext struct {
	context.Context
	done <-chan struct{}
}

func (c callContext) Done() <-chan struct{} { return c.done }

func (c callContext) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}
