package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/config"
)

// RateLimitConfigType is the type of the resources that are asked for.
const RateLimitConfigType = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// XDSOptions say which server rules come from.
type XDSOptions struct {
	Server       string            // host:port, or a gRPC target; default localhost:18000
	NodeID       string            // default "default"
	NodeMetadata map[string]string // sent with the node
	Headers      map[string]string // sent with each stream
	ConnectRetry time.Duration     // time between attempts to connect, give or take half; default 3 s
	Backoff      Backoff           // wait after a stream has ended
	MaxMessage   int               // largest answer accepted, in bytes; default gRPC's 4 MiB

	TLS        bool        // connect with TLS
	Files      certs.Files // the client's certificate, if any, and the CA of the server; default: the system's roots
	ServerName string      // name that the server's certificate must carry (…_SERVER_TLS_SAN); default: the host of Server

	Config func() config.Options // asked at each load; default: the zero options
	Logger *slog.Logger          // default: nowhere
}

func (o XDSOptions) withDefaults() XDSOptions {
	if o.Server == "" {
		o.Server = "localhost:18000"
	}
	if o.NodeID == "" {
		o.NodeID = "default"
	}
	if o.ConnectRetry <= 0 {
		o.ConnectRetry = 3 * time.Second
	}
	o.Backoff = o.Backoff.withDefaults()
	if o.Config == nil {
		o.Config = func() config.Options { return config.Options{} }
	}
	o.Logger = loggerOr(o.Logger)
	return o
}

// credentials reads the files.
func (o XDSOptions) credentials() (credentials.TransportCredentials, error) {
	if !o.TLS {
		return insecure.NewCredentials(), nil
	}
	co := certs.ClientOptions{ServerName: o.ServerName, Reload: certs.Reload{Logger: o.Logger}}
	if co.ServerName == "" {
		// An IP address must be named here: TLS does not tell the verification what was dialled.
		address := o.Server[strings.LastIndexByte(o.Server, '/')+1:] // without a resolver's name
		if host, _, err := net.SplitHostPort(address); err == nil && net.ParseIP(host) != nil {
			co.ServerName = host
		}
	}
	c, err := certs.Client(o.Files, co)
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(c), nil
}

// awaitCredentials reads the files until they can be used: a volume may come later than the program. Each fault is an Event. It returns
// nil when ctx has ended.
func (o XDSOptions) awaitCredentials(ctx context.Context, sink func(LoadResult)) credentials.TransportCredentials {
	last := ""
	for ctx.Err() == nil {
		c, err := o.credentials()
		if err == nil {
			return c
		}
		if text := err.Error(); text != last {
			last = text
			sink(LoadResult{Source: FromXDS, Detail: o.Server, Err: fmt.Errorf("xDS client's TLS, tried again every %v: %w", o.ConnectRetry, err)})
		}
		pause(ctx, o.ConnectRetry)
	}
	return nil
}

func (o XDSOptions) dial(creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		// Attempts are paced by WatchXDS, which resets this at each.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}),
		// No server's default enforcement calls one ping in more than 5 minutes too many.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: 20 * time.Second}),
	}
	if o.MaxMessage > 0 {
		opts = append(opts, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessage)))
	}
	return grpc.NewClient(o.Server, opts...)
}

// node is who asks.
func (o XDSOptions) node() *core.Node {
	fields := make(map[string]*structpb.Value, len(o.NodeMetadata))
	for k, v := range o.NodeMetadata {
		fields[k] = structpb.NewStringValue(v)
	}
	return &core.Node{Id: o.NodeID, Metadata: &structpb.Struct{Fields: fields}}
}

// WatchXDS asks a server for RateLimitConfig resources, state of the world over ADS, until ctx ends. Each answer is an
// Event, and is acknowledged or refused with the fault's text; so is a fault of the certificates' files, which are read
// again until they can be used. The error is one of the options; nothing that the server does ends it.
func WatchXDS(ctx context.Context, o XDSOptions, sink func(LoadResult)) error {
	o = o.withDefaults()
	creds := o.awaitCredentials(ctx, sink)
	if creds == nil {
		return nil
	}
	conn, err := o.dial(creds)
	if err != nil {
		return fmt.Errorf("rules over xDS from %s: %w", o.Server, err)
	}
	defer conn.Close()
	w := &xdsWatch{o: o, client: discovery.NewAggregatedDiscoveryServiceClient(conn), sink: sink}
	failures := 0
	for ctx.Err() == nil {
		conn.ResetConnectBackoff()
		answers, err := w.stream(ctx)
		if ctx.Err() != nil {
			break
		}
		if answers > 0 {
			failures = 0
		}
		var wait time.Duration
		if errors.Is(err, errConnect) {
			wait = Backoff{Factor: 0.5}.spread(o.ConnectRetry, chance())
		} else {
			failures++
			wait = o.Backoff.after(failures, chance())
		}
		o.Logger.Warn("xDS stream of the rules has ended, what is loaded stays", "server", o.Server, "error", err, "again_in", wait)
		pause(ctx, wait)
	}
	return nil
}

