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

// Resolver looks names up; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options say who this member is and how it finds the others. Only Node is always needed; with Join, also Bind and
// either KeyFile or Insecure.
type Options struct {
	Node   string // this member's stable name: the hash_key on the ring, at most membership.MaxID bytes
	BootID uint64 // this boot; 0: drawn at random
	PodUID string // of the pod it runs in: tells a restart from a second member of the same name
	Role   membership.Role
	Weight uint32 // places on the ring; 0 means 1

	Bind      string   // host:port of gossip, UDP and TCP; port 0 picks one; an empty host is every address
	Advertise string   // host or host:port told to the others; default: Bind, or the first private address of this machine
	Join      []string // host:port or dns+host:port, own address allowed; empty means standalone
	Cluster   string   // label: members of other labels are not heard; at most 255 bytes
	KeyFile   string   // gossip keys, see readKeys; re-read when it changes
	Insecure  bool     // allows gossip in the clear

	RLS, Peer, Route, Page string // addresses told to the others, host:port or empty; :port is at the host told for gossip

	// Expect is how many members a cold start waits for, 0 if unknown. A member has joined when it sees that many, or
	// has joined every address that Join resolves to, or one that belongs to a running cluster; or after
	// Timing.ColdStart. With no Expect and nothing but itself resolvable, it is alone after Timing.Alone. The first
	// of a StatefulSet (a name that ends in -0) begins as soon as nobody has answered, unless names cannot be looked up.
	// None of these begins alone when no name of Join has ever been found, or when somebody answers there who takes it for no member.
	//
	// A member divides limits by Expect, at least, until it has met that many, or one active member that had met as many as
	// it expected; or until ExpectTimeout has passed since Start, if that is not 0. It may have joined before: then it answers
	// from its share. Once it has met them, it divides by Expect no more, however few are left.
	Expect        int
	ExpectTimeout time.Duration

	Capacity  int           // sum of weights the ring is made for, plus one; 0 means 1024, at most 8192
	NRefDecay time.Duration // after the last death; 0 means 60 s

	// Handoff says that SetComplete, SetWarm and SetHandedOff will be called, and has planned changes wait for them. Without,
	// this member takes over and hands over nothing that would have to be waited for.
	Handoff bool

	// Streams says that SetStreams will be called, and has this member stay off the ring while it has no streams with most of the others.
	Streams bool

	Logger     *slog.Logger          // nil logs nothing
	Registerer prometheus.Registerer // nil registers nothing
	Resolver   Resolver              // nil means the system's
	Timing     Timing

	// OnView is told every View, one at a time, the first before Start returns. It holds up the next View only.
	OnView func(*membership.View)

	// OnRoutes is told what is done about hot keys whenever that changes, one at a time and never while OnView is: one route
	// for each domain and owner string, in their order. The routes are not to be changed.
	OnRoutes func([]hotkey.Route)

	// OnRefused is told of each packet and stream of gossip that is refused unread, by reason: key (of another key, or none),
	// label, compressed (too large once unpacked), too_large or malformed. It must not block. nil: nobody.
	OnRefused func(reason string)

	// NewRing builds rings; nil: each shares what it can with the one before. A program that runs many members may have them share what it builds.
	NewRing func([]ring.Member) *ring.Ring

	// wrap may put faults between memberlist and the network, in tests.
	wrap func(memberlist.NodeAwareTransport) memberlist.NodeAwareTransport
}

