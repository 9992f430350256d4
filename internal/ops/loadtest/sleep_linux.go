package loadtest

import (
	"syscall"
	"time"
)

// exactTimers makes the kernel wake this thread when it is to be woken, not up to 50 us later (prctl(2), PR_SET_TIMERSLACK).
func exactTimers() {
	const setTimerSlack = 29
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setTimerSlack, 1, 0)
}

// sleep blocks the thread: the runtime's own timers are a millisecond late when nothing else goes on.
func sleep(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil) // woken early by a signal: the next call is sent a little early
}
