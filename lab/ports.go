package lab

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The range that ports are taken from: below the one that systems take a client's port from, or a member that restarts
// could find its own taken by whoever made a connection meanwhile.
const lowestPort, highestPort = 10_000, 32_000

// Ports hands out loopback ports that nothing listens on, each at most once. The zero value is ready.
type Ports struct {
	mu    sync.Mutex
	given map[int]bool // guarded by mu
}

// Addr finds a loopback address whose port is free for TCP and UDP.
func (p *Ports) Addr() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 200 {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		u, err := net.ListenPacket("udp", addr)
		l.Close()
		if err != nil {
			continue
		}
		u.Close()
		if p.given[port] {
			continue
		}
		if p.given == nil {
			p.given = map[int]bool{}
		}
		p.given[port] = true
		return addr, nil
	}
	return "", fmt.Errorf("find a free port: none in 200 tries")
}

// fill gives every pointed-to string an address.
func (p *Ports) fill(addrs ...*string) error {
	for _, a := range addrs {
		addr, err := p.Addr()
		if err != nil {
			return err
		}
		*a = addr
	}
	return nil
}
