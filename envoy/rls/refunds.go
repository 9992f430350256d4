package rls

import (
	"crypto/tls"
	"net"
)

// Values of StartOptions.Refunds. A caller that may refund hits (is_negative_hits) can lift any limit.
const (
	// Listeners that require a client certificate, unix sockets, and callers on a loopback address.
	refundsLocal     = "local"
	refundsCertified = "certificate" // listeners that require a client certificate
	refundsAny       = "any"         // all listeners, and /json
)

// allowsRefunds reports whether every caller of the listener may refund hits.
func (l *Listener) allowsRefunds(refunds string) bool {
	return refunds == refundsAny || l.TLS != nil && l.TLS.ClientAuth == tls.RequireAndVerifyClientCert ||
		refunds == refundsLocal && l.Unix
}

// loopback reports whether a caller is on this machine.
func loopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// negativeHits is the reason in keyward_refused_total for refused refunds.
const negativeHits = "negative_hits"

// dropRefunds sets the refunds of a request to zero hits unless the caller may refund. The call is still answered: an
// error would make Envoy let the other descriptors through uncounted.
func (o *grpcOptions) dropRefunds(r *RateLimitRequest, addr net.Addr) {
	if !o.Refunds && !(o.LocalRefunds && loopback(addr)) && r.zeroRefunds() {
		o.Guard.Refuse(negativeHits)
	}
}

// zeroRefunds sets every refund to zero hits and reports whether there was one.
func (r *RateLimitRequest) zeroRefunds() (any bool) {
	for i := range r.Descriptors {
		if d := &r.Descriptors[i]; d.Refund {
			d.HasAddend, d.Addend, any = true, 0, true
		}
	}
	return any
}
