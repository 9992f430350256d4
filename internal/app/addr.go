package app

import (
	"net"
	"net/netip"
)

// loopback reports whether only this machine can reach the address.
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

// reachable returns the address at which others reach a listening address. It replaces a wildcard host by the
// advertised one; if that is empty, the host remains empty and gossip fills it in.
func reachable(listen, advertise string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return ""
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = advertise
		if h, _, err := net.SplitHostPort(advertise); err == nil {
			host = h // the advertised port is that of gossip
		}
	}
	return net.JoinHostPort(host, port)
}
