package gateways

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

const (
	bridgeIP      = "10.251.0.1" // of the tests, the application behind the gateway and the name server
	clusterDomain = "cluster.local"
)

// namespace is the one in which all programs of the running gateway appear to be.
var namespace string

// clients are further addresses of the tests, for requests of other clients.
var clients = []string{"10.251.0.2", "10.251.0.3"}

// names serves the names of the network.
var names = &nameServer{hosts: map[string][]string{}}

// prepareNetwork creates the bridge that all pods are connected to, and starts the name server.
func prepareNetwork() error {
	lines := []string{
		"ip link set lo up",
		"ip link add br0 type bridge",
		"ip addr add " + bridgeIP + "/24 dev br0",
		"ip link set br0 up",
	}
	for _, ip := range clients {
		lines = append(lines, "ip addr add "+ip+"/24 dev br0")
	}
	if err := commands(lines...); err != nil {
		return err
	}
	return names.start()
}

func commands(lines ...string) error {
	for _, line := range lines {
		f := strings.Fields(line)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}

// hosts are the addresses of hosts in the network.
var hosts = struct {
	mu sync.Mutex
	ip map[string]string // guarded by mu
}{ip: map[string]string{}}

// addHost creates a host, a network namespace with an address on the bridge, and returns the address. It returns the address
// of a host that exists already.
func addHost(name string) (string, error) {
	hosts.mu.Lock()
	defer hosts.mu.Unlock()
	if ip, ok := hosts.ip[name]; ok {
		return ip, nil
	}
	n := len(hosts.ip)
	ip, port := fmt.Sprintf("10.251.0.%d", n+10), fmt.Sprintf("p%d", n)
	err := commands(
		"ip netns add "+name,
		"ip -n "+name+" link set lo up",
		"ip -n "+name+" link add eth0 type veth peer name "+port+" netns 1",
		"ip link set "+port+" master br0 up",
		"ip -n "+name+" addr add "+ip+"/24 dev eth0",
		"ip -n "+name+" link set eth0 up",
		"ip -n "+name+" route add default via "+bridgeIP,
	)
	if err != nil {
		return "", fmt.Errorf("add host %s: %w", name, err)
	}
	hosts.ip[name] = ip
	return ip, nil
}

// nameServer is a DNS server, as a cluster's: a name has the addresses of its ready pods. Its methods are safe for concurrent
// use.
type nameServer struct {
	mu    sync.Mutex
	hosts map[string][]string // guarded by mu
}

// set sets the addresses of a Service in namespace.
func (s *nameServer) set(service string, ips ...string) { s.setIn(namespace, service, ips...) }

// setIn sets the addresses of a Service in a namespace.
func (s *nameServer) setIn(space, service string, ips ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[service+"."+space+".svc."+clusterDomain+"."] = ips
}

func (s *nameServer) start() error {
	udp, err := net.ListenPacket("udp", bridgeIP+":53")
	if err != nil {
		return err
	}
	tcp, err := net.Listen("tcp", bridgeIP+":53")
	if err != nil {
		return err
	}
	go func() { _ = (&dns.Server{PacketConn: udp, Handler: s}).ActivateAndServe() }()
	go func() { _ = (&dns.Server{Listener: tcp, Handler: s}).ActivateAndServe() }()
	return nil
}

// ttl is the time in seconds for which an answer may be used. Kubernetes' endpoints, which Envoy Gateway on an API server
// passes on, change as fast.
const ttl = 1

// ServeDNS implements [dns.Handler].
func (s *nameServer) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	m := new(dns.Msg).SetReply(r)
	m.Authoritative = true
	s.mu.Lock()
	ips, ok := s.hosts[strings.ToLower(r.Question[0].Name)]
	s.mu.Unlock()
	if !ok {
		m.Rcode = dns.RcodeNameError
	}
	if r.Question[0].Qtype == dns.TypeA {
		for _, ip := range ips {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl}, A: net.ParseIP(ip)})
		}
	}
	_ = w.WriteMsg(m)
}
