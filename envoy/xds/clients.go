package xds

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	xdsserver "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
)

// Client describes one open stream.
type Client struct {
	Node  string                `json:"node"`
	Delta bool                  `json:"delta"`
	Since time.Time             `json:"since"`
	Types map[string]TypeStatus `json:"types"` // by short name
	// Routes and filters with hot keys that the client has subscribed to, sorted.
	Hot []string `json:"hot,omitempty"`
}

// TypeStatus is the state of a client for one type of resource.
type TypeStatus struct {
	Accepted  string    `json:"accepted"`          // version that the client uses
	Sent      string    `json:"sent"`              // version sent last
	Refused   string    `json:"refused,omitempty"` // version that the client refused last
	Why       string    `json:"why,omitempty"`     // the client's reason
	RefusedAt time.Time `json:"refused_at,omitzero"`

	nonce    string // nonce of the response sent last
	refusing bool   // the client refused that response
	sentAt   time.Time
}

// clients tracks all open streams.
type clients struct {
	log     *slog.Logger
	metrics *metrics
	// upToDate returns the version that is served of a type if a client with these versions of its resources needs no
	// update.
	upToDate func(typeURL string, has map[string]string) string

	mu   sync.Mutex
	open map[stream]*Client // guarded by mu
}

// stream identifies a stream. The two protocols number their streams independently.
type stream struct {
	id    int64
	delta bool
}

func newClients(log *slog.Logger, m *metrics, upToDate func(string, map[string]string) string) *clients {
	return &clients{log: log, metrics: m, upToDate: upToDate, open: map[stream]*Client{}}
}

func (c *clients) callbacks() xdsserver.Callbacks {
	return xdsserver.CallbackFuncs{
		StreamOpenFunc:        func(_ context.Context, id int64, _ string) error { return c.opened(stream{id, false}) },
		StreamClosedFunc:      func(id int64, _ *core.Node) { c.closed(stream{id, false}) },
		DeltaStreamOpenFunc:   func(_ context.Context, id int64, _ string) error { return c.opened(stream{id, true}) },
		DeltaStreamClosedFunc: func(id int64, _ *core.Node) { c.closed(stream{id, true}) },
		StreamRequestFunc: func(id int64, r *discovery.DiscoveryRequest) error {
			refused := c.onRequest(stream{id, false}, r)
			if refused != "" {
				// The library sends its version whenever it differs from the one that the client uses. A client that
				// refuses a version keeps using the one before, so it would be sent the same version again
				// immediately, forever.
				r.VersionInfo = refused
			}
			return nil
		},
		StreamDeltaRequestFunc: func(id int64, r *discovery.DeltaDiscoveryRequest) error {
			c.onRequest(stream{id, true}, r)
			if has := r.GetInitialResourceVersions(); len(has) > 0 {
				c.resumed(stream{id, true}, r.GetTypeUrl(), has)
			}
			return nil
		},
		StreamResponseFunc: func(_ context.Context, id int64, _ *discovery.DiscoveryRequest,
			r *discovery.DiscoveryResponse) {
			c.sent(stream{id, false}, r.GetTypeUrl(), r.GetVersionInfo(), r.GetNonce())
		},
		StreamDeltaResponseFunc: func(id int64, _ *discovery.DeltaDiscoveryRequest,
			r *discovery.DeltaDiscoveryResponse) {
			c.sent(stream{id, true}, r.GetTypeUrl(), r.GetSystemVersionInfo(), r.GetNonce())
		},
	}
}

func (c *clients) opened(id stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[id] = &Client{Delta: id.delta, Since: time.Now(), Types: map[string]TypeStatus{}}
	c.metrics.streams.Inc()
	return nil
}

func (c *clients) closed(id stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, id)
	c.metrics.streams.Dec()
}

// request is a request of either protocol.
type request interface {
	GetNode() *core.Node
	GetTypeUrl() string
	GetResponseNonce() string
	GetErrorDetail() *status.Status
}

