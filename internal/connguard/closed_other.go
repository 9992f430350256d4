//go:build !linux

package connguard

import "net"

// ClientClosed always returns false: this system cannot tell without reading all input.
func ClientClosed(net.Conn) bool { return false }
