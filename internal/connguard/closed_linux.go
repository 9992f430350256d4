package connguard

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// ClientClosed reports whether the client of c has closed its side, even if input has not been read yet.
func ClientClosed(c net.Conn) (is bool) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		is = err == nil && n > 0
	})
	return is || err != nil
}
