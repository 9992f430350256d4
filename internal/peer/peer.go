// Package peer runs an owner.Node: it gives it time and carries its questions and messages to the other members.
//
// A question that another member owns is appended to that member's link, leaves with whatever else gathered while the
// link's last write was under way, is served there on the goroutine that reads the stream, and comes back the same way. No
// goroutine waits for it: the one that reads its answer tells whoever asked.
// Whoever cannot answer before the deadline is answered for by the rule's degraded policy. Messages between the members'
// Nodes go over the same links, and counters that move to a new owner over a connection of their own. PROTOCOL.md holds
// the layout of what travels.
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

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// Options configure a Peer. Node and Self are required.
type Options struct {
	Node   *owner.Node
	Self   ring.ID
	BootID uint64 // this boot of Self; 0 is accepted by everyone

	// Cluster is the label that all members share. A member with another one is refused.
	Cluster string
	// Algorithms is the bit set (1 << limit.Algorithm) that the rules here may use; default: fixed windows only. A
	// member that does not know one of them refuses to be asked.
	Algorithms uint64

	// Listen is the host:port where other members ask; empty: nowhere.
	Listen string
	// ServerTLS and ClientTLS secure the streams, both ways proved; both nil: in the clear.
	ServerTLS, ClientTLS *tls.Config
	// VerifyMember says whether a verified certificate is that of the member that its bearer claims to be; nil for every member whose
	// certificate TLS let pass.
	VerifyMember func(ring.ID, []*x509.Certificate) error
	// TLSReason is why a handshake failed, in a word for the metric; default: tls.
	TLSReason func(error) string
	// OnRefused is told of each connection that was turned away, by reason; default: nobody.
	OnRefused func(reason string)
	// MaxAge is how long a stream lives: its asker replaces it before, its owner cuts it then, so that whoever has lost the
	// right to a certificate does not stay. Default 1 h.
	MaxAge time.Duration

	// QueueBytes bounds what waits to be written to one member; default 8 MiB.
	QueueBytes int
	// QueueGroups bounds the groups without an answer from one member; default 65,536.
	QueueGroups int
	// MaxStreams bounds the connections of other members, of which each has one or two; default 2048.
	MaxStreams int

	// TickEvery is the time between two Ticks of Node; default 100 ms, and it must stay well below owner's T_own.
	TickEvery time.Duration

	// OnProgress is told, one call after the other, when it changes how far a ring change has come; default: nobody.
	OnProgress func(membership.Progress)
	// OnLinksChanged is told, one call after the other, when what Links says of a stream may have changed; default: nobody.
	OnLinksChanged func()

	Logger     *slog.Logger          // default: none
	Registerer prometheus.Registerer // default: none

	clocks clockSource // for tests; default: the system's
}

func (o *Options) setDefaults() {
	setDefault(&o.Algorithms, fixedWindows)
	setDefault(&o.QueueBytes, 8<<20)
	setDefault(&o.QueueGroups, 1<<16)
	setDefault(&o.MaxStreams, 2048)
	setDefault(&o.TickEvery, 100*time.Millisecond)
	setDefault(&o.MaxAge, time.Hour)
	if o.VerifyMember == nil {
		o.VerifyMember = func(ring.ID, []*x509.Certificate) error { return nil }
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
		errs = append(errs, errors.New("tls is for both directions or for none"))
	}
	return errors.Join(errs...)
}

// Addr is where a member is asked.
type Addr struct {
	HostPort string // with an IPv6 host in brackets
	BootID   uint64 // the boot that is meant; 0: whichever answers
}