// onRequest processes a request: the first of its type, an acknowledgement, a refusal, or one that crossed a later
// response. It returns the version that the client refuses, until the client is sent another one.
func (c *clients) onRequest(id stream, r request) (refused string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl := c.open[id]
	if cl == nil {
		return ""
	}
	if n := r.GetNode().GetId(); n != "" {
		cl.Node = strings.ToValidUTF8(n[:min(len(n), maxNode)], "")
	}
	name, known := shortTypeName(r.GetTypeUrl())
	if !known {
		return ""
	}
	cl.subscribe(r)
	t, nonce, refusal := cl.Types[name], r.GetResponseNonce(), r.GetErrorDetail()
	switch {
	case nonce == "" || nonce != t.nonce:
	case refusal != nil:
		t.refusing, t.Refused, t.Why, t.RefusedAt = true, t.Sent, refusal.GetMessage(), time.Now()
		t.Why = strings.ToValidUTF8(t.Why[:min(len(t.Why), maxWhy)], "")
		c.metrics.nacks.WithLabelValues(name).Inc()
		c.log.Error("xDS client refused a version; it keeps the one before", "node", cl.Node, "type", name,
			"version", t.Sent, "cause", t.Why)
	case !t.refusing && t.Sent != t.Accepted:
		t.Accepted = t.Sent
		c.metrics.ack.Observe(time.Since(t.sentAt).Seconds())
	}
	cl.Types[name] = t
	if t.refusing {
		return t.Sent
	}
	return ""
}

// Limits on the length of what a client sends about itself.
const (
	maxNode = 256
	maxWhy  = 4096
	maxHot  = 100 // names, of maxNode bytes each
)

// subscribe records the names of routes and filters with hot keys that the client requests.
func (cl *Client) subscribe(r request) {
	if u := r.GetTypeUrl(); u != resource.RouteType && u != resource.ExtensionConfigType {
		return
	}
	var requested []string
	switch r := r.(type) {
	case *discovery.DiscoveryRequest:
		requested = r.GetResourceNames()
	case *discovery.DeltaDiscoveryRequest:
		requested = r.GetResourceNamesSubscribe()
	}
	for _, n := range requested {
		if len(n) <= maxNode && len(cl.Hot) < maxHot && !slices.Contains(cl.Hot, n) {
			cl.Hot = append(cl.Hot, strings.ToValidUTF8(n, ""))
		}
	}
	slices.Sort(cl.Hot)
}

// resumed processes the first request of a client that reconnects, perhaps after using another server of the same
// members.
func (c *clients) resumed(id stream, typeURL string, has map[string]string) {
	version := c.upToDate(typeURL, has)
	c.mu.Lock()
	defer c.mu.Unlock()
	cl := c.open[id]
	name, known := shortTypeName(typeURL)
	if cl == nil || !known || version == "" {
		return
	}
	t := cl.Types[name]
	t.Accepted = version
	cl.Types[name] = t
}

func (c *clients) sent(id stream, typeURL, version, nonce string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, known := shortTypeName(typeURL)
	if !known {
		return
	}
	c.metrics.pushes.WithLabelValues(name).Inc()
	if cl := c.open[id]; cl != nil {
		t := cl.Types[name]
		t.Sent, t.nonce, t.refusing, t.sentAt = version, nonce, false, time.Now()
		cl.Types[name] = t
	}
}

// list returns a copy of all clients, sorted by node.
func (c *clients) list() []Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []Client{}
	for _, cl := range c.open {
		cp := *cl
		cp.Hot = slices.Clone(cl.Hot)
		cp.Types = map[string]TypeStatus{}
		for name, t := range cl.Types {
			cp.Types[name] = t
		}
		out = append(out, cp)
	}
	slices.SortFunc(out, func(a, b Client) int {
		if n := strings.Compare(a.Node, b.Node); n != 0 {
			return n
		}
		return a.Since.Compare(b.Since)
	})
	return out
}
