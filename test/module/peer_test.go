package module

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/dchest/siphash"
	"golang.org/x/sys/unix"
)

// peer is the sidecar's end of the module's socket: it does what a test wants, also what a sidecar never does.
type peer struct {
	*testing.T
	path    string
	fd      int
	segment func(*peer) *segment // makes the segment of a connection; nil: the peer stays silent
	mu      sync.Mutex
	changed chan struct{} // guarded by mu; closed at the next change
	conns   []*link       // guarded by mu
}

// link is a connection of the module.
type link struct {
	fd       int
	hello    []byte
	segment  *segment
	interest []interest // guarded by the peer's mu
	closed   bool       // guarded by the peer's mu
}

// interest is a decoded message of the module.
type interest struct {
	hits    uint32
	domain  string
	entries string // key=value, joined by commas
}

// listen starts a peer with segments of n slots.
func listen(t *testing.T, segment func(*peer) *segment) *peer {
	t.Helper()
	p := &peer{T: t, path: filepath.Join(t.TempDir(), "s"), segment: segment, changed: make(chan struct{})}
	p.open()
	t.Cleanup(p.close)
	return p
}

func (p *peer) open() {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: p.path})
	}
	if err == nil {
		err = unix.Listen(fd, 16)
	}
	if err != nil {
		p.Fatal(err)
	}
	p.fd = fd
	go p.accept(fd)
}

func (p *peer) accept(listener int) {
	for {
		fd, _, err := unix.Accept(listener)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		go p.serve(&link{fd: fd})
	}
}

func (p *peer) serve(l *link) {
	b := make([]byte, 32<<10)
	n, err := unix.Read(l.fd, b)
	if err != nil || n == 0 {
		unix.Close(l.fd)
		return
	}
	l.hello = slices.Clone(b[:n])
	if p.segment != nil {
		if l.segment = p.segment(p); l.segment != nil {
			l.segment.announce(l.fd)
		}
	}
	p.change(func() { p.conns = append(p.conns, l) })
	for {
		n, err := unix.Read(l.fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			p.change(func() { l.closed = true })
			unix.Close(l.fd)
			return
		}
		m, err := parseInterest(b[:n])
		if err != nil {
			p.Errorf("message of the module %x: %v", b[:n], err)
			continue
		}
		p.change(func() { l.interest = append(l.interest, m) })
	}
}

func (p *peer) change(f func()) {
	p.mu.Lock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
}

// await waits until cond, which is called with mu held, is true.
func (p *peer) await(what string, cond func() bool) {
	p.Helper()
	timeout := time.After(time.Minute)
	for {
		p.mu.Lock()
		ok, changed := cond(), p.changed
		p.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			p.Fatalf("waited a minute for %s", what)
		}
	}
}

// link waits for the nth connection, until the module takes leases of its segment or has closed it.
func (p *peer) link(n int) (l *link) {
	p.Helper()
	p.await(fmt.Sprintf("connection %d", n), func() bool { return len(p.conns) > n })
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		l = p.conns[n]
		done := l.closed || l.segment == nil || l.used()
		p.mu.Unlock()
		if done {
			return l
		}
		if time.Now().After(end) {
			p.Fatalf("waited a minute for the use of connection %d", n)
		}
	}
}

