package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// Resolver resolves names. *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options configure a member and how it finds the others. Only Node is always required; with Join, Bind and either
// KeyFile or Insecure are required as well.
type Options struct {
	Node   string // this member's stable name: the hash key on the ring, at most membership.MaxID bytes
	BootID uint64 // of this boot; 0 means a random one
	PodUID string // of its pod, to distinguish a restart from a second member of the same name
	Role   membership.Role
	Weight uint32 // places on the ring; 0 means 1

	Ring     ring.Parameters // the ring to use if all active members are configured for it; else Keyward's own is used
	RingHost string          // this member's host on a ring with Envoy's parameters; :port uses the host of Advertise

	Bind      string   // host:port of gossip, UDP and TCP; port 0 selects a free one, an empty host binds every address
	Advertise string   // advertised host or host:port; default: Bind, or the first private address of this machine
	Join      []string // host:port or dns+host:port; may contain this member; empty means standalone
	Cluster   string   // label; members with another one are ignored; at most 255 bytes
	KeyFile   string   // gossip keys, see readKeys; re-read when it changes
	Insecure  bool     // allows unencrypted gossip

	Zone string // the zone that this member runs in, at most membership.MaxZone bytes; empty: unknown

	RLS, Peer, Route, Page string // advertised addresses, host:port or empty; :port uses the host of Advertise

	// Expect is the number of members that a cold start waits for, or 0 if unknown. A member has joined when it sees
	// that many members, has joined every address in Join, or has joined one that belongs to a running cluster; at
	// the latest after Timing.ColdStart. Without Expect, and if Join resolves to nothing but itself, it starts a
	// cluster of its own after Timing.Alone. The first of a StatefulSet (a name that ends in -0) starts one as soon
	// as no address has answered, unless names cannot be resolved. With Data, it does so only if Expect is at most 1.
	// No member starts its own cluster if no name in Join has ever been resolved, or if an address answers and
	// rejects it.
	//
	// A member divides limits by at least Expect until it has met that many members, or an active member that had met
	// as many as it expected, or until ExpectTimeout has passed since Start (unless it is 0). It may have joined
	// before, and then decides with its share. Once it has met them, Expect no longer matters, however few members
	// remain.
	Expect        int
	ExpectTimeout time.Duration

	// Data states that this member has a data directory with journals. SetLoaded must be called when they are loaded:
	// until then, this member takes no place on the ring. In a cold start, members then wait until no live member is
	// loading and all journals of the last ring are loaded, at the latest until Timing.ColdStart has passed since they
	// loaded their own. A member without Data waits, too, when it sees such announcements.
	Data bool
	// Loading is set if this member loads journals when it starts. Data implies it.
	Loading bool

	// Detection is the detection time. It sets the defaults of Timing.Probe and Timing.ProbeTimeout, and is announced to
	// the other members; 0 means membership.DefaultDetection.
	Detection membership.Detection

	Capacity  int           // sum of the ring's weights, plus one; 0 means 1024, at most 8192
	NRefDecay time.Duration // from the last death until N_ref falls; 0 means 60 s

	// Handoff states that SetProgress will be called, and makes planned changes wait for it. Without it, this member
	// has no counters to take over or hand off.
	Handoff bool

	// Streams states that SetStreams will be called, and keeps this member off the ring while it has no streams with
	// most other members.
	Streams bool

	Logger     *slog.Logger          // nil: no logs
	Registerer prometheus.Registerer // nil: no metrics
	Resolver   Resolver              // nil: the system's
	Timing     Timing

	// OnView is called with every View, one call at a time, first before Start returns. It delays the next View only.
	OnView func(*membership.View)

	// OnRoutes is called with the routes of hot keys when they change, one call at a time and never during OnView:
	// one route for each domain and owner string, in their order. It must not modify them.
	OnRoutes func([]hotkey.Route)

	// OnRefused is called for each packet and stream of gossip that is rejected unread, with the reason: key (another
	// key, or none), label, compressed (too large when decompressed), too_large or malformed. It must not block. It
	// may be nil.
	OnRefused func(reason string)

	// NewRing builds Keyward's own rings. If it is nil, each ring shares memory with the previous one. A program that runs many
	// members may share rings between them.
	NewRing func([]ring.Member) *ring.Ring

	// openPort opens the gossip port; tests replace it by a virtual network.
	openPort func(context.Context, transportConfig) (gossipPort, error)
	// wrap inserts faults between memberlist and the network, in tests.
	wrap func(memberlist.NodeAwareTransport) memberlist.NodeAwareTransport
}

