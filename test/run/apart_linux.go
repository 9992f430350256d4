package main

import "syscall"

// setApart gives a program a network namespace of its own.
func setApart(attr *syscall.SysProcAttr) { attr.Cloneflags |= syscall.CLONE_NEWNET }
