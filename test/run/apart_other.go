//go:build !linux

package main

import "syscall"

// setApart does nothing: only Linux has network namespaces.
func setApart(*syscall.SysProcAttr) {}
