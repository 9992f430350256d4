package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/membership"
)

const (
	patience = 3 * time.Minute
	rest     = 15 * time.Second // before an idle cluster is looked at: what a join had to say has been said
	looked   = 30 * time.Second // two full exchanges of everybody
)

// gossips runs real clusters on loopback, in one process: idle, then one member more, then one that stops without a word.
func gossips(m *Measured, sizes []int) error {
	m.Gossips = nil
	for _, n := range sizes {
		g, err := gossip(n)
		if err != nil {
			return fmt.Errorf("%d members: %w", n, err)
		}
		m.Gossips = append(m.Gossips, g)
	}
	return nil
}

func gossip(n int) (g GossipCost, err error) {
	g.Members = n
	var all []*gossiper
	defer func() {
		var wg sync.WaitGroup
		for _, c := range all {
			wg.Go(c.stop)
		}
		wg.Wait()
	}()
	for len(all) < n {
		c, err := newGossiper(len(all), n, all)
		if err != nil {
			return g, err
		}
		all = append(all, c)
	}
	if err := await("one ring of all", patience, func() bool { return known(all) }); err != nil {
		return g, err
	}
	time.Sleep(rest)
	idle, err := during(func() error { time.Sleep(looked); return nil })
	if err != nil {
		return g, err
	}
	g.Bytes, g.Packets, g.CPU = idle.bytes/idle.seconds/float64(n), idle.packets/idle.seconds/float64(n), idle.cpu/idle.seconds/float64(n)
	change, err := during(func() error {
		begin := time.Now()
		c, err := newGossiper(n, 0, all)
		if err != nil {
			return err
		}
		all = append(all, c)
		if err := await("the ring with one more", patience, func() bool { return adopted(all) }); err != nil {
			return err
		}
		g.Adopted = time.Since(begin).Seconds()
		err = await("all to know of all", patience, func() bool { return known(all) })
		g.Known = time.Since(begin).Seconds()
		time.Sleep(rest) // the last words are still on their way
		return err
	})
	if err != nil {
		return g, err
	}
	g.Change = (change.bytes - idle.bytes/idle.seconds*change.seconds) / float64(n+1)
	lost := all[n/2]
	all = slices.Delete(all, n/2, n/2+1)
	begin := time.Now()
	go lost.stop() // says nothing, but may take its time
	err = await("the ring without the lost one", patience, func() bool { return adopted(all) })
	g.Lost = time.Since(begin).Seconds()
	return g, err
}

// during returns what f uses.
func during(f func() error) (spent, error) {
	u, err := used()
	if err != nil {
		return spent{}, err
	}
	if err := f(); err != nil {
		return spent{}, err
	}
	v, err := used()
	return v.since(u), err
}

// gossiper is a member as it is in production, but for a handoff that takes no time.
type gossiper struct {
	*cluster.Cluster
	rings chan uint64 // adopted
}

func newGossiper(i, expect int, others []*gossiper) (g *gossiper, err error) {
	g = &gossiper{rings: make(chan uint64, 1024)}
	o := cluster.Options{
		Node: string(Member(i).ID), Bind: "127.0.0.1:0", Insecure: true, Cluster: "scale", Expect: expect,
		RLS: "10.0.0.1:8082", Peer: "10.0.0.1:7947", Page: "10.0.0.1:9090", PodUID: fmt.Sprint("pod ", i),
		Handoff: true, Join: []string{"127.0.0.1:1"}, // no member
		OnView: func(v *membership.View) { g.rings <- v.Ring.Fingerprint() },
	}
	for _, at := range []int{0, len(others) / 2} {
		if at < len(others) {
			o.Join = append(o.Join, others[at].Gossip())
		}
	}
	if g.Cluster, err = cluster.Start(o); err != nil {
		return nil, err
	}
	g.SetProgress(membership.Progress{Prefetched: true})
	go func() {
		for f := range g.rings {
			g.SetProgress(membership.Progress{Prefetched: true, CompleteRing: f})
		}
	}()
	return g, nil
}

// stop says nothing to the others.
func (g *gossiper) stop() {
	g.Close()
	close(g.rings) // there is no View any more
}

// adopted reports whether all members use one ring of all members.
func adopted(all []*gossiper) bool {
	want := all[0].View().Ring
	return !slices.ContainsFunc(all, func(c *gossiper) bool {
		r := c.View().Ring
		return r.Len() != len(all) || r.Fingerprint() != want.Fingerprint()
	})
}

// known reports whether, in addition, all members know this of each other and have completed their handoffs.
func known(all []*gossiper) bool {
	return adopted(all) && !slices.ContainsFunc(all, func(c *gossiper) bool {
		v := c.View()
		return v.DifferingRings() > 0 || v.IncompleteMembers() > 0
	})
}
