package rls

import (
	"crypto/tls"
	"net"
)

// Refunds says through which doors callers may give hits back (is_negative_hits). Whoever may can lift any limit.
type Refunds uint8

// The choices.
const (
	RefundsLocal     Refunds = iota // doors that ask for a client's certificate, unix sockets, and callers on a loopback address
	RefundsCertified                // doors that ask for a client's certificate
	RefundsAny                      // all doors, and /json
)

// allowedOn reports whether all callers of a door may give hits back.
func (r Refunds) allowedOn(d *Listener) bool {
	return r == RefundsAny || d.TLS != nil && d.TLS.ClientAuth == tls.RequireAndVerifyClientCert || r == RefundsLocal && d.Unix
}

// loopback reports whether a caller is on this machine.
func loopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// negativeHits is why a call's refunds are refused, in keyward_refused_total.
const negativeHits = "negative_hits"

// dropRefunds has a request from addr give nothing back, unless its caller may. It is answered all the same: an error would have Envoy let
// its other descriptors through uncounted.
func (o *GRPCOptions) dropRefunds(r *RateLimitRequest, addr net.Addr) {
	if !o.Refunds && !(o.LocalRefunds && loopback(addr)) && r.zeroRefunds() {
		o.Guard.Refuse(negativeHits)
	}
}

// zeroRefunds makes every refund one of no hits, and reports whether there was one.
func (r *RateLimitRequest) zeroRefunds() (any bool) {
	for i := range r.Descriptors {
		if d := &r.Descriptors[i]; d.Refund {
			d.HasAddend, d.Addend, any = true, 0, true
		}
	}
	return any
}