// Timing is how long things take. Zero fields take the default.
type Timing struct {
	Probe        time.Duration // between two probes; 500 ms
	ProbeTimeout time.Duration // of a direct probe; 200 ms
	Gossip       time.Duration // between two rounds; 100 ms
	PushPull     time.Duration // between full exchanges with a random member; 15 s
	Stream       time.Duration // of one full exchange; 5 s
	LostMemory   time.Duration // how long the dead are looked for, so that they can object; 10 min
	JoinRetry    time.Duration // between joins while a member is missing; 3 s, and at most 1 s before having joined
	JoinIdle     time.Duration // between joins while none is missing; 15 s
	JoinDelay    time.Duration // that a ring waits for more joins; 100 ms
	ColdStart    time.Duration // after which a member counts as joined; 30 s
	Alone        time.Duration // after which it does with nobody resolvable and no Expect; 3 s
	NameConflict time.Duration // after which a silent member of the same name counts as alive; 15 s
	DrainTimeout time.Duration // from Drain on, that Leave waits for the others to drop this member and to have its counters; 12 s
	Tick         time.Duration // between looks at the clock; 200 ms
	MinInterval  time.Duration // between two looks at least; none, but where many members share a processor

	PrefetchTimeout time.Duration // after which a joiner without all copies goes on; 10 s
	JoinTurn        time.Duration // that a joiner waits for the change before its own, from the last change on; 10 s, in all six times that
	LeaveTurn       time.Duration // that a leaver waits for the change before its own; 2 s
	FlapHold        time.Duration // that a member which had lost all others stays off their ring; 2 s, doubling up to 60 s
	LeftMemory      time.Duration // how long a graceful leave is remembered; 60 s
}

func setDefault(d *time.Duration, def time.Duration) {
	if *d <= 0 {
		*d = def
	}
}

func (t *Timing) setDefaults() {
	setDefault(&t.Probe, 500*time.Millisecond)
	setDefault(&t.ProbeTimeout, 200*time.Millisecond)
	setDefault(&t.Gossip, 100*time.Millisecond)
	setDefault(&t.PushPull, 15*time.Second)
	setDefault(&t.Stream, 5*time.Second)
	setDefault(&t.LostMemory, 10*time.Minute)
	setDefault(&t.JoinRetry, 3*time.Second)
	setDefault(&t.JoinIdle, 15*time.Second)
	setDefault(&t.JoinDelay, 100*time.Millisecond)
	setDefault(&t.ColdStart, 30*time.Second)
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
	o.Timing.setDefaults()
	setDefault(&o.NRefDecay, time.Minute)
	o.Weight = max(1, o.Weight)
	if o.Capacity == 0 {
		o.Capacity = ring.DefaultCapacity
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
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

// validate reports every fault of o at once.
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
	fault(o.Capacity < 2 || o.Capacity > ring.MaxCapacity, "ring-capacity: %d is not within 2 to %d", o.Capacity, ring.MaxCapacity)
	fault(int64(o.Weight) > int64(o.Capacity)-1, "weight: %d is above the ring's capacity less one, %d", o.Weight, o.Capacity-1)
	fault(o.Expect < 0 || o.Expect > ring.MaxCapacity, "expect: %d is not within 0 to %d", o.Expect, ring.MaxCapacity)
	fault(o.ExpectTimeout < 0, "expect-timeout: %v is negative", o.ExpectTimeout)
	fault(len(o.Cluster) > maxLabel, "cluster: %d bytes, at most %d", len(o.Cluster), maxLabel)
	for _, a := range [...]struct{ name, addr string }{{"rls-advertise", o.RLS}, {"peer", o.Peer}, {"route", o.Route}, {"metrics", o.Page}} {
		fault(len(a.addr) > membership.MaxAddress, "%s: %d bytes, at most %d", a.name, len(a.addr), membership.MaxAddress)
	}
	if len(o.Join) == 0 {
		return errors.Join(faults...)
	}
	fault(o.KeyFile == "" && !o.Insecure, "join: gossip needs a key: give --gossip-key-file, or --insecure to do without")
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

// splitAddr takes host:port, or a host alone, apart.
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

func (o *Options) member(inst uint64, now time.Time) membership.Member {
	m := membership.Member{
		ID: ring.ID(o.Node), BootID: inst, Incarnation: 1, Weight: o.Weight, Role: o.Role, StartedAt: now.UnixMilli(), Expect: o.Expect,
		Addresses:   membership.Addresses{RLS: o.RLS, Peer: o.Peer, Route: o.Route, Page: o.Page},
		ProtocolMin: membership.ProtocolMin, ProtocolMax: membership.ProtocolMax,
	}
	if o.PodUID != "" {
		m.Pod = ring.Hash(o.PodUID) | 1 // never 0, which means unknown
	}
	return m
}
