package module

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// sharedMemory returns memory of which file is the description, for another process. Its size is sealed, so no process can
// cause another one's access to fail.
func sharedMemory(size int) (memory []byte, file *os.File, err error) {
	fd, err := unix.MemfdCreate("keyward-leases", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, os.NewSyscallError("memfd_create", err)
	}
	file = os.NewFile(uintptr(fd), "keyward-leases")
	if err = file.Truncate(int64(size)); err == nil {
		memory, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, nil, errors.Join(err, unmap(memory), file.Close())
	}
	return memory, file, nil
}

func unmap(memory []byte) error {
	if memory == nil {
		return nil
	}
	return os.NewSyscallError("munmap", unix.Munmap(memory))
}

// rights returns the control message that passes a file.
func rights(f *os.File) []byte { return unix.UnixRights(int(f.Fd())) }

// MonotonicNow returns the time of CLOCK_MONOTONIC, in which leases expire.
func MonotonicNow() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // never fails
	return time.Duration(t.Nano())
}
