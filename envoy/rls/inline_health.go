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

// addMethods adds gRPC's health service to the methods of an inline server.
func (h *HealthServer) addMethods(methods map[string]h2.Handler, st *stats.StatStore) {
	counted := countedHealth{h.grpc, st}
	methods[healthpb.Health_Check_FullMethodName] = unary[healthpb.HealthCheckRequest](func(r *healthpb.HealthCheckRequest) (proto.Message, error) {
		return counted.Check(context.Background(), r)
	})
	methods[healthpb.Health_List_FullMethodName] = unary[healthpb.HealthListRequest](func(r *healthpb.HealthListRequest) (proto.Message, error) {
		return counted.List(context.Background(), r)
	})
	methods[healthpb.Health_Watch_FullMethodName] = watch{h}
}

// unary is a method whose messages are encoded and decoded by package proto.
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

// unmarshal decodes a call's request. If it cannot, it fails the call and returns false.
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

// encoded is a message that package proto encodes.
type encoded struct{ proto.Message }

// Append appends the message in wire format.
func (m encoded) Append(b []byte) []byte {
	b, _ = proto.MarshalOptions{}.MarshalAppend(b, m.Message) // only strings with invalid UTF-8 fail
	return b
}

// watch reports every change of health to a client, on a goroutine that lives as long as the call.
type watch struct{ *HealthServer }

// Serve implements h2.Handler.
func (w watch) Serve(k *h2.Stream) {
	r := new(healthpb.HealthCheckRequest)
	if !unmarshal(k, r) {
		return
	}
	go func() { fail(k, w.grpc.Watch(r, &watchStream{call: k})) }()
}

// watchStream is a call of Watch for the generated code.
type watchStream struct {
	grpc.ServerStream
	call *h2.Stream
}

// Send sends one status.
func (w *watchStream) Send(m *healthpb.HealthCheckResponse) error { return w.call.Send(encoded{m}) }

// Context returns a context that is done when the call ends.
func (w *watchStream) Context() context.Context {
	return callContext{context.Background(), w.call.Done()}
}

// callContext is done when the client gives up the call.
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
