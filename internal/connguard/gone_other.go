//go:build !linux

package connguard

import "net"

// gone reports whether the client of c has closed its side: nobody can tell here without reading all that it said before.
func gone(net.Conn) bool { return false }
