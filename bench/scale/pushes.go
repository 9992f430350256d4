package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/xds"
)

// pushes sends a join to as many streams as there would be Envoys, each on a connection of its own.
func pushes(m *Measured) error {
	m.Pushes = nil
	for _, n := range Sizes {
		for _, envoys := range []int{10, 100, 500} {
			p, err := push(n, envoys)
			if err != nil {
				return fmt.Errorf("%d members, %d Envoys: %w", n, envoys, err)
			}
			m.Pushes = append(m.Pushes, p)
		}
	}
	return nil
}

// state is n members as an xDS server describes them to Envoy.
func state(n int) xds.ServedState {
	s := xds.ServedState{Capacity: Capacity(n)}
	for i := range n {
		s.Members = append(s.Members, xds.Endpoint{
			ID: Member(i).ID, Weight: 1, RLS: fmt.Sprintf("10.%d.%d.%d:8082", i>>16, i>>8&255, i&255),
		})
	}
	return s
}

func push(n, envoys int) (p PushCost, err error) {
	p = PushCost{Members: n, Envoys: envoys}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return p, err
	}
	x, g := xds.New(ctx, xds.Options{}), grpc.NewServer()
	x.Register(g)
	var serving, reading sync.WaitGroup
	serving.Go(func() { _ = g.Serve(ln) }) // ends with Stop
	defer serving.Wait()
	defer g.Stop()
	defer reading.Wait()
	defer cancel()
	if err := x.Set(state(n)); err != nil {
		return p, err
	}
	s := state(n)
	name := s.OwnerDirect().GetEdsClusterConfig().GetServiceName()
	got := make(chan int, envoys)
	for range envoys {
		conn, err := grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return p, err
		}
		defer conn.Close()
		if err := subscribe(ctx, conn, name, &reading, got); err != nil {
			return p, err
		}
	}
	if _, err := collect(got, envoys); err != nil {
		return p, err
	}
	u, err := used()
	if err != nil {
		return p, err
	}
	if err := x.Set(state(n + 1)); err != nil {
		return p, err
	}
	if p.Bytes, err = collect(got, envoys); err != nil {
		return p, err
	}
	v, err := used()
	d := v.since(u)
	p.Millis, p.Wall = d.cpu*1e3, d.seconds*1e3
	return p, err
}

// raw keeps a response as it came, as a client that costs nothing would.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) { return proto.Marshal(v.(proto.Message)) }

func (raw) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), b...)
	return nil
}

// subscribe asks for the endpoints and acknowledges what comes.
func subscribe(ctx context.Context, conn *grpc.ClientConn, name string, wg *sync.WaitGroup, got chan<- int) error {
	st, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "StreamAggregatedResources", ClientStreams: true, ServerStreams: true},
		discovery.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName, grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(64<<20))
	if err != nil {
		return err
	}
	ask := &discovery.DiscoveryRequest{Node: &core.Node{Id: "scale"}, TypeUrl: resource.EndpointType, ResourceNames: []string{name}}
	if err := st.SendMsg(ask); err != nil {
		return err
	}
	wg.Go(func() {
		for {
			var b []byte
			if err := st.RecvMsg(&b); err != nil {
				return // ctx is over, or collect misses it
			}
			got <- len(b)
			var r discovery.DiscoveryResponse
			if proto.Unmarshal(b, &r) != nil {
				return
			}
			ack := &discovery.DiscoveryRequest{TypeUrl: ask.GetTypeUrl(), ResourceNames: ask.GetResourceNames(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}
			if st.SendMsg(ack) != nil {
				return
			}
		}
	})
	return nil
}

// collect waits for one response of every stream.
func collect(got <-chan int, envoys int) (bytes float64, err error) {
	late := time.After(2 * time.Minute)
	for range envoys {
		select {
		case r := <-got:
			bytes = float64(r)
		case <-late:
			return bytes, errors.New("an Envoy did not get the change")
		}
	}
	return bytes, nil
}
