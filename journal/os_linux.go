package journal

import (
	"os"
	"syscall"
)

// preallocate reserves the file's space and sets its length.
func preallocate(f *os.File, size int64) error {
	return control(f, "fallocate", syscall.EINTR, func(fd uintptr) error {
		return syscall.Fallocate(int(fd), 0, 0, size)
	})
}

// datasync makes the file's content and length durable, but not its times.
func datasync(f *os.File) error {
	return control(f, "fdatasync", syscall.EINTR, func(fd uintptr) error { return syscall.Fdatasync(int(fd)) })
}
