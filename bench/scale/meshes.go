package main

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// node is one member, with its own Node and streams.
type node struct {
	*peer.Peer
	id   ring.ID
	inst uint64
	node *owner.Node
	reg  *prometheus.Registry
}

func newNode(i int, o owner.Options) (*node, error) {
	m := Member(i)
	o.Self, o.BootID, o.Seed, o.NoHot = m.ID, m.BootID, [2]uint64{1, uint64(i)}, true
	n := &node{id: m.ID, inst: m.BootID, node: owner.New(o), reg: prometheus.NewRegistry()}
	var err error
	n.Peer, err = peer.New(peer.Options{Node: n.node, Self: m.ID, BootID: m.BootID, Cluster: "scale", Listen: "127.0.0.1:0", Registerer: n.reg})
	return n, err
}

// tell gives a member the ring of the first on of all; the others join.
func (n *node) tell(r *ring.Ring, all []*node) {
	v := &membership.View{Self: n.id, BootID: n.inst, Ring: r, NRef: r.Len(), Joined: true}
	for _, o := range all {
		x := membership.Member{
			ID: o.id, BootID: o.inst, State: membership.Active, Weight: 1, ProtocolMax: membership.ProtocolMax,
			Addresses: membership.Addresses{Peer: o.Addr().String()},
		}
		if r.Index(o.id) < 0 {
			x.State = membership.Joining
		}
		v.Members = append(v.Members, x)
	}
	n.SetView(v)
}

// meshes has members that are all connected do nothing, for a while.
func meshes(m *Measured, sizes []int) error {
	m.Meshes = nil
	for _, n := range sizes {
		c, err := mesh(n)
		for again := 0; errors.Is(err, errDisturbed) && again < 5; again++ {
			c, err = mesh(n)
		}
		if err != nil {
			return fmt.Errorf("%d members: %w", n, err)
		}
		m.Meshes = append(m.Meshes, c)
	}
	return nil
}

// errDisturbed reports that the machine had no time for the members, which then considered each other lost.
var errDisturbed = errors.New("the machine is too busy")

// mesh compares n members that are connected with the same ones, not connected yet.
func mesh(n int) (c MeshCost, err error) {
	c.Members = n
	var all []*node
	defer func() {
		for _, m := range all {
			_ = m.Close() // of a listener
		}
	}()
	for i := range n {
		m, err := newNode(i, owner.Options{MaxKeys: 1000})
		if err != nil {
			return c, err
		}
		all = append(all, m)
	}
	r := ring.New(Members(n))
	alone, err := during(idling)
	if err != nil {
		return c, err
	}
	memory, goroutines := live(), runtime.NumGoroutine()
	for _, m := range all {
		m.tell(r, all)
	}
	for _, m := range all {
		if await(string(m.id)+" to hold its keys", 15*time.Second, func() bool { return m.node.Progress().Complete() }) != nil {
			return c, errDisturbed
		}
	}
	time.Sleep(2 * time.Second)
	together, err := during(idling)
	if err != nil {
		return c, err
	}
	for _, m := range all {
		if !m.node.Progress().Complete() || together.seconds > 1.3*idle.Seconds() {
			return c, errDisturbed
		}
	}
	links := float64(n * (n - 1))
	c.Bytes, c.Packets = together.bytes/together.seconds/links, together.packets/together.seconds/links
	c.CPU = (together.cpu/together.seconds - alone.cpu/alone.seconds) * 1e6 / links
	c.Memory = (live() - memory) / links
	c.Goroutines = float64(runtime.NumGoroutine()-goroutines) / links
	return c, nil
}

// idle is how long members that do nothing are looked at.
const idle = 8 * time.Second

func idling() error {
	time.Sleep(idle)
	return nil
}