// Timing has the durations of a Cluster. Zero fields have their defaults.
type Timing struct {
	Probe        time.Duration // between two probes; Options.Detection.Probe
	ProbeTimeout time.Duration // of a direct probe; Options.Detection.ProbeTimeout
	Gossip       time.Duration // between two rounds of gossip; 100 ms
	PushPull     time.Duration // between full exchanges with a random member; 15 s
	Stream       time.Duration // timeout of one full exchange; 5 s
	LostMemory   time.Duration // how long dead members are looked for, so that they can refute their death; 10 min
	JoinRetry    time.Duration // between joins while a member is missing; 3 s, and at most 1 s before having joined
	JoinIdle     time.Duration // between joins while none is missing; 15 s
	JoinDelay    time.Duration // how long a new ring waits for more members; 100 ms
	ColdStart    time.Duration // after which a member that is not loading has joined in any case; 30 s
	Places       time.Duration // with Data, how long a member of a new cluster waits for all to have places; 5 s
	Alone        time.Duration // after which it has joined without Expect if no other address resolves; 3 s
	NameConflict time.Duration // after which a silent member of the same name wins; 15 s
	DrainTimeout time.Duration // from Drain until Leave stops waiting for the other members; 12 s
	Tick         time.Duration // between two steps; 200 ms
	MinInterval  time.Duration // between two steps at least; 0, except if many members share a processor

	PrefetchTimeout time.Duration // after which a joiner without all replicas continues; 10 s
	JoinTurn        time.Duration // how long a joiner waits for the previous change; 10 s, in all at most six times that
	LeaveTurn       time.Duration // how long a leaver waits for the change before its own; 2 s
	FlapHold        time.Duration // how long a flapping member stays off the ring; 2 s, doubling up to 60 s
	LeftMemory      time.Duration // how long a graceful leave is remembered; 60 s
}

func setDefault(d *time.Duration, def time.Duration) {
	if *d <= 0 {
		*d = def
	}
}

func (t *Timing) setDefaults() {
	setDefault(&t.Gossip, 100*time.Millisecond)
	setDefault(&t.PushPull, 15*time.Second)
	setDefault(&t.Stream, 5*time.Second)
	setDefault(&t.LostMemory, 10*time.Minute)
	setDefault(&t.JoinRetry, 3*time.Second)
	setDefault(&t.JoinIdle, 15*time.Second)
	setDefault(&t.JoinDelay, 100*time.Millisecond)
	setDefault(&t.ColdStart, 30*time.Second)
	setDefault(&t.Places, 5*time.Second)
	setDefault(&t.Alone, 3*time.Second)
	setDefault(&t.NameConflict, 15*time.Second)
	setDefault(&t.DrainTimeout, 12*time.Second)
	setDefault(&t.Tick, 200*time.Millisecond)
	setDefault(&t.PrefetchTimeout, 10*time.Second)
	setDefault(&t.JoinTurn, 10*time.Second)
	setDefault(&t.LeaveTurn, 2*time.Second)
	setDefault(&t.FlapHold, 2*time.Second)
	setDefault(&t.LeftMemory, time.Minute)
}

const maxLabel = memberlist.LabelMaxSize

