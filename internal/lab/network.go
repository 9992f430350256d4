package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
)

// Network is a set of network namespaces on one bridge, which can be partitioned while this machine still reaches all
// of them. It requires root, ip and iptables, and is removed when this process ends, however it ends.
type Network struct {
	id     string // of this network on this machine
	subnet string // the first three bytes of its addresses, with a dot at the end
	hosts  map[string]string
	end    watcher // removes it when this process ends
}

// networkCleaner removes the network of its argument when its input ends.
const networkCleaner = `
cat >/dev/null
exec 2>/dev/null
ip link del "$1"
ip netns list | while read -r name rest; do
  case $name in "$1" | "$1"-*) ip netns del "$name" ;; esac
done
`

// networks is the number of networks that this process has created.
var networks atomic.Int64

// NewNetwork creates the bridge, in its own namespace without this machine's firewall rules, and connects this machine.
func NewNetwork() (*Network, error) {
	count := int(networks.Add(1))
	id := fmt.Sprintf("kw%dn%d", os.Getpid()%100_000, count%1000) // a device's name has at most 15 bytes
	// 198.18.0.0/15 is set aside for benchmarks (RFC 2544): nothing else on the machine should use it.
	n := &Network{id: id, subnet: fmt.Sprintf("198.18.%d.", (os.Getpid()+count)%250), hosts: map[string]string{}}
	if err := n.end.start(networkCleaner, id); err != nil {
		return nil, err
	}
	err := commands(
		"ip netns add "+id,
		"ip -n "+id+" link add br0 type bridge",
		"ip -n "+id+" link set br0 up",
		"ip link add "+id+" type veth peer name up0 netns "+id,
		"ip -n "+id+" link set up0 master br0 up",
		"ip addr add "+n.subnet+"1/24 dev "+id,
		"ip link set "+id+" up",
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a network: %w", err), n.Close())
	}
	return n, nil
}

// Close removes the network. Processes in the namespaces should have ended.
func (n *Network) Close() error {
	errs := []error{commands("ip link del " + n.id)} // a namespace's own devices go some time after it: this name must be free
	for name := range n.hosts {
		errs = append(errs, commands("ip netns del "+n.namespace(name)))
	}
	errs = append(errs, commands("ip netns del "+n.id))
	n.end.end()
	return errors.Join(errs...)
}

func (n *Network) namespace(host string) string { return n.id + "-" + host }

// add creates a namespace with an address on the bridge.
func (n *Network) add(host string) error {
	ns, port := n.namespace(host), fmt.Sprintf("p%d", len(n.hosts))
	addr := fmt.Sprintf("%s%d", n.subnet, len(n.hosts)+10)
	n.hosts[host] = addr
	if err := commands(
		"ip netns add "+ns,
		"ip -n "+ns+" link set lo up",
		"ip -n "+ns+" link add eth0 type veth peer name "+port+" netns "+n.id,
		"ip -n "+n.id+" link set "+port+" master br0 up",
		"ip -n "+ns+" addr add "+addr+"/24 dev eth0",
		"ip -n "+ns+" link set eth0 up",
	); err != nil {
		return fmt.Errorf("add %s to the network: %w", host, err)
	}
	return nil
}

// Deafen drops all packets from others to hosts, in this direction only.
func (n *Network) Deafen(hosts, others []string) error {
	for _, h := range hosts {
		for _, o := range others {
			if err := commands("ip netns exec " + n.namespace(h) + " iptables -w -A INPUT -s " + n.hosts[o] + " -j DROP"); err != nil {
				return fmt.Errorf("cut %s off from %s: %w", h, o, err)
			}
		}
	}
	return nil
}

// Cut drops all packets between two groups.
func (n *Network) Cut(a, b []string) error { return errors.Join(n.Deafen(a, b), n.Deafen(b, a)) }

// Heal ends all partitions.
func (n *Network) Heal() error {
	var errs []error
	for h := range n.hosts {
		errs = append(errs, commands("ip netns exec "+n.namespace(h)+" iptables -w -F INPUT"))
	}
	return errors.Join(errs...)
}

func commands(lines ...string) error {
	for _, l := range lines {
		f := strings.Fields(l)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", l, err, out)
		}
	}
	return nil
}

// AddSidecarOn starts a member on its own host in the network.
func (l *Lab) AddSidecarOn(n *Network, name string, args ...string) (*Sidecar, error) {
	if err := n.add(name); err != nil {
		return nil, err
	}
	at := func(port string) string { return n.hosts[name] + ":" + port }
	s := &Sidecar{
		Runtime: l.path("runtime-" + name), namespace: n.namespace(name),
		RLS: at("8081"), Direct: at("8082"), HTTP: at("8080"), Debug: at("6070"), Metrics: at("9090"), Gossip: at("7946"), Peer: at("7947"),
		XDS: at("18000"), Route: at("10000"),
	}
	if err := l.WriteRules(s, l.Rules); err != nil {
		return nil, err
	}
	if err := l.startSidecar(s, name, args); err != nil {
		return nil, err
	}
	l.Sidecars = append(l.Sidecars, s)
	return s, nil
}