// used reports whether the module takes leases of the segment: its thread has mapped it, and sleeps again.
func (l *link) used() bool {
	var file unix.Stat_t
	client, err := unix.GetsockoptUcred(l.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || unix.Fstat(l.segment.fd, &file) != nil {
		return false
	}
	process := fmt.Sprintf("/proc/%d", client.Pid)
	maps, _ := os.ReadFile(process + "/maps")
	if !slices.ContainsFunc(strings.Split(string(maps), "\n"), func(line string) bool {
		f := strings.Fields(line)
		return len(f) > 4 && f[4] == strconv.FormatUint(file.Ino, 10)
	}) {
		return false
	}
	threads, _ := filepath.Glob(process + "/task/*/stat")
	for _, path := range threads {
		stat, _ := os.ReadFile(path)
		if strings.Contains(string(stat), "(keyward) ") && !strings.Contains(string(stat), "(keyward) S") {
			return false
		}
	}
	return true
}

// asked waits until the module has asked for a lease of a descriptor.
func (p *peer) asked(l *link, entries string) (m interest) {
	p.Helper()
	p.await("interest in "+entries, func() bool {
		i := slices.IndexFunc(l.interest, func(m interest) bool { return m.entries == entries })
		if i >= 0 {
			m = l.interest[i]
		}
		return i >= 0
	})
	return m
}

func (p *peer) close() {
	unix.Shutdown(p.fd, unix.SHUT_RDWR)
	unix.Close(p.fd)
	unix.Unlink(p.path)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.conns {
		if !l.closed {
			unix.Shutdown(l.fd, unix.SHUT_RDWR)
		}
	}
}

func parseInterest(b []byte) (m interest, err error) {
	if len(b) < 8 || b[0] != 3 || b[1] != 0 {
		return m, errors.New("not an INTEREST")
	}
	n := binary.LittleEndian.Uint16(b[2:])
	m.hits = binary.LittleEndian.Uint32(b[4:])
	b = b[8:]
	text := func() (s string) {
		if len(b) >= 2 && len(b) >= 2+int(binary.LittleEndian.Uint16(b)) {
			s, b = string(b[2:2+binary.LittleEndian.Uint16(b)]), b[2+binary.LittleEndian.Uint16(b):]
			return s
		}
		err = errors.New("cut")
		return ""
	}
	m.domain = text()
	var all []string
	for range n {
		key := text()
		all = append(all, key+"="+text())
	}
	if len(b) > 0 {
		err = errors.Join(err, errors.New("bytes after the end"))
	}
	m.entries = strings.Join(all, ",")
	return m, err
}

// segment is shared memory with leases.
type segment struct {
	fd     int
	slots  uint32
	size   uint64
	k0, k1 uint64
	bytes  []byte
}

// newSegment makes a segment. change, if not nil, breaks it before it is sealed.
func newSegment(slots uint32, seals int, change func(*segment)) *segment {
	s := &segment{slots: slots, size: 4096 + 32*uint64(slots), k0: 0x0706050403020100, k1: 0x0f0e0d0c0b0a0908}
	var err error
	if s.fd, err = unix.MemfdCreate("leases", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		panic(err)
	}
	if err := unix.Ftruncate(s.fd, int64(s.size)); err != nil {
		panic(err)
	}
	if s.bytes, err = unix.Mmap(s.fd, 0, int(s.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		panic(err)
	}
	copy(s.bytes, "KWLEASE1")
	binary.LittleEndian.PutUint32(s.bytes[8:], 1)
	binary.LittleEndian.PutUint32(s.bytes[12:], slots)
	binary.LittleEndian.PutUint64(s.bytes[16:], s.k0)
	binary.LittleEndian.PutUint64(s.bytes[24:], s.k1)
	if change != nil {
		change(s)
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(s.fd), unix.F_ADD_SEALS, seals); err != nil {
			panic(err)
		}
	}
	return s
}

// sealed are the seals that the module requires.
const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func ordinary(slots uint32) func(*peer) *segment {
	return func(*peer) *segment { return newSegment(slots, sealed, nil) }
}

// announce sends the segment to the module.
func (s *segment) announce(fd int) {
	m := make([]byte, 16)
	m[0], m[1] = 2, 1
	binary.LittleEndian.PutUint32(m[4:], s.slots)
	binary.LittleEndian.PutUint64(m[8:], s.size)
	var rights []byte
	if s.fd >= 0 {
		rights = unix.UnixRights(s.fd)
	}
	_ = unix.Sendmsg(fd, m, rights, nil, 0)
}

func (s *segment) word(at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&s.bytes[at]))
}

// fingerprint returns the two halves for a descriptor.
func (s *segment) fingerprint(domain string, entries ...string) (lo, hi uint64) {
	var b []byte
	text := func(t string) {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(t)))
		b = append(b, t...)
	}
	text(domain)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(entries)))
	for _, e := range entries {
		key, value, _ := strings.Cut(e, "=")
		text(key)
		text(value)
	}
	return siphash.Hash128(s.k0, s.k1, b)
}

// slot is a lease's place.
type slot struct {
	*segment
	at int
}

func (s *segment) slot(i int) slot { return slot{s, 4096 + 32*(i%int(s.slots))} }

// lend writes a lease into the nth of the slots that a descriptor may have.
func (s *segment) lend(n int, tokens uint32, ends time.Duration, domain string, entries ...string) slot {
	lo, hi := s.fingerprint(domain, entries...)
	at := s.slot(int(lo&uint64(s.slots-1)) + n)
	at.set(lo, hi, uint64(7)<<32|uint64(tokens), uint64(monotonic()+ends))
	return at
}

func (s slot) set(lo, hi, word, expires uint64) {
	s.word(s.at + 16).Store(0)
	s.word(s.at).Store(lo)
	s.word(s.at + 8).Store(hi)
	s.word(s.at + 24).Store(expires)
	s.word(s.at + 16).Store(word)
}

// left returns the tokens that remain.
func (s slot) left() uint32 { return uint32(s.word(s.at + 16).Load()) }

// counters returns the module's counters: misses, empty, corrupt and taken.
func (s *segment) counters() (c [4]uint64) {
	for i := range c {
		c[i] = s.word(64 + 8*i).Load()
	}
	return c
}

func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}
