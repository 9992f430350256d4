package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	redigo "github.com/gomodule/redigo/redis"
)

// topology is the addresses of the servers: of a single one, or of a Redis Cluster.
type topology struct {
	cluster   bool
	primaries [tags]string // by hash tag
	nodes     []string     // primaries and replicas
}

const tags = 256 // hash tags of keys

// locate returns the topology, and asks the servers for it if it is not known.
func (c *Coordinator) locate(ctx context.Context) (*topology, error) {
	c.mu.Lock()
	t := c.topology
	addresses := []string{c.server.address}
	for address := range c.nodes {
		if address != c.server.address {
			addresses = append(addresses, address)
		}
	}
	c.mu.Unlock()
	if t != nil {
		return t, nil
	}
	var errs []error
	for _, address := range addresses {
		t, err := readTopology(ctx, c.node(address))
		if err == nil {
			return t, c.use(t)
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// use replaces the topology, and closes the connections to servers that are not in it.
func (c *Coordinator) use(t *topology) error {
	if t.cluster && (c.server.wait > 0 || c.server.layout == envoyproxy) {
		return errors.New("wait and layout=envoyproxy are not available with Redis Cluster; use a single primary")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.topology = t
	for address, n := range c.nodes {
		if !slices.Contains(t.nodes, address) {
			n.close()
			delete(c.nodes, address)
		}
	}
	return nil
}

// forget has the next call ask for the topology, unless another one is known already.
func (c *Coordinator) forget(t *topology) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.cluster && c.topology == t {
		c.topology = nil
	}
}

func (c *Coordinator) node(address string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[address]
	if n == nil {
		n = newNode(c.ctx, &c.server, address)
		c.nodes[address] = n
	}
	return n
}

// readTopology asks a server for the slots of its cluster. One that refuses this is a single server.
func readTopology(ctx context.Context, n *node) (*topology, error) {
	replies, err := n.do(ctx, command{"CLUSTER", []any{"SLOTS"}})
	if err != nil {
		return nil, err
	}
	ranges, err := redigo.Values(replies[0], nil)
	if e, ok := replies[0].(redigo.Error); ok {
		if !strings.Contains(strings.ToUpper(string(e)), "CLUSTER") { // disabled, unknown, or not allowed to this user
			return nil, e
		}
		t := &topology{nodes: []string{n.address}}
		for i := range t.primaries {
			t.primaries[i] = n.address
		}
		return t, nil
	}
	t := &topology{cluster: true}
	for i := 0; i < len(ranges) && err == nil; i++ {
		err = t.add(ranges[i], n.address)
	}
	if err != nil {
		return nil, fmt.Errorf("read slots of the cluster: %w", err)
	}
	if i := slices.Index(t.primaries[:], ""); i >= 0 {
		return nil, fmt.Errorf("no server of the cluster has slot %d", slot(byte(i)))
	}
	return t, nil
}

// add adds a range of slots: first, last, and then host, port and more of each server, of which the primary is first.
func (t *topology) add(reply any, from string) error {
	fields, err := redigo.Values(reply, nil)
	if err != nil || len(fields) < 3 {
		return fmt.Errorf("%d fields: %w", len(fields), err)
	}
	first, e1 := redigo.Int(fields[0], nil)
	last, e2 := redigo.Int(fields[1], nil)
	err = errors.Join(e1, e2)
	for i, field := range fields[2:] {
		server, e1 := redigo.Values(field, nil)
		if e1 != nil || len(server) < 2 {
			return fmt.Errorf("%d fields: %w", len(server), e1)
		}
		host, _ := redigo.String(server[0], nil) // nil: unknown
		port, e2 := redigo.Int(server[1], nil)
		err = errors.Join(err, e2)
		address := resolve(host, strconv.Itoa(port), from)
		if !slices.Contains(t.nodes, address) {
			t.nodes = append(t.nodes, address)
		}
		for n := 0; i == 0 && n < tags; n++ {
			if s := slot(byte(n)); first <= s && s <= last {
				t.primaries[n] = address
			}
		}
	}
	return err
}

// resolve returns the address of a server. If it does not know its host, that is the one of the server that named it.
func resolve(host, port, from string) string {
	if host == "?" {
		host = ""
	}
	known, _, _ := net.SplitHostPort(from)
	return net.JoinHostPort(cmp.Or(host, known), port)
}

// slot returns the slot of all keys with a hash tag: their CRC-16/XMODEM.
func slot(n byte) int {
	var crc uint16
	for _, b := range []byte(fmt.Sprintf("kw%02x", n)) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return int(crc % 16384)
}
