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

// given are the ports that this process has handed out. A member that restarts leaves its own free for a moment, in which another Lab must
// not be given them.
var given = struct {
	mu    sync.Mutex
	ports map[int]bool // guarded by mu
}{ports: map[int]bool{}}

// Ports hands out loopback ports that nothing listens on, each at most once in this process.
type Ports struct{}

// Addr finds a loopback address whose port is free for TCP and UDP.
func (Ports) Addr() (string, error) {
	given.mu.Lock()
	defer given.mu.Unlock()
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
		if given.ports[port] {
			continue
		}
		given.ports[port] = true
		return addr, nil
	}
	return "", fmt.Errorf("find a free port: none in 200 tries")
}

// fill gives every pointed-to string an address.
func (p Ports) fill(addrs ...*string) error {
	for _, a := range addrs {
		addr, err := p.Addr()
		if err != nil {
			return err
		}
		*a = addr
	}
	return nil
}
