package rls

import (
	"crypto/tls"
	"net"
)

// Values of StartOptions.Refunds. A caller that may refund hits (is_negative_hits) can lift any limit.
const (
	refundsLocal     = "local"       // listeners that require a client certificate, unix sockets, and callers on a loopback address
	refundsCertified = "certificate" // listeners that require a client certificate
	refundsAny       = "any"         // all listeners, and /json
)

// allowsRefunds reports whether every caller of the listener may refund hits.
func (l *Listener) allowsRefunds(refunds string) bool {
	return refunds == refundsAny || l.TLS != nil && l.TLS.ClientAuth == tls.RequireAndVerifyClientCert || refunds == refundsLocal && l.Unix
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
func (o *grpcOptions) dropRefunds(r *RateLimitRequest, addr net.Addr) {
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
