package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/dchest/siphash"
	"golang.org/x/sys/unix"
)

// podEnvoy spends leases as the dynamic module in an Envoy does, by envoy/module/PROTOCOL.md, and calls the rate limit service
// when there is none.
type podEnvoy struct {
	socket  string
	rls     rlsv3.RateLimitServiceClient
	segment atomic.Pointer[leaseMemory]
	running sync.WaitGroup

	mu       sync.Mutex
	conn     *net.UnixConn // guarded by mu
	interest uint32        // guarded by mu: hits
	sentAt   time.Time     // guarded by mu
	stopped  bool          // guarded by mu
}

// leaseMemory is a mapped segment.
type leaseMemory struct {
	b      []byte
	slots  uint32
	lo, hi uint64 // fingerprint of the only descriptor
}

const (
	moduleDomain = "app"
	moduleKey    = "api_key"
	moduleValue  = "hot"
)

func text(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(s))), s...)
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

func startPodEnvoy(t *testing.T, socket, rls string) *podEnvoy {
	e := &podEnvoy{socket: socket, rls: dial(t, rls, nil)}
	e.running.Go(e.connect)
	t.Cleanup(e.stop)
	return e
}

// stop ends the process, as far as its sidecar can see.
func (e *podEnvoy) stop() {
	e.mu.Lock()
	e.stopped = true
	e.segment.Store(nil)
	if e.conn != nil {
		_ = e.conn.Close()
	}
	e.mu.Unlock()
	e.running.Wait()
}

// connect keeps a connection.
func (e *podEnvoy) connect() {
	for {
		conn, m, err := e.open()
		e.mu.Lock()
		if e.stopped {
			e.mu.Unlock()
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		e.conn = conn
		e.mu.Unlock()
		if err == nil {
			e.segment.Store(m)
			_, _ = conn.Read(make([]byte, 1)) // until the sidecar has ended
			e.segment.Store(nil)
			_ = conn.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// open connects and maps the segment.
func (e *podEnvoy) open() (*net.UnixConn, *leaseMemory, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: e.socket, Net: "unixpacket"})
	if err != nil {
		return nil, nil, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, _ = conn.Write(text(text([]byte{1, 1}, "envoy"), "v0.2.0"))
	b, oob := make([]byte, 64), make([]byte, 64)
	n, k, _, _, err := conn.ReadMsgUnix(b, oob)
	_ = conn.SetReadDeadline(time.Time{})
	if err != nil || n != 16 || b[0] != 2 || b[1] != 1 {
		return nil, nil, errors.Join(err, fmt.Errorf("SEGMENT: %x", b[:n]), conn.Close())
	}
	cs, _ := unix.ParseSocketControlMessage(oob[:k])
	fds, err := unix.ParseUnixRights(&cs[0])
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	defer func() { _ = unix.Close(fds[0]) }()
	slots := binary.LittleEndian.Uint32(b[4:])
	memory, err := unix.Mmap(fds[0], 0, int(4096+32*slots), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED) // for the life of the test
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	m := &leaseMemory{b: memory, slots: slots}
	key := binary.LittleEndian.AppendUint16(text(nil, moduleDomain), 1)
	key = text(text(key, moduleKey), moduleValue)
	m.lo, m.hi = siphash.Hash128(binary.LittleEndian.Uint64(memory[16:]), binary.LittleEndian.Uint64(memory[24:]), key)
	return conn, m, nil
}

func (m *leaseMemory) at(off uint32) *uint64 { return (*uint64)(unsafe.Pointer(&m.b[off])) }

// spend takes a token. It returns when the lease ends.
func (m *leaseMemory) spend() (expires int64, ok bool) {
	for i := range uint32(8) {
		slot := 4096 + 32*((uint32(m.lo)+i)&(m.slots-1))
		for range 64 {
			w := atomic.LoadUint64(m.at(slot + 16))
			if atomic.LoadUint64(m.at(slot)) != m.lo || atomic.LoadUint64(m.at(slot+8)) != m.hi {
				break
			}
			expires = int64(atomic.LoadUint64(m.at(slot + 24)))
			if uint32(w) == 0 || monotonic() >= expires {
				return 0, false
			}
			if atomic.CompareAndSwapUint64(m.at(slot+16), w, w-1) {
				return expires, true
			}
		}
	}
	return 0, false
}

// ask makes a request. It returns whether it was admitted, from a lease or by a call, and the window in which it counts.
func (e *podEnvoy) ask(ctx context.Context, window time.Duration) (admitted, leased bool, at int64) {
	at = time.Now().UnixNano() / int64(window)
	if m := e.segment.Load(); m != nil {
		if expires, ok := m.spend(); ok {
			return true, true, (time.Now().UnixNano() + expires - monotonic()) / int64(window)
		}
		e.interested()
	}
	r, err := e.rls.ShouldRateLimit(ctx, request(moduleDomain, 1, moduleKey, moduleValue))
	return err == nil && r.OverallCode == rlsv3.RateLimitResponse_OK, false, at
}

// interested sends INTEREST at most once in 100 ms.
func (e *podEnvoy) interested() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.interest++
	if now := time.Now(); e.conn != nil && now.Sub(e.sentAt) >= 100*time.Millisecond {
		b := binary.LittleEndian.AppendUint32([]byte{3, 0, 1, 0}, e.interest)
		_, _ = e.conn.Write(text(text(text(b, moduleDomain), moduleKey), moduleValue))
		e.sentAt, e.interest = now, 0
	}
}
