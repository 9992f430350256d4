package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxStreamBytes is how many bytes of one stream are read: twice the announcements of 8192 members.
	maxStreamBytes = 8 << 20

	maxPacket     = 64 << 10               // of UDP
	receiveBuffer = 2 << 20                // requested from the kernel for unread packets; it may grant less
	errorPause    = 100 * time.Millisecond // after a failed read or accept
)

var errTooMuch = errors.New("stream too long")

// transport is the gossip port: UDP and TCP at one address. It replaces memberlist's NetTransport, and additionally
//   - allocates only the size of a packet, where NetTransport allocates 64 KiB for each, most of what an idle
//     member allocates;
//   - closes the streams that it has dialed when its context ends, so that a stop does not wait for a silent peer;
//   - limits inbound streams in number, size and idle time (see streamQueue): without a key, any host may open one,
//     and memberlist stores what it reads;
//   - without encryption, rejects compressed messages unread: any host could send them, and memberlist decompresses
//     up to 40 MiB of each packet before it reads the next one.
type transport struct {
	ctx       context.Context
	cancel    context.CancelFunc
	tcp       *net.TCPListener
	udp       *net.UDPConn
	log       *log.Logger
	plaintext bool // gossip is not encrypted
	refused   func(reason string)
	packets   chan *memberlist.Packet
	streams   chan net.Conn
	done      sync.WaitGroup

	queue streamQueue

	mu      sync.Mutex
	answers map[string]bool // guarded by mu: addresses that are being joined, and whether they have accepted a stream
}

// transportConfig configures a transport.
type transportConfig struct {
	host      string // IP address, or "" for every address
	port      uint16 // 0 selects a free one
	plaintext bool   // gossip is not encrypted
	refused   func(reason string)
	log       *log.Logger
}

// openPort is the default of Options.openPort.
func openPort(ctx context.Context, c transportConfig) (gossipPort, error) {
	t, err := openTransport(ctx, c)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// openTransport binds UDP and TCP to one port. A free TCP port may be in use for UDP, so port 0 is tried several times.
func openTransport(ctx context.Context, c transportConfig) (*transport, error) {
	t := &transport{
		log: c.log, plaintext: c.plaintext, refused: c.refused, queue: streamQueue{refused: c.refused},
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), answers: make(map[string]bool),
	}
	t.ctx, t.cancel = context.WithCancel(ctx)
	for try := 0; ; try++ {
		err := t.listen(net.ParseIP(c.host), int(c.port))
		if err == nil {
			break
		}
		if c.port != 0 || try == 9 {
			t.cancel()
			return nil, err
		}
	}
	for size := receiveBuffer; size > 0 && t.udp.SetReadBuffer(size) != nil; {
		size /= 2
	}
	t.done.Go(t.receive)
	t.done.Go(t.accept)
	return t, nil
}

func (t *transport) listen(ip net.IP, port int) (err error) {
	if t.tcp, err = net.ListenTCP("tcp", &net.TCPAddr{IP: ip, Port: port}); err != nil {
		return err
	}
	if t.udp, err = net.ListenUDP("udp", &net.UDPAddr{IP: ip, Port: t.port()}); err != nil {
		_ = t.tcp.Close()
	}
	return err
}

// port returns the bound port.
func (t *transport) port() int { return t.tcp.Addr().(*net.TCPAddr).Port }

// receive reads packets until the transport shuts down.
func (t *transport) receive() {
	buf := make([]byte, maxPacket)
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(buf)
		at := time.Now()
		switch {
		case t.ctx.Err() != nil:
			return
		case err != nil:
			t.log.Printf("[ERR] memberlist: Error reading UDP packet: %v", err)
			t.pause()
			continue
		case n == 0:
			continue
		case t.plaintext && isCompressed(buf[:n], 4):
			t.refused(refusedCompressed)
			continue
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: bytes.Clone(buf[:n]), From: net.UDPAddrFromAddrPort(from), Timestamp: at}:
		case <-t.ctx.Done():
			return
		}
	}
}

// accept accepts streams until the transport shuts down.
func (t *transport) accept() {
	for {
		conn, err := t.tcp.AcceptTCP()
		if err != nil {
			if t.ctx.Err() != nil {
				return
			}
			t.log.Printf("[ERR] memberlist: Error accepting TCP connection: %v", err)
			t.pause()
			continue
		}
		b := &inboundStream{Conn: conn, left: maxStreamBytes, queue: &t.queue}
		if t.plaintext {
			b.compression = &streamPrefix{refused: t.refused}
		}
		t.done.Go(func() { t.deliver(b) })
	}
}

// deliver passes a stream to memberlist as soon as it is admitted.
func (t *transport) deliver(b *inboundStream) {
	if !t.queue.admit(b, t.ctx.Done()) {
		return
	}
	select {
	case t.streams <- b:
	case <-t.ctx.Done():
		_ = b.Close()
	}
}

// pause waits after an error that may occur again at once, such as too many open files.
func (t *transport) pause() {
	select {
	case <-time.After(errorPause):
	case <-t.ctx.Done():
	}
}

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	t.cancel()
	err := errors.Join(t.tcp.Close(), t.udp.Close())
	t.queue.close()
	t.done.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil // it was shut down before
	}
	return err
}

// FinalAdvertiseAddr implements memberlist.Transport. The advertised address is known before memberlist starts.
func (t *transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	a := net.ParseIP(ip)
	if a == nil {
		return nil, 0, fmt.Errorf("advertise address %q is no IP address", ip)
	}
	if four := a.To4(); four != nil {
		a = four
	}
	return a, port, nil
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr) // members announce IP addresses
	if err != nil {
		return time.Time{}, err
	}
	_, err = t.udp.WriteToUDPAddrPort(b, netip.AddrPortFrom(to.Addr().Unmap(), to.Port()))
	return time.Now(), err
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: min(timeout, dialTimeout)}
	conn, err := d.DialContext(t.ctx, "tcp", a.Addr)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	if _, asked := t.answers[a.Addr]; asked {
		t.answers[a.Addr] = true
	}
	t.mu.Unlock()
	return &dialed{Conn: conn, stop: context.AfterFunc(t.ctx, func() { _ = conn.Close() })}, nil
}

// answered reports whether addr accepted a stream while do was running. Concurrent calls must have different
// addresses.
func (t *transport) answered(addr string, do func()) bool {
	t.mu.Lock()
	t.answers[addr] = false
	t.mu.Unlock()
	do()
	t.mu.Lock()
	defer t.mu.Unlock()
	yes := t.answers[addr]
	delete(t.answers, addr)
	return yes
}

type dialed struct {
	net.Conn
	stop func() bool
}

// Close closes the stream.
func (c *dialed) Close() error {
	c.stop()
	return c.Conn.Close()
}

// CloseWrite closes the writing side.
func (c *dialed) CloseWrite() error {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.CloseWrite()
	}
	return nil
}
