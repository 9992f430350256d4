// Package peer runs an owner.Node: it supplies the time, and carries requests and messages between the members.
//
// A request whose key another member owns is appended to the link to that member. It leaves with all others that were
// collected during the link's last write, is served there by the goroutine that reads the stream, and its result
// returns in the same way. No goroutine waits for it: the one that reads the reply completes the call. If there is no
// result by the deadline, the rule's degraded policy decides. Messages between the members' Nodes use the same links;
// counters that move to a new owner have a connection of their own. PROTOCOL.md specifies the encoding.
package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// Options configure a Peer. Node and Self are required.
type Options struct {
	Node   *owner.Node
	Self   ring.ID
	BootID uint64 // of this boot of Self; every member accepts 0

	// Cluster is the label that all members share. Members with another label are refused.
	Cluster string
	// Algorithms is the bit set (1 << limit.Algorithm) that the rules may use; default: fixed windows only. A member
	// that does not support one of them refuses the stream.
	Algorithms uint64

	// Listen is the host:port for the other members; empty: none.
	Listen string
	// ServerTLS and ClientTLS secure the streams with certificates on both sides; both nil: no TLS.
	ServerTLS, ClientTLS *tls.Config
	// VerifyMember returns an error if a verified certificate does not belong to the given member; default: accept all
	// certificates that TLS has verified.
	VerifyMember func(ring.ID, []*x509.Certificate) error
	// TLSReason returns the reason why a handshake failed, as a label of the metric; default: "tls".
	TLSReason func(error) string
	// OnRefused is called for each connection that is rejected, with the reason.
	OnRefused func(reason string)
	// MaxAge is the age at which the owner closes a stream, so that a member whose certificate is no longer valid does
	// not stay connected. The requester replaces its streams before. Default 1 h.
	MaxAge time.Duration

	// QueueBytes bounds the bytes that wait to be written to one member; default 8 MiB.
	QueueBytes int
	// QueueGroups bounds the groups that wait for a reply from one member; default 65,536.
	QueueGroups int
	// MaxStreams bounds the connections from other members, of which each has one or two; default 2048.
	MaxStreams int

	// Detection is that of Node's Options. It sets the interval of the checks whether other members are alive.
	Detection membership.Detection
	// TickEvery is the time between two ticks of Node; default Detection.Tick.
	TickEvery time.Duration

	// OnProgress is called, never concurrently, when the progress of a ring change has changed.
	OnProgress func(membership.Progress)
	// OnLinksChanged is called, never concurrently, when the result of Links may have changed.
	OnLinksChanged func()

	// OnAudit is called for each event of a key whose rule has audit logs, and OnLostAudits with the number of events
	// that found no room before. They must not block. Default: none.
	OnAudit      func(*owner.Audit)
	OnLostAudits func(n uint64)

	// OnBudgets is called with events of keys with holds. It must not block. Default: none.
	OnBudgets func([]owner.BudgetEvent)

	// OnPoolRequests is called with requests to the coordinators of federations. It must not block. Their replies are passed
	// to StepFederation. Default: none.
	OnPoolRequests func([]owner.CoordinatorRequest)

	// OnPool is called with requests of regions that another member has received, for pools whose counters this member owns,
	// and with the replies to such requests that this member has sent. It must not block. Default: none.
	OnPool func(from ring.ID, m *PoolMessage)

	// HasCaller reports whether this member has a connection of the caller (owner.Who) that was opened longer ago. If so,
	// CallerGone is called when the caller ends that. It must not block. Default: it has none.
	HasCaller func(caller uint64, ago time.Duration) bool

	// OnDecided is called after decisions and messages, which may have left something to write to a journal. It must not
	// block. Default: none.
	OnDecided func()

	Logger     *slog.Logger          // default: discard
	Registerer prometheus.Registerer // default: none

	clocks clockSource // for tests; default: the system's clocks
}

