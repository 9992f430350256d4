package app

import (
	"net"
	"net/netip"
)

// loopback says whether only this machine can reach the address.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// reachable is the address that others use for a listening one: a wildcard host is replaced by the advertised one, and
// left open where none is given, for gossip to fill in.
func reachable(listen, advertise string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return ""
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = advertise
		if h, _, err := net.SplitHostPort(advertise); err == nil {
			host = h // the port is that of gossip
		}
	}
	return net.JoinHostPort(host, port)
}
