//go:build !linux

package boot

func releaseProgram() {}