func (o *Options) setDefaults() {
	setDefault(&o.Timing.Probe, o.Detection.Probe())
	setDefault(&o.Timing.ProbeTimeout, o.Detection.ProbeTimeout())
	o.Timing.setDefaults()
	setDefault(&o.NRefDecay, time.Minute)
	o.Weight = max(1, o.Weight)
	o.Loading = o.Loading || o.Data
	if o.Capacity == 0 {
		o.Capacity = ring.DefaultCapacity
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	if o.openPort == nil {
		o.openPort = openPort
	}
	if o.OnView == nil {
		o.OnView = func(*membership.View) {}
	}
	if o.OnRefused == nil {
		o.OnRefused = func(string) {}
	}
	if o.OnRoutes == nil {
		o.OnRoutes = func([]hotkey.Route) {}
	}
}

// validate returns an error that lists every invalid option.
func (o *Options) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(o.Node == "", "node: a name is needed")
	fault(len(o.Node) > membership.MaxID, "node: %d bytes, at most %d", len(o.Node), membership.MaxID)
	if err := membership.CheckID(ring.ID(o.Node)); err != nil {
		fault(true, "node: %w", err)
	}
	fault(o.Role > membership.RoleObserver, "role: %d is none", o.Role)
	fault(o.Capacity < 2 || o.Capacity > ring.MaxCapacity,
		"ring-capacity: %d is not within 2 to %d", o.Capacity, ring.MaxCapacity)
	fault(int64(o.Weight) > int64(o.Capacity)-1,
		"weight: %d is above the ring's capacity less one, %d", o.Weight, o.Capacity-1)
	if err := o.Ring.Validate(); err != nil {
		fault(true, "ring: %w", err)
	}
	fault(o.Ring.Envoy && o.RingHost == "", "ring-host: needed with a ring of Envoy's parameters")
	fault(len(o.RingHost) > ring.MaxHost, "ring-host: %d bytes, at most %d", len(o.RingHost), ring.MaxHost)
	fault(len(o.Zone) > membership.MaxZone, "zone: %d bytes, at most %d", len(o.Zone), membership.MaxZone)
	fault(o.Expect < 0 || o.Expect > ring.MaxCapacity, "expect: %d is not within 0 to %d", o.Expect, ring.MaxCapacity)
	if err := o.Detection.Validate(); err != nil {
		fault(true, "detection: %w", err)
	}
	fault(o.ExpectTimeout < 0, "expect-timeout: %v is negative", o.ExpectTimeout)
	fault(len(o.Cluster) > maxLabel, "cluster: %d bytes, at most %d", len(o.Cluster), maxLabel)
	for _, a := range [...]struct{ name, addr string }{
		{"rls-advertise", o.RLS}, {"peer", o.Peer}, {"route", o.Route}, {"metrics", o.Page},
	} {
		fault(len(a.addr) > membership.MaxAddress,
			"%s: %d bytes, at most %d", a.name, len(a.addr), membership.MaxAddress)
	}
	if len(o.Join) == 0 {
		return errors.Join(faults...)
	}
	fault(o.KeyFile == "" && !o.Insecure,
		"join: gossip needs a key: give --gossip-key-file, or --insecure to do without")
	for _, j := range o.Join {
		_, err := parseEntry(j, defaultPort)
		fault(err != nil, "join: %w", err)
	}
	if _, _, err := splitAddr(o.Bind, defaultPort); err != nil {
		faults = append(faults, fmt.Errorf("gossip: %w", err))
	}
	return errors.Join(faults...)
}

const defaultPort = 7946

// splitAddr splits host:port, or a host alone.
func splitAddr(addr string, port uint16) (string, uint16, error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		bare := strings.TrimSuffix(strings.TrimPrefix(addr, "["), "]")
		if _, ipErr := netip.ParseAddr(bare); ipErr != nil && strings.Contains(addr, ":") {
			return "", 0, fmt.Errorf("%q is not host:port", addr)
		}
		return bare, port, nil
	}
	if text == "" {
		return host, port, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q has no valid port", addr)
	}
	return host, uint16(n), nil
}

// announcedDetection returns 0 for the default, which versions without --detection use as well.
func announcedDetection(d membership.Detection) membership.Detection {
	if d == membership.DefaultDetection {
		return 0
	}
	return d
}

func (o *Options) member(bootID uint64, now time.Time) membership.Member {
	m := membership.Member{
		ID: ring.ID(o.Node), BootID: bootID, Incarnation: 1, Weight: o.Weight, Role: o.Role,
		StartedAt: now.UnixMilli(), Expect: o.Expect, Detection: announcedDetection(o.Detection),
		RingParameters: o.Ring, RingHost: o.RingHost, Zone: o.Zone, Loading: o.Loading,
		Addresses:   membership.Addresses{RLS: o.RLS, Peer: o.Peer, Route: o.Route, Page: o.Page},
		ProtocolMin: membership.ProtocolMin, ProtocolMax: membership.ProtocolMax,
	}
	if o.PodUID != "" {
		m.Pod = ring.Hash(o.PodUID) | 1 // never 0, which means unknown
	}
	return m
}