func (o *Options) setDefaults() {
	setDefault(&o.Algorithms, fixedWindows)
	setDefault(&o.QueueBytes, 8<<20)
	setDefault(&o.QueueGroups, 1<<16)
	setDefault(&o.MaxStreams, 2048)
	setDefault(&o.TickEvery, o.Detection.Tick())
	setDefault(&o.MaxAge, time.Hour)
	if o.VerifyMember == nil {
		o.VerifyMember = func(ring.ID, []*x509.Certificate) error { return nil }
	}
	if o.OnAudit == nil {
		o.OnAudit = func(*owner.Audit) {}
	}
	if o.OnBudgets == nil {
		o.OnBudgets = func([]owner.BudgetEvent) {}
	}
	if o.OnPoolRequests == nil {
		o.OnPoolRequests = func([]owner.CoordinatorRequest) {}
	}
	if o.HasCaller == nil {
		o.HasCaller = func(uint64, time.Duration) bool { return false }
	}
	if o.OnPool == nil {
		o.OnPool = func(ring.ID, *PoolMessage) {}
	}
	if o.OnLostAudits == nil {
		o.OnLostAudits = func(uint64) {}
	}
	if o.OnRefused == nil {
		o.OnRefused = func(string) {}
	}
	if o.TLSReason == nil {
		o.TLSReason = func(error) string { return reasonTLS }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (o *Options) validate() error {
	var errs []error
	if o.Node == nil {
		errs = append(errs, errors.New("no node"))
	}
	if o.Self == "" || len(o.Self) > maxID {
		errs = append(errs, fmt.Errorf("member name %q: must have 1 to %d bytes", o.Self, maxID))
	}
	if (o.ServerTLS == nil) != (o.ClientTLS == nil) {
		errs = append(errs, errors.New("tls: need both a server and a client configuration, or neither"))
	}
	return errors.Join(errs...)
}

// Peer drives one owner.Node. It is safe for concurrent use.
//
// Lock order: view, transferring.mu, spawning.
type Peer struct {
	o              Options
	log            *slog.Logger
	m              *metrics
	clock          *clock
	clockCheck     clockCheck
	hello          hello // as sent, without the target
	serverTLS      *tls.Config
	listener       net.Listener // nil: none
	calls          sync.Pool    // of *call
	syncWaiters    sync.Pool    // of syncWaiter
	scratches      sync.Pool    // of *scratch
	deferredGroups sync.Pool    // of *deferredGroup

	ctx      context.Context // of all goroutines
	stop     context.CancelFunc
	wg       sync.WaitGroup // all goroutines
	spawning sync.Mutex     // serializes wg.Go with stop

	links atomic.Pointer[map[ring.ID]*link] // immutable; replaced as a whole
	view  sync.Mutex                        // serializes SetView

	membership *membership.View // guarded by view: the last one of SetView; nil: none yet
	old        []ring.ID        // guarded by view: members without handoff support, as Node has them

	stopCalls    atomic.Int64 // goroutines of all-or-nothing calls
	settles      settles
	callers      callers
	skews        skews
	transferring struct {
		mu     sync.Mutex
		m      map[ring.ID]*transferState // guarded by mu
		active atomic.Int64
	}

	flushNeeded     chan struct{} // has a token when Node needs a flush before flushWait has passed
	progressChanged chan struct{} // has a token when Node's Progress may have changed
	linksChanged    chan struct{} // has a token when Links may have changed
	requestStreams  streamCounts  // streams of requesters
	allStreams      streamCounts  // all inbound streams
	flushWait       atomic.Int64  // how long flushLoop waits, in nanoseconds
	decided         atomic.Bool   // this member has decided something since a transfer last looked
	meter           meter         // of tickLoop's goroutine
	load            atomic.Uint64 // bits of the result of Load

	handshakes  pendingHandshakes
	serving     atomic.Int64
	lastRefusal atomic.Int64 // when a rejected connection was last logged, by the monotonic clock
}

// New listens and starts to drive o.Node. It connects to no member before SetView.
func New(o Options) (*Peer, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	p := &Peer{
		o:           o,
		log:         o.Logger,
		clock:       newClock(time.Now(), o.clocks),
		syncWaiters: sync.Pool{New: newSyncWaiter}, scratches: sync.Pool{New: newScratch},
		flushNeeded: make(chan struct{}, 1), progressChanged: make(chan struct{}, 1), linksChanged: make(chan struct{}, 1),
		hello: hello{
			versions: versions{minVersion, maxVersion}, scheme: KeyScheme, label: labelDigest(o.Cluster),
			algorithms: o.Algorithms, from: o.Self, fromBoot: o.BootID,
		},
	}
	p.callers.patience = memberDead
	p.calls.New, p.deferredGroups.New = p.newCall, p.newDeferredGroup
	p.transferring.m = map[ring.ID]*transferState{}
	p.links.Store(&map[ring.ID]*link{})
	if o.Listen != "" {
		ln, err := net.Listen("tcp", o.Listen)
		if err != nil {
			return nil, fmt.Errorf("peer: %w", err)
		}
		p.listener = ln
	}
	if o.ServerTLS != nil {
		p.serverTLS = serverTLS(o.ServerTLS)
	}
	p.m = newMetrics(o.Registerer)
	p.settles.init(promauto.With(o.Registerer))
	p.skews.gauge, p.skews.m = p.m.skew, map[ring.ID]*skew{}
	p.start()
	return p, nil
}

func (p *Peer) start() {
	p.ctx, p.stop = context.WithCancel(context.Background())
	r := p.clock.read()
	p.clockCheck.bootOffset.Store(r.boot - r.mono)
	p.tick()
	wake(p.progressChanged) // reports the progress at the start
	p.wg.Go(p.tickLoop)
	p.wg.Go(p.flushLoop)
	p.wg.Go(p.progressLoop)
	p.wg.Go(p.linksLoop)
	if p.listener != nil {
		p.wg.Go(func() { p.accept(p.ctx) })
	}
}

// Addr returns the address of the listener, or nil if there is none.
func (p *Peer) Addr() net.Addr {
	if p.listener == nil {
		return nil
	}
	return p.listener.Addr()
}

// spawn runs f on a goroutine that Close waits for. After Close it returns false and does not run f.
func (p *Peer) spawn(f func()) bool {
	p.spawning.Lock()
	defer p.spawning.Unlock()
	if p.ctx.Err() != nil {
		return false
	}
	p.wg.Go(f)
	return true
}

// Close closes all connections and waits for all goroutines, at the longest for the deadline of an all-or-nothing call.
// Decide still works: the degraded policies decide the requests of other owners.
func (p *Peer) Close() error {
	p.spawning.Lock()
	p.stop()
	p.spawning.Unlock()
	var err error
	if p.listener != nil {
		err = p.listener.Close()
	}
	p.wg.Wait()
	p.reportAudits(p.o.Node.TakeAudits(p.clock.now()))
	return err
}

// Now returns the time of this member's clock in Unix nanoseconds.
func (p *Peer) Now() int64 { return p.clock.now() }

// Stats returns a snapshot of Node's counters.
func (p *Peer) Stats() owner.Stats { return p.o.Node.Stats(p.clock.now()) }

// updateLinks makes links to the peers of v that have a peer port, and retires all others. It is called with view held.
func (p *Peer) updateLinks(v *membership.View) {
	old := *p.links.Load()
	links := make(map[ring.ID]*link, len(v.Members))
	for m := range v.Peers() {
		if m.Peer == "" {
			continue
		}
		l := old[m.ID]
		if l != nil && l.address == m.Peer && l.bootID == m.BootID {
			l.redialNow()
		} else {
			l = p.newLink(m)
		}
		if p.ctx.Err() == nil && l != nil {
			links[m.ID] = l
		}
	}
	p.links.Store(&links)
	p.callers.setMembers(links, p.clock.now(), p.clock.mono())
	wake(p.linksChanged)
	p.skews.retain(links)
	p.m.members.Set(float64(len(links)))
	for id, l := range old {
		if links[id] != l {
			l.retire()
		}
	}
}

// newLink returns a running link, or nil after Close.
func (p *Peer) newLink(m *membership.Member) *link {
	ctx, stop := context.WithCancel(p.ctx)
	l := &link{
		to: m.ID, address: m.Peer, bootID: m.BootID, dial: p.dial, clock: p.clock, m: p.m, log: p.log, stop: stop,
		bounds: queueBounds{bytes: p.o.QueueBytes, groups: p.o.QueueGroups}, maxAge: p.o.MaxAge, detection: p.o.Detection,
		redial: make(chan struct{}, 1), wake: make(chan struct{}, 1), changed: p.linksChanged, since: time.Now(),
	}
	if !p.spawn(func() { l.run(ctx) }) {
		stop()
		return nil
	}
	return l
}
