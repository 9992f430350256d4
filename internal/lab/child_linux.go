package lab

import "syscall"

// child returns the attributes of processes: their own group, because a terminal's Ctrl-C must reach only the lab,
// which then stops them in order; and SIGKILL when the thread that starts them ends.
func child() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
