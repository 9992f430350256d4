// Package browser refuses HTTP requests that another site made a browser send.
//
// [Hosts.Check] refuses host names that a public DNS server could resolve to this machine (DNS rebinding). [SameSite]
// refuses requests of other sites' pages.
package browser

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Reasons of keyward_refused_total.
const (
	WrongHost = "host"       // the Host header names a host that the listener does not serve
	CrossSite = "cross_site" // a page of another site sent the request
)

// Hosts are the host names that a listener serves. It always serves names that no public DNS server resolves: IP
// addresses, localhost and names below it, names without a dot, and names of Kubernetes Services and pods, which end
// in .svc or .cluster.local. The zero value serves only those. It is safe for concurrent use.
type Hosts struct {
	names []string // lower case; a name that begins with a dot matches all names below it
}

// NewHosts returns Hosts that also serve the given DNS names, without ports. *.example.org matches all names below
// example.org. The machine's own name is always included. The error lists every invalid name.
func NewHosts(names ...string) (Hosts, error) {
	var h Hosts
	var faults []error
	if own, err := os.Hostname(); err == nil && plain(own) != "" {
		h.names = append(h.names, plain(own))
	}
	for _, name := range names {
		n := plain(strings.TrimPrefix(name, "*"))
		if strings.Trim(n, ".") == "" || strings.ContainsAny(n, "*:/ ") ||
			strings.HasPrefix(name, "*") != strings.HasPrefix(n, ".") {
			faults = append(faults, fmt.Errorf("%q: want a name such as keyward.example.org, without a port, or *.example.org", name))
			continue
		}
		h.names = append(h.names, n)
	}
	return h, errors.Join(faults...)
}

func plain(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// local are the suffixes of names that no public DNS server resolves.
var local = [...]string{".localhost", ".svc", ".cluster.local"}

// Check returns an error if the listener does not serve the given Host header. An empty header is served: every
// browser sends one.
func (h *Hosts) Check(host string) error {
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	name = plain(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
	if _, err := netip.ParseAddr(name); err == nil || !strings.Contains(name, ".") {
		return nil
	}
	ends := func(ending string) bool { return strings.HasSuffix(name, ending) }
	if slices.ContainsFunc(local[:], ends) || slices.ContainsFunc(h.names,
		func(n string) bool { return n == name || n[0] == '.' && ends(n) }) {
		return nil
	}
	return fmt.Errorf("host %q is not served here: use an IP address, localhost or the name of a Service (NAME.NAMESPACE.svc), "+
		"or pass this name to --allowed-hosts", name)
}

// Guard serves requests for this listener with next. It answers others with 421 and the reason, and calls refuse with
// WrongHost. Paths in open are served for every host: the probes of load balancers use any host, and learn nothing.
func (h *Hosts) Guard(next http.Handler, refuse func(reason string), open ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.Check(r.Host); err != nil && !slices.Contains(open, r.URL.Path) {
			refuse(WrongHost)
			http.Error(w, err.Error(), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// SameSite serves requests with next unless Sec-Fetch-Site or Origin shows that a page of another site sent them. It
// answers those with 403 and the reason, and calls refuse with CrossSite.
func SameSite(next http.Handler, refuse func(reason string)) http.Handler {
	guard := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Browsers send GET without a body, and without a body nothing is decided. Requests with any other method are
		// checked like a POST.
		checked := *r
		checked.Method = http.MethodPost
		if guard.Check(&checked) != nil {
			refuse(CrossSite)
			const reason = "a page of another site sent this request (Sec-Fetch-Site, Origin)"
			http.Error(w, reason, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
