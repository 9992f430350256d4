package peer

import "golang.org/x/sys/unix"

// bootTime is CLOCK_BOOTTIME, which goes on while the machine is suspended. It is a system call, ten times as dear as a
// reading of time.Now, and 0 if the kernel refuses it.
func bootTime() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return t.Nano()
}
