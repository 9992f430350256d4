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
	xdsserver "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
)

// Client is one open stream.
type Client struct {
	Node  string          `json:"node"`
	Delta bool            `json:"delta"`
	Since time.Time       `json:"since"`
	Types map[string]Type `json:"types"` // by short name
}

// Type is what a client has of one type of resource.
type Type struct {
	Accepted  string    `json:"accepted"`          // version it goes by
	Sent      string    `json:"sent"`              // version sent last
	Refused   string    `json:"refused,omitempty"` // version it refused last
	Why       string    `json:"why,omitempty"`     // in its own words
	RefusedAt time.Time `json:"refused_at,omitzero"`

	sentAt time.Time
}

// clients follows every stream.
type clients struct {
	log     *slog.Logger
	metrics *metrics
	mu      sync.Mutex
	open    map[stream]*Client // guarded by mu
}

// stream identifies one: the two protocols number theirs apart.
type stream struct {
	id    int64
	delta bool
}

func newClients(log *slog.Logger, m *metrics) *clients {
	return &clients{log: log, metrics: m, open: map[stream]*Client{}}
}

func (c *clients) callbacks() xdsserver.Callbacks {
	return xdsserver.CallbackFuncs{
		StreamOpenFunc:        func(_ context.Context, id int64, _ string) error { return c.opened(stream{id, false}) },
		StreamClosedFunc:      func(id int64, _ *core.Node) { c.closed(stream{id, false}) },
		DeltaStreamOpenFunc:   func(_ context.Context, id int64, _ string) error { return c.opened(stream{id, true}) },
		DeltaStreamClosedFunc: func(id int64, _ *core.Node) { c.closed(stream{id, true}) },
		StreamRequestFunc: func(id int64, r *discovery.DiscoveryRequest) error {
			c.heard(stream{id, false}, r.GetNode(), r.GetTypeUrl(), r.GetResponseNonce(), r.GetErrorDetail())
			return nil
		},
		StreamDeltaRequestFunc: func(id int64, r *discovery.DeltaDiscoveryRequest) error {
			c.heard(stream{id, true}, r.GetNode(), r.GetTypeUrl(), r.GetResponseNonce(), r.GetErrorDetail())
			return nil
		},
		StreamResponseFunc: func(_ context.Context, id int64, _ *discovery.DiscoveryRequest, r *discovery.DiscoveryResponse) {
			c.sent(stream{id, false}, r.GetTypeUrl(), r.GetVersionInfo())
		},
		StreamDeltaResponseFunc: func(id int64, _ *discovery.DeltaDiscoveryRequest, r *discovery.DeltaDiscoveryResponse) {
			c.sent(stream{id, true}, r.GetTypeUrl(), r.GetSystemVersionInfo())
		},
	}
}

func (c *clients) opened(id stream) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[id] = &Client{Delta: id.delta, Since: time.Now(), Types: map[string]Type{}}
	c.metrics.streams.Inc()
	return nil
}

func (c *clients) closed(id stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, id)
	c.metrics.streams.Dec()
}

// heard is a request: the first of its type, an acknowledgement, or a refusal.
func (c *clients) heard(id stream, node *core.Node, typeURL, nonce string, refusal *status.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cl := c.open[id]
	if cl == nil {
		return
	}
	if n := node.GetId(); n != "" {
		cl.Node = n
	}
	name := short(typeURL)
	t := cl.Types[name]
	switch {
	case refusal != nil:
		t.Refused, t.Why, t.RefusedAt = t.Sent, refusal.GetMessage(), time.Now()
		c.metrics.nacks.WithLabelValues(name).Inc()
		c.log.Error("an xDS client refused what it was sent, and keeps what it had", "node", cl.Node, "type", name, "version", t.Sent, "why", t.Why)
	case nonce != "" && t.Sent != t.Accepted:
		t.Accepted = t.Sent
		c.metrics.ack.Observe(time.Since(t.sentAt).Seconds())
	}
	cl.Types[name] = t
}

func (c *clients) sent(id stream, typeURL, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := short(typeURL)
	c.metrics.pushes.WithLabelValues(name).Inc()
	if cl := c.open[id]; cl != nil {
		t := cl.Types[name]
		t.Sent, t.sentAt = version, time.Now()
		cl.Types[name] = t
	}
}

// list is a copy, by node.
func (c *clients) list() []Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []Client{}
	for _, cl := range c.open {
		cp := *cl
		cp.Types = map[string]Type{}
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
