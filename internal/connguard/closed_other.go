//go:build !linux

package connguard

import "net"

// clientClosed always returns false: this system cannot tell without reading all input.
func clientClosed(net.Conn) bool { return false }