// errConnect is in the error of a stream that never began.
var errConnect = errors.New("connect")

// xdsWatch is the state that outlives a stream; only WatchXDS's goroutine touches it.
type xdsWatch struct {
	o       XDSOptions
	client  discovery.AggregatedDiscoveryServiceClient
	sink    func(LoadResult)
	version string // of the last answer that was acknowledged on the stream
	refused refusal
}

// refusal is the last answer that was refused. Common servers send an answer again the moment it is refused: without
// a wait the two would do nothing else.
type refusal struct {
	version string
	fault   string // empty: the last answer was acknowledged
	times   int
}

// stream serves one stream to its end and says how many answers came.
func (w *xdsWatch) stream(ctx context.Context) (answers int, err error) {
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.New(w.o.Headers)))
	defer cancel()
	s, err := w.client.StreamAggregatedResources(ctx)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errConnect, err)
	}
	w.o.Logger.Info("xDS stream of the rules has begun", "server", w.o.Server, "node", w.o.NodeID)
	w.version = ""
	// The node is sent with each request, as some servers want it. A stream's first request names no version: a server that
	// counts from 1 again after a restart would not send its version 1 to a client that names another version 1.
	request := &discovery.DiscoveryRequest{Node: w.o.node(), TypeUrl: RateLimitConfigType}
	for {
		if err := s.Send(request); err != nil {
			if errors.Is(err, io.EOF) {
				_, err = s.Recv() // says why the stream has ended
			}
			return answers, err
		}
		answer, err := s.Recv()
		if err != nil {
			return answers, err
		}
		answers++
		request = w.take(answer)
		if again := w.refused.times - 1; again > 0 {
			pause(ctx, Backoff{Initial: time.Second, Max: 16 * time.Second}.withDefaults().after(again, chance()))
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// take loads an answer and returns what to say to it. A fault that the server sends again is no new Event.
func (w *xdsWatch) take(answer *discovery.DiscoveryResponse) *discovery.DiscoveryRequest {
	e := LoadResult{Source: FromXDS, Detail: w.o.Server}
	e.Rules, e.Err = w.load(answer)
	r := &discovery.DiscoveryRequest{Node: w.o.node(), TypeUrl: RateLimitConfigType, ResponseNonce: answer.GetNonce()}
	if e.Err == nil {
		w.version, w.refused = answer.GetVersionInfo(), refusal{}
		w.sink(e)
	} else {
		now := refusal{version: answer.GetVersionInfo(), fault: e.Err.Error()}
		if now.version == w.refused.version && now.fault == w.refused.fault {
			now.times = w.refused.times
		} else {
			w.sink(e)
		}
		now.times++
		w.refused = now
		r.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: utterable(now.fault)}
	}
	r.VersionInfo = w.version
	return r
}

// utterable is a fault's text that fits into an answer whatever the rules hold: a text that is no UTF-8 would end the
// stream, and the server would not learn of the fault.
func utterable(fault string) string {
	const most = 4096
	return strings.ToValidUTF8(fault[:min(len(fault), most)], "?")
}

func (w *xdsWatch) load(answer *discovery.DiscoveryResponse) (*config.Rules, error) {
	if t := answer.GetTypeUrl(); t != RateLimitConfigType {
		return nil, fmt.Errorf("answer of type %q to a request for %q", t, RateLimitConfigType)
	}
	resources := make([]*rlsconf.RateLimitConfig, len(answer.GetResources()))
	for i, r := range answer.GetResources() {
		resources[i] = new(rlsconf.RateLimitConfig)
		if err := r.UnmarshalTo(resources[i]); err != nil {
			return nil, fmt.Errorf("resource %d: %w", i, err)
		}
	}
	// Servers list resources in any order, and where domains merge the order has a meaning: every member must find
	// the same one.
	slices.SortStableFunc(resources, func(a, b *rlsconf.RateLimitConfig) int { return strings.Compare(a.GetName(), b.GetName()) })
	return config.FromProto(resources, w.o.Config())
}
