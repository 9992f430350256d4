package cluster

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
)

// virtual runs a test in virtual time. The members that it starts with up use a virtual network.
func virtual(t *testing.T, test func(*testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		virtualNetworks.Store(t, &virtualNetwork{ports: map[string]*virtualPort{}})
		t.Cleanup(func() {
			virtualNetworks.Delete(t)
			time.Sleep(time.Minute) // probes end by themselves
		})
		test(t)
	})
}

// virtualNetworks has the *virtualNetwork of each running test of virtual, by its *testing.T.
var virtualNetworks sync.Map

// virtualNetwork connects the members of one test. Packets and streams are delivered at once.
type virtualNetwork struct {
	mu    sync.Mutex
	ports map[string]*virtualPort // guarded by mu: open ports, by address
	last  int                     // guarded by mu: port number
}

func (n *virtualNetwork) find(addr string) *virtualPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ports[addr]
}

// open implements Options.openPort.
func (n *virtualNetwork) open(ctx context.Context, c transportConfig) (gossipPort, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	number := int(c.port)
	if number == 0 {
		n.last++
		number = 20_000 + n.last
	}
	addr := net.JoinHostPort(c.host, strconv.Itoa(number))
	if n.ports[addr] != nil {
		return nil, errors.New("address in use")
	}
	p := &virtualPort{
		network: n, host: c.host, number: number, addr: addr, accepted: map[string]bool{},
		packets: make(chan *memberlist.Packet, 1<<12), streams: make(chan net.Conn),
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	n.ports[addr] = p
	return p, nil
}

// virtualPort is the port of one member.
type virtualPort struct {
	network    *virtualNetwork
	host, addr string
	number     int
	ctx        context.Context
	cancel     context.CancelFunc
	done       sync.WaitGroup
	packets    chan *memberlist.Packet
	streams    chan net.Conn

	mu       sync.Mutex
	accepted map[string]bool // guarded by mu: addresses that are being joined, and whether they have accepted a stream
}

var _ gossipPort = (*virtualPort)(nil)

func (p *virtualPort) port() int { return p.number }

func (p *virtualPort) answered(addr string, do func()) bool {
	p.mu.Lock()
	p.accepted[addr] = false
	p.mu.Unlock()
	do()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted[addr]
}

func (p *virtualPort) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	return net.ParseIP(ip).To4(), port, nil
}

func (p *virtualPort) PacketCh() <-chan *memberlist.Packet { return p.packets }

func (p *virtualPort) StreamCh() <-chan net.Conn { return p.streams }

func (p *virtualPort) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	if to := p.network.find(addr); to != nil {
		from := &net.UDPAddr{IP: net.ParseIP(p.host), Port: p.number}
		select {
		case to.packets <- &memberlist.Packet{Buf: append([]byte(nil), b...), From: from, Timestamp: now}:
		default: // the receiver's buffer is full
		}
	}
	return now, nil
}

func (p *virtualPort) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return p.WriteTo(b, a.Addr)
}

func (p *virtualPort) DialTimeout(addr string, _ time.Duration) (net.Conn, error) {
	to := p.network.find(addr)
	if to == nil || p.ctx.Err() != nil {
		return nil, errors.New("connection refused")
	}
	p.mu.Lock()
	if _, joining := p.accepted[addr]; joining {
		p.accepted[addr] = true
	}
	p.mu.Unlock()
	client, server := net.Pipe()
	to.done.Go(func() {
		select {
		case to.streams <- server:
		case <-to.ctx.Done():
			_ = server.Close()
		}
	})
	stop := context.AfterFunc(p.ctx, func() { _ = client.Close() })
	return &dialed{Conn: client, stop: stop}, nil
}

func (p *virtualPort) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return p.DialTimeout(a.Addr, timeout)
}

func (p *virtualPort) Shutdown() error {
	p.network.mu.Lock()
	if p.network.ports[p.addr] == p {
		delete(p.network.ports, p.addr)
	}
	p.network.mu.Unlock()
	p.cancel()
	p.done.Wait()
	return nil
}
