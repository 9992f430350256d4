package cluster

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/keyward/keyward/internal/cluster/records"
	"github.com/keyward/keyward/internal/membership"
)

// table is where memberlist's callbacks leave what they saw. They are called under memberlist's locks, so they copy,
// never block and never call back; the cluster's one goroutine picks up.
type table struct {
	changed chan struct{} // has room for one: something is new
	records *records.Store

	mu        sync.Mutex // guards all below; nothing else is locked under it
	self      membership.Member
	nodes     map[string]membership.Member // live boots of others, by memberlist name
	status    handoffStatus
	departed  map[uint64]departure // by instance
	announced string               // what memberlist last took as self's metadata
	digest    digest
	refused   uint64 // announcements and posts not let in
	join      joinStatus
}

func newTable(self membership.Member) *table {
	t := &table{
		changed: make(chan struct{}, 1), self: self, nodes: make(map[string]membership.Member), departed: make(map[uint64]departure),
	}
	t.records = records.New(self.ID, self.BootID, t.liveBoots)
	return t
}

// liveBoots is the number of live boots, self included.
func (t *table) liveBoots() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.nodes) + 1
}

func (t *table) signal() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// update changes self.
func (t *table) update(change func(self *membership.Member)) {
	t.mu.Lock()
	change(&t.self)
	t.mu.Unlock()
	t.signal()
}

// updateStatus changes what the caller said.
func (t *table) updateStatus(change func(*handoffStatus)) {
	t.mu.Lock()
	change(&t.status)
	t.mu.Unlock()
	t.signal()
}

// setJoinStatus lets the join loop say what it knows.
func (t *table) setJoinStatus(c joinStatus) {
	t.mu.Lock()
	t.join = c
	t.mu.Unlock()
	t.signal()
}

// snapshot takes a copy of everything; farewells are handed out once.
func (t *table) snapshot() observation {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := observation{self: t.self, status: t.status, departed: t.departed, join: t.join, others: t.othersLocked()}
	t.departed = make(map[uint64]departure)
	return s
}

// others are the live boots of all members but self.
func (t *table) others() []membership.Member {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.othersLocked()
}

func (t *table) othersLocked() []membership.Member {
	return slices.AppendSeq(make([]membership.Member, 0, len(t.nodes)), maps.Values(t.nodes))
}

func (t *table) has(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.nodes[name]
	return ok
}

// drainingSince is when self was first told to leave.
func (t *table) drainingSince() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status.drainingSince
}

func (t *table) refusedCount() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused
}

// memberOf is a memberlist node as a Member.
func memberOf(n *memberlist.Node) (membership.Member, error) {
	if len(n.Addr) != net.IPv4len && len(n.Addr) != net.IPv6len {
		return membership.Member{}, errors.New("an address of no known family")
	}
	m, err := decode(n.Meta)
	if err != nil {
		return m, err
	}
	m.Name, m.Gossip = n.Name, net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
	return m, nil
}

// NotifyAlive refuses, before memberlist believes in it, whatever is not a Keyward member that we can talk with.
func (t *table) NotifyAlive(n *memberlist.Node) error {
	m, err := memberOf(n)
	if err == nil && !m.SharesProtocol() {
		err = fmt.Errorf("member %q speaks protocol %d to %d, this one %d to %d", m.ID, m.ProtocolMin, m.ProtocolMax, membership.ProtocolMin, membership.ProtocolMax)
	}
	if err != nil {
		t.countRefused()
	}
	return err
}

func (t *table) countRefused() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused++
}

// NotifyJoin notes a boot that became alive.
func (t *table) NotifyJoin(n *memberlist.Node) { t.NotifyUpdate(n) }

// NotifyUpdate notes what a boot says of itself now.
func (t *table) NotifyUpdate(n *memberlist.Node) {
	m, err := memberOf(n)
	if err != nil {
		return // NotifyAlive has refused it
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.digest.set(n.Name, n.Meta)
	if n.Name == t.self.Name {
		t.announced = string(n.Meta)
		return
	}
	t.nodes[n.Name] = m
	t.signal()
}

// NotifyLeave notes a boot that left or died. Memberlist does not say here which; whoever means to go says so first.
func (t *table) NotifyLeave(n *memberlist.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.digest.set(n.Name, nil)
	if m, ok := t.nodes[n.Name]; ok {
		delete(t.nodes, n.Name)
		t.departed[m.BootID] = departure{
			id: m.ID, gossip: m.Gossip, graceful: m.State == membership.Leaving,
			handedOff: m.State == membership.Leaving && (m.HandedOff || !m.SupportsHandoff()),
		}
		t.signal()
	}
}

// NodeMeta is self's announcement.
func (t *table) NodeMeta(int) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return encode(&t.self)
}

// NotifyMsg takes in what another member posts.
func (t *table) NotifyMsg(msg []byte) {
	news, err := t.records.Merge(time.Now(), msg)
	if err != nil {
		t.countRefused()
	}
	if news {
		t.signal()
	}
}

// GetBroadcasts is what is to be posted and passed on.
func (t *table) GetBroadcasts(overhead, limit int) [][]byte {
	return t.records.Broadcasts(overhead, limit)
}

// LocalState has nothing to add.
func (t *table) LocalState(bool) []byte { return nil }

// MergeRemoteState ignores it.
func (t *table) MergeRemoteState([]byte, bool) {}
