package cluster

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// zone is a DNS server on loopback. Its records can change, and it can fail.
type zone struct {
	addr string

	mu   sync.Mutex
	a    map[string][]string // guarded by mu: IPv4 addresses by name
	dead bool                // guarded by mu: answers SERVFAIL
}

func newZone(t *testing.T) *zone {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	z := &zone{addr: conn.LocalAddr().String(), a: map[string][]string{}}
	up := make(chan struct{})
	s := &dns.Server{PacketConn: conn, Handler: z, NotifyStartedFunc: func() { close(up) }}
	done := make(chan error, 1)
	go func() { done <- s.ActivateAndServe() }()
	<-up
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return z
}

// ServeDNS implements dns.Handler.
func (z *zone) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	m := new(dns.Msg)
	m.SetReply(r)
	ips, ok := z.a[strings.TrimSuffix(r.Question[0].Name, ".")]
	switch {
	case z.dead:
		m.Rcode = dns.RcodeServerFailure
	case !ok:
		m.Rcode = dns.RcodeNameError
	case r.Question[0].Qtype == dns.TypeA:
		for _, ip := range ips {
			m.Answer = append(m.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(ip),
			})
		}
	}
	_ = w.WriteMsg(m)
}

func (z *zone) set(name string, ips ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.a[name] = ips
}

func (z *zone) die(dead bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.dead = dead
}

func resolver(t *testing.T, z *zone) *net.Resolver {
	t.Helper()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := net.Dialer{Timeout: time.Second}
		return d.DialContext(ctx, "udp", z.addr)
	}}
}

// loopbacks skips the test if loopback has only one address, because all members of a name share a port.
func loopbacks(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip("no 127.0.0.2")
	}
	_ = l.Close()
}

func TestJoinByName(t *testing.T) {
	loopbacks(t)
	const name = "keyward-gossip.test"
	z := newZone(t)
	first := options("a", "127.0.0.1:1")
	withFastProbes(&first)
	first.Resolver, first.Timing.LostMemory = resolver(t, z), time.Second
	first.Join = []string{"dns+" + name + ":7946"}
	z.set(name, "127.0.0.1")
	// The port must be free on all addresses: the first member selects it.
	probe := up(t, options("probe"))
	_, port, err := net.SplitHostPort(probe.Gossip())
	if err != nil {
		t.Fatal(err)
	}
	probe.Close()
	start := func(node, ip string) *Cluster {
		o := first
		o.Node, o.Bind, o.Join = node, net.JoinHostPort(ip, port), []string{"dns+" + name + ":" + port}
		return up(t, o)
	}
	a := start("a", "127.0.0.1")
	eventually(t, "the first, which finds only itself, starts alone", func() bool { return whole(a) })
	z.set(name, "127.0.0.1", "127.0.0.2", "127.0.0.3")
	b, c := start("b", "127.0.0.2"), start("c", "127.0.0.3")
	eventually(t, "all addresses of the name", func() bool { return whole(a, b, c) })

	z.die(true)
	failures := func() float64 { return testutil.ToFloat64(a.metrics.joinFailures.WithLabelValues(failedLookup)) }
	before := failures()
	throughout(t, "whole without DNS", func() bool { return whole(a, b, c) },
		func() bool { return failures() >= before+3 })

	// A member that restarts while DNS fails is found by its previous address.
	c.Close()
	eventually(t, "one dead and no longer tried", func() bool {
		return whole(a, b) && len(a.joiner.lostAddresses(time.Now())) == 0 &&
			len(b.joiner.lostAddresses(time.Now())) == 0
	})
	d := options("d", "127.0.0.1:1")
	withFastProbes(&d)
	d.Bind, d.Join = net.JoinHostPort("127.0.0.3", port), []string{"127.0.0.250:1"}
	e := up(t, d)
	eventually(t, "found by the address the name had", func() bool { return whole(a, b, e) })
	z.die(false)
	throughout(t, "whole with DNS again", func() bool { return whole(a, b, e) }, rounds(a, 3))
}

func TestFirstOfASetNeedsNames(t *testing.T) {
	t.Parallel()
	z := newZone(t)
	z.die(true)
	o := options("a-0", "dns+keyward-gossip.test:1")
	o.Resolver, o.Expect = resolver(t, z), 3
	c := up(t, o)
	throughout(t, "waiting", func() bool { return !c.View().Joined && c.View().NRef == 3 }, rounds(c, 2))
	z.die(false) // now the name is known not to exist, which may be a mistake
	throughout(t, "still waiting", func() bool { return !c.View().Joined && c.View().NRef == 3 }, rounds(c, 2))
	z.set("keyward-gossip.test", "127.0.0.1")
	eventually(t, "alone", func() bool { return whole(c) })
}
