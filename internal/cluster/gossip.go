package cluster

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"

	"github.com/keyward/keyward/internal/membership"
)

// gossip is the running memberlist of one boot.
type gossip struct {
	list          *memberlist.Memberlist
	keys          *memberlist.Keyring // nil with Options.Insecure
	addr          netip.AddrPort      // advertised
	selfAddresses map[netip.AddrPort]bool
	port          gossipPort

	refusals refusals

	turn chan struct{} // holds a value while list announces; a mutex would stop the virtual time of tests
	left bool          // guarded by turn
}

// announce spreads the state of this member, and waits for that at most so long. After leave it does nothing: memberlist
// forgets a member that has left, itself included, and UpdateNode would panic.
func (g *gossip) announce(wait time.Duration) {
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	if !g.left {
		_ = g.list.UpdateNode(wait) // it spreads in the background
	}
}

// leave sends memberlist's leave message, and waits for that at most so long.
func (g *gossip) leave(wait time.Duration) error {
	g.turn <- struct{}{}
	g.left = true
	<-g.turn
	return g.list.Leave(wait)
}

// gossipPort is the port that memberlist uses. *transport implements it; tests replace it by a virtual network.
type gossipPort interface {
	memberlist.NodeAwareTransport
	port() int
	answered(addr string, do func()) bool
}

// listen opens the gossip port and starts memberlist on it. When ctx ends, all streams that it has dialed close.
func listen(ctx context.Context, o *Options, t *table, logger *slog.Logger) (*gossip, error) {
	host, port, err := splitAddr(o.Bind, defaultPort)
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	if host, err = bindHost(ctx, o.Resolver, host); err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	ring, err := keyring(o)
	if err != nil {
		return nil, err
	}
	g := &gossip{keys: ring, turn: make(chan struct{}, 1)}
	lines := &logWriter{logger: logger, limit: rate.NewLimiter(5, 20), refused: o.OnRefused, refusals: &g.refusals}
	out := log.New(lines, "", 0)
	config := transportConfig{host: host, port: port, plaintext: ring == nil, refused: o.OnRefused, log: out}
	if g.port, err = o.openPort(ctx, config); err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	if err := g.findAddresses(ctx, o, host, uint16(g.port.port())); err != nil {
		return nil, errors.Join(fmt.Errorf("advertise: %w", err), g.port.Shutdown())
	}
	t.update(func(self *membership.Member) {
		self.Gossip = g.addr.String()
		completeAddresses(self, g.addr.Addr())
		self.Name = string(self.ID) + "/" + fmt.Sprintf("%016x", self.BootID)
	})
	self := t.snapshot().self
	if n := maxEncodedSize(&self); n > maxMeta {
		err := fmt.Errorf("node and addresses are too long to gossip: %d bytes, at most %d", n, maxMeta)
		return nil, errors.Join(err, g.port.Shutdown())
	}
	conf := memberlistConfig(o, t, g)
	conf.Logger, conf.Name = out, self.Name
	conf.BindAddr, conf.BindPort = host, g.port.port()
	conf.Transport = g.port
	if o.wrap != nil {
		conf.Transport = o.wrap(g.port)
	}
	if g.list, err = memberlist.Create(conf); err != nil {
		return nil, errors.Join(fmt.Errorf("gossip: %w", err), g.port.Shutdown())
	}
	return g, nil
}

// memberlistConfig returns memberlist's configuration. By default, it detects a death within about 3 s among
// few members and 10 s among many.
func memberlistConfig(o *Options, t *table, g *gossip) *memberlist.Config {
	conf := memberlist.DefaultLANConfig()
	conf.Label = o.Cluster
	conf.AdvertiseAddr, conf.AdvertisePort = g.addr.Addr().String(), int(g.addr.Port())
	conf.ProbeInterval, conf.ProbeTimeout = o.Timing.Probe, o.Timing.ProbeTimeout
	conf.SuspicionMult, conf.SuspicionMaxTimeoutMult = membership.SuspicionMult, 3
	conf.GossipInterval, conf.GossipNodes = o.Timing.Gossip, 4
	// Memberlist sends an announcement a few times in all, at first to random members. It would include dead members:
	// after a few crashes, all transmissions went to them, and the live members received the announcement only with
	// the next full exchange. A member that is considered dead by mistake learns this from the join loop, which keeps
	// looking for it.
	conf.GossipToTheDeadTime, conf.PushPullInterval = 0, o.Timing.PushPull
	conf.TCPTimeout = o.Timing.Stream
	conf.Keyring = g.keys
	conf.EnableCompression = false // announcements are short, and members without a key reject compressed messages
	conf.Delegate, conf.Events, conf.Alive, conf.Ping = t, t, t, t
	conf.RequireNodeNames = false
	return conf
}

