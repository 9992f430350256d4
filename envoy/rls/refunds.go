package rls

import (
	"crypto/tls"
	"net"
)

// Refunds says through which doors callers may give hits back (is_negative_hits). Whoever may can lift any limit.
type Refunds uint8

// The choices.
const (
	RefundsLocal     Refunds = iota // doors that ask for a client's certificate, unix sockets and loopback addresses
	RefundsCertified                // doors that ask for a client's certificate
	RefundsAny                      // all doors, and /json
)

// through reports whether hits may be given back through a door that listens at addr.
func (r Refunds) through(d *Door, addr net.Addr) bool {
	if r == RefundsAny || d.TLS != nil && d.TLS.ClientAuth == tls.RequireAndVerifyClientCert {
		return true
	}
	tcp, _ := addr.(*net.TCPAddr)
	return r == RefundsLocal && (d.Unix || tcp != nil && tcp.IP.IsLoopback())
}

// negativeHits is why a call's refunds are refused, in keyward_refused_total.
const negativeHits = "negative_hits"

// withhold has a request give nothing back, unless its caller may. It is answered all the same: an error would have Envoy let
// its other descriptors through uncounted.
func (o *GRPCOptions) withhold(r *Request) {
	if !o.Refunds && r.keepRefunds() {
		o.Gate.Refuse(negativeHits)
	}
}

// keepRefunds makes every refund one of no hits, and reports whether there was one.
func (r *Request) keepRefunds() (any bool) {
	for i := range r.Descriptors {
		if d := &r.Descriptors[i]; d.Refund {
			d.HasAddend, d.Addend, any = true, 0, true
		}
	}
	return any
}
