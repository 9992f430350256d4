package cluster

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// faults is a network in which addresses can be unreachable, and datagrams lost.
type faults struct {
	mu  sync.Mutex
	cut map[string]bool // guarded by mu
	udp atomic.Bool     // all datagrams are lost
}

func (f *faults) drops(addr string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cut[addr]
}

func (f *faults) set(addrs ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = make(map[string]bool)
	for _, a := range addrs {
		f.cut[a] = true
	}
}

type faulty struct {
	memberlist.NodeAwareTransport
	*faults
}

func (f *faults) wrap(t memberlist.NodeAwareTransport) memberlist.NodeAwareTransport {
	return faulty{t, f}
}

func (f faulty) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	if f.udp.Load() || f.drops(a.Addr) {
		return time.Now(), nil
	}
	return f.NodeAwareTransport.WriteToAddress(b, a)
}

func (f faulty) DialAddressTimeout(a memberlist.Address, d time.Duration) (net.Conn, error) {
	if f.drops(a.Addr) {
		return nil, errors.New("unreachable")
	}
	return f.NodeAwareTransport.DialAddressTimeout(a, d)
}

func TestPartitionHeals(t *testing.T) {
	virtual(t, func(t *testing.T) {
		nets := map[string]*faults{}
		all := three(t, func(o *Options) {
			withFastProbes(o)
			nets[o.Node] = &faults{}
			o.wrap, o.Timing.LostMemory = nets[o.Node].wrap, time.Second
		})
		c := all[2]
		nets["a-0"].set(c.Gossip())
		nets["b"].set(c.Gossip())
		nets["c"].set(all[0].Gossip(), all[1].Gossip())
		eventually(t, "split", func() bool {
			return all[0].View().Ring.Len() == 2 && all[1].View().Ring.Len() == 2 && c.View().Ring.Len() == 1
		})
		if v := all[0].View(); v.NRef != 2 && v.NRef != 3 {
			t.Errorf("the majority's N_ref is %d", v.NRef)
		}
		if v := c.View(); v.NRef != 3 || !v.Joined {
			t.Errorf("the minority's N_ref is %d, joined %v; want 3 and true", v.NRef, v.Joined)
		}
		eventually(t, "neither half tries the other any more", func() bool {
			return len(all[0].joiner.lostAddresses(time.Now())) == 0 && c.gossip.list.NumMembers() == 1 &&
				len(c.joiner.lostAddresses(time.Now())) == 0
		})
		for _, f := range nets {
			f.set()
		}
		eventually(t, "healed by joining again", func() bool { return whole(all...) })
		for _, m := range all {
			eventually(t, "N_ref is the ring", func() bool { return m.View().NRef == 3 })
		}
	})
}

func TestLostDatagramsLoseNoMember(t *testing.T) {
	virtual(t, func(t *testing.T) {
		probes := func(o *Options) { // by a stream, in the time that remains between two probes
			o.Timing.Probe, o.Timing.ProbeTimeout, o.Timing.PushPull = time.Second, 100*time.Millisecond, 300*time.Millisecond
		}
		var nets []*faults
		all := three(t, func(o *Options) {
			probes(o)
			f := &faults{}
			nets = append(nets, f)
			o.wrap = f.wrap
		})
		for _, f := range nets {
			f.udp.Store(true)
		}
		throughout(t, "whole", func() bool { return whole(all...) }, rounds(all[0], 10))
		// Announcements still arrive by full exchanges.
		all[1].SetRules(5, 6)
		eventually(t, "an announcement without datagrams", func() bool { m, _ := all[2].View().Find("b"); return m.InForce == 5 })
		o := options("d", all[0].Gossip())
		probes(&o)
		f := &faults{}
		f.udp.Store(true)
		o.wrap = f.wrap
		d := up(t, o)
		eventually(t, "a join without datagrams", func() bool { return whole(append([]*Cluster{d}, all...)...) })
	})
}

func TestCloseWaitsForNoSilentPeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, never answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	o := options("a", l.Addr().String())
	o.Timing.Stream = time.Hour
	c, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept() // it is joining now
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.ReadFull(conn, make([]byte, 20)); err != nil { // its request
		t.Fatal(err)
	}
	c.Close() // and would wait for an answer
}

// A leaver that cannot reach the others must not assume that they have removed it.
func TestDrainedNeedsTheOthers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		nets := map[string]*faults{}
		all := three(t, func(o *Options) {
			withFastProbes(o)
			nets[o.Node] = &faults{}
			o.wrap = nets[o.Node].wrap
		})
		c := all[2]
		nets["a-0"].set(c.Gossip())
		nets["b"].set(c.Gossip())
		nets["c"].set(all[0].Gossip(), all[1].Gossip())
		c.Drain()
		released := func() bool {
			select {
			case <-c.drained:
				return true
			default:
				return false
			}
		}
		throughout(t, "held", func() bool {
			return !released() || len(c.View().Members) == 1 // released before the others are gone
		}, released)
	})
}

// Memberlist drops an announcement if it refutes a suspicion at the same time, and then keeps announcing the previous
// state.
func TestLostAnnouncementIsRepeated(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := options("a-0")
		o.Timing.Tick, o.Timing.JoinRetry = time.Hour, time.Hour // steps only when signaled
		c := up(t, o)
		announced := func() bool {
			c.table.mu.Lock()
			defer c.table.mu.Unlock()
			return c.table.announced == string(encode(&c.table.self))
		}
		pretend := func(rules uint64) {
			c.table.mu.Lock()
			defer c.table.mu.Unlock()
			c.table.self.InForce = rules
		}
		eventually(t, "up", func() bool { return whole(c) && announced() })
		pretend(7)
		if err := c.gossip.list.UpdateNode(time.Second); err != nil {
			t.Fatal(err)
		}
		pretend(0)
		if announced() {
			t.Fatal("memberlist should announce rules 7")
		}
		eventually(t, "repeated", func() bool {
			c.table.signal()
			return announced()
		})
	})
}
