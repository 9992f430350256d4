package module

import (
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/keyward/keyward/internal/config"
)

// clientView is a module's view of a segment.
type clientView struct {
	memory []byte
	slots  uint32
	k0, k1 uint64
}

// spendResult is the result of a request for tokens.
type spendResult uint8

const (
	spent spendResult = iota
	missing
	empty
	bad
)

func mapSegment(fd int, slots uint32) (*clientView, error) {
	defer func() { _ = unix.Close(fd) }()
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	var st unix.Stat_t
	if got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || got&seals != seals {
		return nil, errors.New("the segment is not sealed")
	}
	if err := unix.Fstat(fd, &st); err != nil || st.Size != int64(segmentSize(slots)) {
		return nil, errors.New("the segment has another size")
	}
	b, err := unix.Mmap(fd, 0, segmentSize(slots), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	if string(b[:8]) != segmentMagic || binary.LittleEndian.Uint32(b[12:]) != slots {
		return nil, errors.New("the segment has another header")
	}
	return &clientView{b, slots, binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])}, nil
}

func (v *clientView) close() { _ = unix.Munmap(v.memory) }

func (v *clientView) at(off int) *uint64 { return (*uint64)(unsafe.Pointer(&v.memory[off])) }

// spend takes n tokens of a lease.
func (v *clientView) spend(f Fingerprint, n uint32) spendResult {
	for i := range uint32(neighbors) {
		off := headerSize + slotSize*int((uint32(f.Lo)+i)&(v.slots-1))
		for range 64 {
			w := atomic.LoadUint64(v.at(off + offWord))
			if atomic.LoadUint64(v.at(off)) != f.Lo || atomic.LoadUint64(v.at(off+8)) != f.Hi {
				break
			}
			left := int64(atomic.LoadUint64(v.at(off+offExpires))) - int64(MonotonicNow())
			switch {
			case left > int64(time.Hour):
				return bad
			case uint32(w) < n, left <= 0:
				return empty
			case atomic.CompareAndSwapUint64(v.at(off+offWord), w, w-uint64(n)):
				return spent
			}
		}
	}
	return missing
}

// dialModule connects as a module does, and maps the segment.
func dialModule(path string) (*net.UnixConn, *clientView, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, nil, err
	}
	v, err := greet(conn)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, v, nil
}

func greet(conn *net.UnixConn) (*clientView, error) {
	if _, err := conn.Write(hello("envoy-1", "v0.2.0")); err != nil {
		return nil, err
	}
	b, oob := make([]byte, 64), make([]byte, 64)
	n, m, _, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	cs, err := unix.ParseSocketControlMessage(oob[:m])
	if err != nil || n != 16 || b[0] != kindSegment || len(cs) != 1 {
		return nil, errors.Join(err, errMalformed)
	}
	fds, err := unix.ParseUnixRights(&cs[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(err, errMalformed)
	}
	return mapSegment(fds[0], binary.LittleEndian.Uint32(b[4:]))
}

func hello(node, abi string) []byte { return appendText(appendText([]byte{kindHello, 1}, node), abi) }

func interest(hits uint32, domain string, entries ...config.Entry) []byte {
	b := binary.LittleEndian.AppendUint16([]byte{kindInterest, 0}, uint16(len(entries)))
	b = appendText(binary.LittleEndian.AppendUint32(b, hits), domain)
	for _, e := range entries {
		b = appendText(appendText(b, e.Key), e.Value)
	}
	return b
}
