//go:build !linux

package lab

import "syscall"

// child is how processes are started: in a group of their own, since a terminal's Ctrl-C must reach only the lab, which then stops
// everything in order.
func child() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