// bindHost returns host as an IP address, or "" for every address.
func bindHost(ctx context.Context, r Resolver, host string) (string, error) {
	if host == "" {
		return "", nil
	}
	ip, err := lookupOne(ctx, r, host)
	if err != nil {
		return "", err
	}
	return ip.String(), nil
}

// lookupOne returns one IP address of host, preferably IPv4.
func lookupOne(ctx context.Context, r Resolver, host string) (netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look up %s: %w", host, err)
	}
	for _, ip := range ips {
		if ip.Unmap().Is4() {
			return ip.Unmap(), nil
		}
	}
	if len(ips) == 0 {
		return netip.Addr{}, fmt.Errorf("look up %s: no address", host)
	}
	return ips[0], nil
}

// findAddresses sets the advertised address, and all addresses that reach this member.
func (g *gossip) findAddresses(ctx context.Context, o *Options, host string, port uint16) error {
	bound, _ := netip.ParseAddr(host) // the zero Addr for every address
	local := localAddrs()
	ip, advertised := bound, port
	switch {
	case o.Advertise != "":
		name, p, err := splitAddr(o.Advertise, port)
		if err != nil {
			return err
		}
		if ip, err = lookupOne(ctx, o.Resolver, name); err != nil {
			return err
		}
		if p != 0 {
			advertised = p
		}
	case !bound.IsValid() || bound.IsUnspecified():
		if ip = bestAddr(local, bound.Is4()); !ip.IsValid() {
			return errors.New("this machine has no address to advertise; set one")
		}
	}
	g.addr = netip.AddrPortFrom(ip, advertised)
	g.selfAddresses = map[netip.AddrPort]bool{g.addr: true}
	if bound.IsValid() && !bound.IsUnspecified() {
		g.selfAddresses[netip.AddrPortFrom(bound, port)] = true
		return nil
	}
	for _, a := range local {
		g.selfAddresses[netip.AddrPortFrom(a, port)] = true
	}
	return nil
}

func localAddrs() []netip.Addr {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().Unmap())
		}
	}
	return out
}

// bestAddr returns the address that other members most likely reach: private before public, IPv4 before IPv6,
// loopback last.
func bestAddr(all []netip.Addr, only4 bool) netip.Addr {
	var best netip.Addr
	bestRank := 0
	for _, a := range all {
		if only4 && !a.Is4() || a.IsLinkLocalUnicast() || a.IsMulticast() {
			continue
		}
		rank := 1
		if !a.IsLoopback() {
			rank += 8
		}
		if a.IsPrivate() {
			rank += 4
		}
		if a.Is4() {
			rank += 2
		}
		if rank > bestRank {
			best, bestRank = a, rank
		}
	}
	return best
}

const (
	dialTimeout   = 2 * time.Second
	lookupTimeout = 3 * time.Second
)

// jittered returns d, changed by up to a fifth, so that members do not act at the same time.
func jittered(d time.Duration) time.Duration {
	return d*4/5 + time.Duration(rand.Int64N(int64(d)*2/5+1))
}

// ping reports whether that boot answers.
func (g *gossip) ping(m *membership.Member) bool {
	at, err := netip.ParseAddrPort(m.Gossip)
	if err != nil {
		return false
	}
	_, err = g.list.Ping(m.Name, net.UDPAddrFromAddrPort(at))
	return err == nil
}

// foreignError is the error of joining an address that answers but is no member of this cluster, or does not accept
// this member.
type foreignError struct {
	what   string // for people
	detail string // memberlist's error
	at     time.Time
}

func (e *foreignError) Error() string { return e.what + ": " + e.detail }

// join exchanges the complete state with the member at addr. The error is a *foreignError if the address has
// answered.
func (g *gossip) join(addr netip.AddrPort) error {
	var err error
	at := net.JoinHostPort(addr.Addr().String(), strconv.Itoa(int(addr.Port())))
	answered := g.port.answered(at, func() { _, err = g.list.Join([]string{at}) })
	if list, ok := err.(interface{ WrappedErrors() []error }); ok && len(list.WrappedErrors()) == 1 {
		err = list.WrappedErrors()[0] // one line instead of a list of one
	}
	// A process that accepts and never answers may hang.
	if err == nil || !answered || strings.Contains(err.Error(), os.ErrDeadlineExceeded.Error()) {
		return err
	}
	e := &foreignError{
		what:   "answers and ends the exchange: another --cluster, another key (--gossip-key-file), or not a member",
		detail: strings.TrimPrefix(err.Error(), "failed to join "+at+": "), at: time.Now(),
	}
	if strings.Contains(e.detail, "decrypt") {
		e.what = "the gossip keys differ (--gossip-key-file)"
	}
	return e
}
