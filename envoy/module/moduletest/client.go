//go:build linux

// Package moduletest is a client of the protocol of modules, for tests. It spends leases as the dynamic module in an Envoy
// does, and is written by PROTOCOL.md alone.
package moduletest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/dchest/siphash"
	"golang.org/x/sys/unix"
)

// ModuleClient is one connection. Its methods are safe for concurrent use.
type ModuleClient struct {
	conn   *net.UnixConn
	memory []byte
	slots  uint32
	k0, k1 uint64
	done   chan struct{}

	mu   sync.RWMutex
	over bool // guarded by mu: the memory is unmapped
}

// SpendOutcome is the result of Spend.
type SpendOutcome uint8

// The outcomes.
const (
	Taken   SpendOutcome = iota
	NoLease              // or the connection has ended
	Empty                // too few tokens, or the lease has expired
	Corrupt
)

// Dial connects, and maps the segment.
func Dial(path string) (*ModuleClient, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	c := &ModuleClient{conn: conn, done: make(chan struct{})}
	if err := c.greet(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // the sidecar sends nothing more
		close(c.done)
	}()
	return c, nil
}

func (c *ModuleClient) greet() error {
	_ = c.conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.conn.Write(Hello("envoy", "v0.2.0")); err != nil {
		return err
	}
	b, oob := make([]byte, 64), make([]byte, 64)
	n, k, _, _, err := c.conn.ReadMsgUnix(b, oob)
	_ = c.conn.SetDeadline(time.Time{})
	if err != nil {
		return err
	}
	if n != 16 || b[0] != 2 || b[1] != 1 {
		return fmt.Errorf("SEGMENT: %x", b[:n])
	}
	cs, err := unix.ParseSocketControlMessage(oob[:k])
	if err != nil || len(cs) != 1 {
		return fmt.Errorf("SEGMENT with %d control messages: %w", len(cs), err)
	}
	fds, err := unix.ParseUnixRights(&cs[0])
	if err != nil || len(fds) != 1 {
		return fmt.Errorf("SEGMENT with %d files: %w", len(fds), err)
	}
	defer func() { _ = unix.Close(fds[0]) }()
	return c.mapSegment(fds[0], binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:]))
}

func (c *ModuleClient) mapSegment(fd int, slots uint32, size uint64) (err error) {
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	var st unix.Stat_t
	if got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || got&seals != seals {
		return fmt.Errorf("the segment has the seals %x: %w", got, err)
	}
	if err := unix.Fstat(fd, &st); err != nil || uint64(st.Size) != size || size != 4096+32*uint64(slots) {
		return fmt.Errorf("the segment has %d bytes for %d slots: %w", st.Size, slots, err)
	}
	if c.memory, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	if string(c.memory[:8]) != "KWLEASE1" || binary.LittleEndian.Uint32(c.memory[8:]) != 1 || binary.LittleEndian.Uint32(c.memory[12:]) != slots {
		return fmt.Errorf("the segment begins with %x", c.memory[:16])
	}
	c.slots = slots
	c.k0, c.k1 = binary.LittleEndian.Uint64(c.memory[16:]), binary.LittleEndian.Uint64(c.memory[24:])
	return nil
}

// Close ends the connection, as the end of the process would.
func (c *ModuleClient) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.over = true
		_ = unix.Munmap(c.memory)
		_ = c.conn.Close()
	}
}

// Done is closed when the connection has ended.
func (c *ModuleClient) Done() <-chan struct{} { return c.done }

// ended reports whether the leases have ended. c.mu is locked.
func (c *ModuleClient) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return c.over
	}
}

func (c *ModuleClient) at(off uint32) *uint64 { return (*uint64)(unsafe.Pointer(&c.memory[off])) }

// Spend takes n tokens of a descriptor, whose entries are kv. It returns when the lease expires, in nanoseconds of the Unix
// epoch.
func (c *ModuleClient) Spend(n uint32, domain string, kv ...string) (SpendOutcome, int64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.ended() {
		return NoLease, 0
	}
	lo, hi := siphash.Hash128(c.k0, c.k1, descriptor(nil, domain, kv))
	for i := range uint32(8) {
		slot := 4096 + 32*((uint32(lo)+i)&(c.slots-1))
		for range 64 {
			w := atomic.LoadUint64(c.at(slot + 16))
			if atomic.LoadUint64(c.at(slot)) != lo || atomic.LoadUint64(c.at(slot+8)) != hi {
				break
			}
			expires := int64(atomic.LoadUint64(c.at(slot + 24)))
			left := expires - monotonic()
			switch {
			case left > int64(time.Hour):
				return Corrupt, 0
			case uint32(w) < n, left <= 0:
				return Empty, 0
			case atomic.CompareAndSwapUint64(c.at(slot+16), w, w-uint64(n)):
				return Taken, time.Now().UnixNano() + left
			}
		}
	}
	return NoLease, 0
}

// Interest sends INTEREST. It does not wait.
func (c *ModuleClient) Interest(hits uint32, domain string, kv ...string) error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(time.Millisecond))
	_, err := c.conn.Write(Interest(hits, domain, kv...))
	return err
}

// Send sends any message.
func (c *ModuleClient) Send(message []byte) error {
	_, err := c.conn.Write(message)
	return err
}

// Write replaces bytes of the memory.
func (c *ModuleClient) Write(at int, b []byte) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	copy(c.memory[at:], b)
}

// Hello returns a HELLO message.
func Hello(node, abi string) []byte { return text(text([]byte{1, 1}, node), abi) }

// Interest returns an INTEREST message.
func Interest(hits uint32, domain string, kv ...string) []byte {
	b := binary.LittleEndian.AppendUint16([]byte{3, 0}, uint16(len(kv)/2))
	b = text(binary.LittleEndian.AppendUint32(b, hits), domain)
	for _, s := range kv {
		b = text(b, s)
	}
	return b
}

// descriptor appends the bytes of a fingerprint.
func descriptor(b []byte, domain string, kv []string) []byte {
	b = binary.LittleEndian.AppendUint16(text(b, domain), uint16(len(kv)/2))
	for _, s := range kv {
		b = text(b, s)
	}
	return b
}

func text(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(s))), s...)
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // never fails
	return t.Nano()
}
