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

// faults is a network in which addresses can be cut off, and datagrams lost.
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
		return nil, errors.New("cut off")
	}
	return f.NodeAwareTransport.DialAddressTimeout(a, d)
}

func TestSplitHeals(t *testing.T) {
	t.Parallel()
	nets := map[string]*faults{}
	all := three(t, func(o *Options) {
		mortal(o)
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
	eventually(t, "both halves have forgotten each other", func() bool {
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
}

func TestLostDatagramsLoseNobody(t *testing.T) {
	probes := func(o *Options) { // by a stream, for which the time between two probes is left
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
	// News still travels, by full exchanges.
	all[1].SetRules(5, 6)
	eventually(t, "news without datagrams", func() bool { m, _ := all[2].View().Find("b"); return m.InForce == 5 })
	o := options("d", all[0].Gossip())
	probes(&o)
	f := &faults{}
	f.udp.Store(true)
	o.wrap = f.wrap
	d := up(t, o)
	eventually(t, "a join without datagrams", func() bool { return whole(append([]*Cluster{d}, all...)...) })
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
	if _, err := io.ReadFull(conn, make([]byte, 20)); err != nil { // it says who it is
		t.Fatal(err)
	}
	c.Close() // and would wait for an answer
}

// TestReleaseNeedsTheOthers: a leaver that cannot tell the others must not believe that they know.
func TestReleaseNeedsTheOthers(t *testing.T) {
	t.Parallel()
	nets := map[string]*faults{}
	all := three(t, func(o *Options) {
		mortal(o)
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
}

// TestAnAnnouncementThatGotLostIsRepeated: memberlist drops one if it answers an accusation at the same moment, and
// then keeps on announcing what was.
func TestAnAnnouncementThatGotLostIsRepeated(t *testing.T) {
	t.Parallel()
	o := options("a-0")
	o.Timing.Tick, o.Timing.JoinRetry = time.Hour, time.Hour // looks only when signalled
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
}