// Peer drives one owner.Node. It is safe for concurrent use.
type Peer struct {
	o              Options
	log            *slog.Logger
	m              *metrics
	clock          *clock
	clockCheck     clockCheck
	hello          hello // as sent, but for the target
	serverTLS      *tls.Config
	listener       net.Listener // nil: none
	calls          sync.Pool    // of *call
	syncWaiters    sync.Pool    // of sleeper
	scratches      sync.Pool    // of *scratch
	deferredGroups sync.Pool    // of *parked

	ctx  context.Context // of everything that runs in the background
	stop context.CancelFunc
	wg   sync.WaitGroup

	links atomic.Pointer[map[ring.ID]*link] // immutable; replaced whole
	view  sync.Mutex                        // serialises SetView

	ring     *ring.Ring         // guarded by view; nil: none yet
	standing handoff.Membership // guarded by view
	old      []ring.ID          // guarded by view: members that Node takes for old

	waits        waits
	skews        skews
	transferring struct {
		mu     sync.Mutex
		m      map[ring.ID]*transferState // guarded by mu
		closed bool                       // guarded by mu: start none any more
		active atomic.Int64
	}

	flushNeeded     chan struct{} // holds a token when Node is to be flushed
	progressChanged chan struct{} // holds a token when Node's Progress may have changed
	handoffDone     atomic.Bool   // and it had come to its end when last looked at: then a look at every tick is enough
	linksChanged    chan struct{} // holds a token when Links may have changed
	requestStreams  streamCounts  // streams for questions
	allStreams      streamCounts  // all streams
	flushing        atomic.Bool   // Node is being flushed until it is clean
	decided         atomic.Bool   // something was decided
	meter           meter         // of the goroutine that ticks
	load            atomic.Uint64 // bits of what Load says

	handshakes  pendingHandshakes
	serving     atomic.Int64
	lastRefusal atomic.Int64
}

// New listens and starts to drive o.Node. It asks nobody before SetView.
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
			versions: versions{minVersion, maxVersion}, scheme: keyScheme, label: labelDigest(o.Cluster),
			algorithms: o.Algorithms, from: o.Self, fromBoot: o.BootID,
		},
	}
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
	p.skews.gauge, p.skews.m = p.m.skew, map[ring.ID]*skew{}
	p.start()
	return p, nil
}

func (p *Peer) start() {
	p.ctx, p.stop = context.WithCancel(context.Background())
	r := p.clock.read()
	p.clockCheck.bootOffset.Store(r.boot - r.mono)
	p.tick()
	p.wg.Go(p.tickLoop)
	p.wg.Go(p.flushLoop)
	p.wg.Go(p.progressLoop)
	p.wg.Go(p.linksLoop)
	if p.listener != nil {
		p.wg.Go(func() { p.accept(p.ctx) })
	}
}

// Addr is where this member listens; nil if nowhere.
func (p *Peer) Addr() net.Addr {
	if p.listener == nil {
		return nil
	}
	return p.listener.Addr()
}

// Close stops asking and answering. Decide still works: every question of another owner is answered by its rule's
// degraded policy.
func (p *Peer) Close() error {
	p.view.Lock() // SetView starts no link from here on
	p.stop()
	p.view.Unlock()
	p.transferring.mu.Lock()
	p.transferring.closed = true
	p.transferring.mu.Unlock()
	var err error
	if p.listener != nil {
		err = p.listener.Close()
	}
	p.wg.Wait()
	return err
}

// Now is this member's clock, in Unix nanoseconds.
func (p *Peer) Now() int64 { return p.clock.now() }

// Stats is what Node knows of itself.
func (p *Peer) Stats() owner.Stats { return p.o.Node.Stats(p.clock.now()) }

// updateLinks is called with view held.
func (p *Peer) updateLinks(addrs map[ring.ID]Addr) {
	old := *p.links.Load()
	links := make(map[ring.ID]*link, len(addrs))
	for id, a := range addrs {
		l := old[id]
		if id == p.o.Self || p.ctx.Err() != nil {
			continue
		}
		if l == nil || l.addr != a {
			l = p.newLink(id, a)
		} else {
			l.redialNow()
		}
		links[id] = l
	}
	p.links.Store(&links)
	wake(p.linksChanged)
	p.skews.retain(links)
	p.m.members.Set(float64(len(links)))
	for id, l := range old {
		if links[id] != l {
			l.retire()
		}
	}
}

func (p *Peer) newLink(id ring.ID, a Addr) *link {
	l := &link{
		to: id, addr: a, dial: p.dial, clock: p.clock, m: p.m, log: p.log,
		bounds: queueBounds{bytes: p.o.QueueBytes, groups: p.o.QueueGroups}, maxAge: p.o.MaxAge,
		redial: make(chan struct{}, 1),
		wake:   make(chan struct{}, 1), changed: p.linksChanged, since: time.Now(),
	}
	ctx, stop := context.WithCancel(p.ctx)
	l.stop = stop
	p.wg.Go(func() { l.run(ctx) })
	return l
}
