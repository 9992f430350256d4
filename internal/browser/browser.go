// Package browser refuses HTTP requests that another site has had a browser send.
//
// [Hosts.Check] -> the request names a host that a public DNS server cannot answer for; so a page whose own name was turned
// to this machine's address (DNS rebinding) reads nothing. [SameSite] -> the request was not written by another site's page.
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
	WrongHost = "host"       // the Host header is not a name of this port
	CrossSite = "cross_site" // another site's page has sent the request
)

// Hosts are the names that a port answers for, beside those that no public DNS server can give: IP addresses, localhost and
// what ends in it, names without a dot, and Kubernetes' names of Services and pods, which end in .svc or .cluster.local.
// The zero value has none beside them. It is safe for concurrent use.
type Hosts struct {
	names []string // lower case; one that begins with a dot stands for all names that end so
}

// NewHosts takes names as DNS has them, without a port; *.example.org stands for all names below example.org. The machine's own
// name is one of them by itself. The error names every name that is at fault.
func NewHosts(names ...string) (Hosts, error) {
	var h Hosts
	var faults []error
	if own, err := os.Hostname(); err == nil && plain(own) != "" {
		h.names = append(h.names, plain(own))
	}
	for _, name := range names {
		n := plain(strings.TrimPrefix(name, "*"))
		if strings.Trim(n, ".") == "" || strings.ContainsAny(n, "*:/ ") || strings.HasPrefix(name, "*") != strings.HasPrefix(n, ".") {
			faults = append(faults, fmt.Errorf("%q: want a name like keyward.example.org, without a port, or *.example.org", name))
			continue
		}
		h.names = append(h.names, n)
	}
	return h, errors.Join(faults...)
}

func plain(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// local are the endings of names that no public DNS server answers for.
var local = [...]string{".localhost", ".svc", ".cluster.local"}

// Check says why a Host header is not for this port; nil when it is. None at all is: every browser sends one.
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
	if slices.ContainsFunc(local[:], ends) || slices.ContainsFunc(h.names, func(n string) bool { return n == name || n[0] == '.' && ends(n) }) {
		return nil
	}
	return fmt.Errorf("this port does not answer for the host %q: ask by IP address, by localhost or by a Service's name (NAME.NAMESPACE.svc), or give this name to --allowed-hosts", name)
}

// Guard has next serve what is for this port. The rest is answered 421 with the reason, and refuse is called with WrongHost. Paths
// in open are served for every host: a load balancer's probe names the host that it likes, and learns nothing.
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

// SameSite has next serve what no other site's page has sent: a browser says so in Sec-Fetch-Site or Origin. The rest is answered 403
// with the reason, and refuse is called with CrossSite.
func SameSite(next http.Handler, refuse func(reason string)) http.Handler {
	guard := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Without a body nothing is asked, and a browser gives GET none; all other ways to say it are judged like a POST.
		judged := *r
		judged.Method = http.MethodPost
		if guard.Check(&judged) != nil {
			refuse(CrossSite)
			http.Error(w, "this was sent by a page of another site (Sec-Fetch-Site, Origin): only programs and pages of this port may ask", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
