package rls

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// maxCallers is the most callers that are known at a time. The slots of others come back when they lapse.
const maxCallers = 1 << 14

// callers knows the connections of each caller, so that the slots of a caller that has died come back. When a connection
// of a caller with slots is ended by the caller, and no older one is left here, it calls gone. A newer connection proves
// nothing: it may be that of the caller's next life.
type callers struct {
	self ring.ID
	gone func(caller uint64, ago time.Duration) // see Options.CallerGone; nil: nothing is tracked
	on   atomic.Bool                            // some rule has slots; otherwise nothing is tracked

	mu sync.Mutex
	m  map[uint64]*callerConns // guarded by mu, by owner.Who
}

// callerConns are the connections of one caller. It remains without connections while the caller may have slots: this
// member may have closed them.
type callerConns struct {
	conns map[*callerConn]struct{}
	slots bool
}

// callerConn is a connection of a caller. A shared connection has several.
type callerConn struct {
	of     *callers
	caller uint64 // with the tag of this member, if it came over loopback
	opened time.Time
	pinger h2.Pinger
	slots  atomic.Bool // as in callerConns
}

// HasCaller reports whether this member has a connection of the caller, as owner.Who names it, that was opened longer
// ago. If so, Options.CallerGone is called when the caller ends it.
func (s *Service) HasCaller(caller uint64, ago time.Duration) bool {
	return s.callers.hasOlder(caller, time.Now().Add(-ago))
}

// number returns the number of the caller that sends header, or without it, of the caller at that address.
func (c *callers) number(header string, remote net.Addr) uint64 {
	address, loopback := callerAddress(remote)
	via := ring.ID("")
	if loopback {
		via = c.self
	}
	switch {
	case header != "":
		return owner.CallerOf(xxhash.Sum64String("id "+header), via)
	case loopback:
		return owner.CallerOf(xxhash.Sum64String("member "+string(c.self)), via)
	}
	return owner.CallerOf(xxhash.Sum64String("address "+address), "")
}

// callerAddress returns the address without its port, and whether it is one of this machine.
func callerAddress(a net.Addr) (address string, loopback bool) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return "", true // a unix socket
	}
	ip, _ := netip.AddrFromSlice(tcp.IP)
	ip = ip.Unmap()
	return ip.String(), ip.IsLoopback()
}

// track records that k's connection is one of the caller that sends header; "": it sends none. It returns nil if there
// are too many, or nothing is tracked. It is called for each call from Serve, before the call is answered.
func (c *callers) track(k *h2.Stream, header string) *callerConn {
	if c.gone == nil || !c.on.Load() {
		return nil
	}
	id := xxhash.Sum64String(header)
	w := k.Watch(id, func(opened time.Time, p h2.Pinger) h2.Watcher {
		x := &callerConn{of: c, caller: c.number(header, k.RemoteAddr()), opened: opened, pinger: p}
		if !c.add(x) {
			return (*callerConn)(nil)
		}
		return x
	})
	x, _ := w.(*callerConn)
	return x
}

func (c *callers) add(x *callerConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = map[uint64]*callerConns{}
	}
	who := owner.Who(x.caller)
	e := c.m[who]
	if e == nil {
		if len(c.m) >= maxCallers && !c.forgetOne() {
			return false
		}
		e = &callerConns{conns: map[*callerConn]struct{}{}}
		c.m[who] = e
	}
	e.conns[x] = struct{}{}
	if e.slots {
		x.ping()
	}
	return true
}

// forgetOne forgets a caller without connections. It is called with mu held.
func (c *callers) forgetOne() bool {
	for who, e := range c.m {
		if len(e.conns) == 0 {
			delete(c.m, who)
			return true
		}
	}
	return false
}

// number returns the caller's number for its holds; 0 if it is not tracked.
func (x *callerConn) number() uint64 {
	if x == nil {
		return 0
	}
	return x.caller
}

// hold records that x's caller has taken a slot. x may be nil.
func (x *callerConn) hold() {
	if x == nil || x.slots.Load() {
		return
	}
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	if e := x.of.m[owner.Who(x.caller)]; e != nil {
		e.watch()
	}
}

// watch makes all connections notice if the caller dies. It is called with mu held.
func (e *callerConns) watch() {
	e.slots = true
	for x := range e.conns {
		x.ping()
	}
}

func (x *callerConn) ping() {
	if x.slots.CompareAndSwap(false, true) {
		x.pinger.Ping()
	}
}

// hasOlder reports whether the caller has a connection here that was opened before that time. If so, its end will be
// noticed here.
func (c *callers) hasOlder(caller uint64, before time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.m[owner.Who(caller)]
	if e == nil || !e.hasOlder(before) {
		return false
	}
	e.watch()
	return true
}

func (e *callerConns) hasOlder(before time.Time) bool {
	for x := range e.conns {
		if x.opened.Before(before) {
			return true
		}
	}
	return false
}

// Ended implements h2.Watcher.
func (x *callerConn) Ended(last time.Time, byClient bool) {
	if x != nil && x.of.remove(x, last, byClient) {
		x.of.gone(owner.Who(x.caller), time.Since(last))
	}
}

// remove removes x, whose client lived at last. It reports whether the caller may be gone.
func (c *callers) remove(x *callerConn, last time.Time, byClient bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	who := owner.Who(x.caller)
	e := c.m[who]
	if e == nil {
		return false
	}
	delete(e.conns, x)
	gone := byClient && e.slots && !e.hasOlder(last)
	if len(e.conns) == 0 && (gone || !e.slots) {
		delete(c.m, who)
	}
	return gone
}
