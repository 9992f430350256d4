package lab

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The range of ports: below the range of ephemeral ports, or a connection could use the port of a member while it
// restarts.
const lowestPort, highestPort = 10_000, 32_000

// given holds the ports that this process has allocated. The ports of a member are free while it restarts; no other
// Lab may get them.
var given = struct {
	mu    sync.Mutex
	ports map[int]bool // guarded by mu
}{ports: map[int]bool{}}

// ReservePorts reserves allocated ports across processes, in files of the directory for temporary files. Tests that run
// side by side set it before they allocate ports. The demo, which leaves no files, does not.
var ReservePorts bool

// Ports allocates free loopback ports, each at most once in this process, and with ReservePorts in all others that run.
type Ports struct{}

// Addr returns a loopback address whose port is free for TCP and UDP.
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
		if ReservePorts && !reservePort(port) {
			continue
		}
		given.ports[port] = true
		return addr, nil
	}
	return "", fmt.Errorf("find a free port: none in 200 tries")
}

// fill sets every string to a new address.
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
