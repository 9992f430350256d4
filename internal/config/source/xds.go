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

// rateLimitConfigType is the type of the requested resources.
const rateLimitConfigType = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// XDSOptions configure the server that provides rules.
type XDSOptions struct {
	Server       string            // host:port, or a gRPC target; default localhost:18000
	NodeID       string            // default "default"
	NodeMetadata map[string]string // sent with the node
	Headers      map[string]string // sent with each stream
	ConnectRetry time.Duration     // time between connection attempts, randomized by half; default 3 s
	Backoff      Backoff           // wait after a stream has ended
	MaxMessage   int               // maximum size of a response in bytes; default 4 MiB, as in gRPC

	TLS        bool        // connect with TLS
	Files      certs.Files // the client's certificate, if any, and the CA of the server; default: the system's root CAs
	ServerName string      // required name in the server's certificate (…_SERVER_TLS_SAN); default: the host of Server

	Config func() config.Options // called for each load; nil: the zero options
	Logger *slog.Logger          // nil: no logs
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

// credentials reads the certificate files.
func (o XDSOptions) credentials() (credentials.TransportCredentials, error) {
	if !o.TLS {
		return insecure.NewCredentials(), nil
	}
	co := certs.ClientOptions{ServerName: o.ServerName, Reload: certs.Reload{Logger: o.Logger}}
	if co.ServerName == "" {
		// TLS verifies host names by default, but IP addresses only if they are set here.
		address := o.Server[strings.LastIndexByte(o.Server, '/')+1:] // without the scheme of a resolver
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

// awaitCredentials reads the files until they are valid, since a volume may be mounted after the process has started.
// It reports each error as a LoadResult. It returns nil if ctx is done.
func (o XDSOptions) awaitCredentials(ctx context.Context, sink func(LoadResult)) credentials.TransportCredentials {
	last := ""
	for ctx.Err() == nil {
		c, err := o.credentials()
		if err == nil {
			return c
		}
		if text := err.Error(); text != last {
			last = text
			sink(LoadResult{Source: FromXDS, Detail: o.Server, Err: fmt.Errorf("load the xDS client's certificates (retrying "+
				"every %v): %w", o.ConnectRetry, err)})
		}
		pause(ctx, o.ConnectRetry)
	}
	return nil
}

func (o XDSOptions) dial(creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		// WatchXDS paces the attempts and resets this backoff before each.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}),
		// By default servers allow one ping every 5 minutes.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: 20 * time.Second}),
	}
	if o.MaxMessage > 0 {
		opts = append(opts, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessage)))
	}
	return grpc.NewClient(o.Server, opts...)
}

// node returns the node of this client.
func (o XDSOptions) node() *core.Node {
	fields := make(map[string]*structpb.Value, len(o.NodeMetadata))
	for k, v := range o.NodeMetadata {
		fields[k] = structpb.NewStringValue(v)
	}
	return &core.Node{Id: o.NodeID, Metadata: &structpb.Struct{Fields: fields}}
}

// WatchXDS subscribes to the RateLimitConfig resources of a server, with the state-of-the-world protocol over ADS,
// until ctx is done. It reports each response as a LoadResult, and acknowledges it or rejects it with the error. Errors
// in the certificate files are reported as well, and the files are read again until they are valid. WatchXDS returns an
// error only for invalid options.
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
		responses, err := w.stream(ctx)
		if ctx.Err() != nil {
			break
		}
		if responses > 0 {
			failures = 0
		}
		var wait time.Duration
		if errors.Is(err, errConnect) {
			wait = Backoff{Factor: 0.5}.spread(o.ConnectRetry, chance())
		} else {
			failures++
			wait = o.Backoff.after(failures, chance())
		}
		o.Logger.Warn("xDS stream for rules ended; the loaded rules stay in force", "address", o.Server, "error", err,
			"retry_in", wait)
		pause(ctx, wait)
	}
	return nil
}

// errConnect is wrapped by errors of streams that could not be opened.
var errConnect = errors.New("connect")

// xdsWatch is the state that survives a stream. Only WatchXDS's goroutine uses it.
type xdsWatch struct {
	o       XDSOptions
	client  discovery.AggregatedDiscoveryServiceClient
	sink    func(LoadResult)
	version string // of the last response that was acknowledged on the stream
	refused refusal
}

// refusal describes the last rejected response. Common servers immediately resend a rejected response, so the client
// waits before it rejects the same one again.
type refusal struct {
	version string
	fault   string // empty if the last response was acknowledged
	times   int
}

// stream processes one stream until it ends, and returns how many responses it received.
func (w *xdsWatch) stream(ctx context.Context) (responses int, err error) {
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.New(w.o.Headers)))
	defer cancel()
	s, err := w.client.StreamAggregatedResources(ctx)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errConnect, err)
	}
	w.o.Logger.Info("xDS stream for rules opened", "address", w.o.Server, "node", w.o.NodeID)
	w.version = ""
	// Every request contains the node, which some servers require. The first request of a stream has no version: after
	// a restart a server that numbers versions from 1 would not send its version 1 to a client that names an older
	// version 1.
	request := &discovery.DiscoveryRequest{Node: w.o.node(), TypeUrl: rateLimitConfigType}
	for {
		if err := s.Send(request); err != nil {
			if errors.Is(err, io.EOF) {
				_, err = s.Recv() // returns why the stream ended
			}
			return responses, err
		}
		response, err := s.Recv()
		if err != nil {
			return responses, err
		}
		responses++
		request = w.process(response)
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

// process loads the resources of a response and returns the acknowledgment or rejection. It does not report the same
// fault twice.
func (w *xdsWatch) process(response *discovery.DiscoveryResponse) *discovery.DiscoveryRequest {
	e := LoadResult{Source: FromXDS, Detail: w.o.Server}
	e.Rules, e.Err = w.load(response)
	r := &discovery.DiscoveryRequest{Node: w.o.node(), TypeUrl: rateLimitConfigType, ResponseNonce: response.GetNonce()}
	if e.Err == nil {
		w.version, w.refused = response.GetVersionInfo(), refusal{}
		w.sink(e)
	} else {
		now := refusal{version: response.GetVersionInfo(), fault: e.Err.Error()}
		if now.version == w.refused.version && now.fault == w.refused.fault {
			now.times = w.refused.times
		} else {
			w.sink(e)
		}
		now.times++
		w.refused = now
		r.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: sendable(now.fault)}
	}
	r.VersionInfo = w.version
	return r
}

// sendable returns a fault's text in a form that fits into a request. Text that is not valid UTF-8 would end the
// stream, and the server would not receive the fault.
func sendable(fault string) string {
	const most = 4096
	return strings.ToValidUTF8(fault[:min(len(fault), most)], "?")
}

func (w *xdsWatch) load(response *discovery.DiscoveryResponse) (*config.Rules, error) {
	if t := response.GetTypeUrl(); t != rateLimitConfigType {
		return nil, fmt.Errorf("response of type %q to a request for %q", t, rateLimitConfigType)
	}
	resources := make([]*rlsconf.RateLimitConfig, len(response.GetResources()))
	for i, r := range response.GetResources() {
		resources[i] = new(rlsconf.RateLimitConfig)
		if err := r.UnmarshalTo(resources[i]); err != nil {
			return nil, fmt.Errorf("resource %d: %w", i, err)
		}
	}
	// Servers list resources in any order. If several add to one domain the order matters, so every member must use the
	// same one.
	slices.SortStableFunc(resources,
		func(a, b *rlsconf.RateLimitConfig) int { return strings.Compare(a.GetName(), b.GetName()) })
	return config.FromProto(resources, w.o.Config())
}
