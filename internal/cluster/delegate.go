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

// table stores what memberlist's callbacks have observed, until the cluster's goroutine reads it. Memberlist calls
// them with its locks held, so they copy, never block and never call back.
type table struct {
	changed chan struct{} // has room for one: something has changed
	records *records.Store

	mu        sync.Mutex // guards all below; nothing else is locked under it
	self      membership.Member
	nodes     map[string]membership.Member // live boots of the other members, by memberlist name
	status    handoffStatus
	departed  map[uint64]departure // by boot ID
	announced string               // this member's metadata as memberlist last spread it
	digest    digest
	refused   uint64 // announcements and records that were rejected
	join      joinStatus
}

func newTable(self membership.Member) *table {
	t := &table{
		changed: make(chan struct{}, 1), self: self,
		nodes: make(map[string]membership.Member), departed: make(map[uint64]departure),
	}
	t.records = records.New(self.ID, self.BootID, t.liveBoots)
	return t
}

// liveBoots returns the number of live boots, this one included.
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

// update changes this member.
func (t *table) update(change func(self *membership.Member)) {
	t.mu.Lock()
	change(&t.self)
	t.mu.Unlock()
	t.signal()
}

// updateStatus changes what the caller has reported.
func (t *table) updateStatus(change func(*handoffStatus)) {
	t.mu.Lock()
	change(&t.status)
	t.mu.Unlock()
	t.signal()
}

// setJoinStatus stores the result of the join loop's last round.
func (t *table) setJoinStatus(c joinStatus) {
	t.mu.Lock()
	t.join = c
	t.mu.Unlock()
	t.signal()
}

// snapshot returns a copy of everything. Each departure is returned once.
func (t *table) snapshot() observation {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := observation{self: t.self, status: t.status, departed: t.departed, join: t.join, others: t.othersLocked()}
	t.departed = make(map[uint64]departure)
	return s
}

// others returns the live boots of all other members.
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

// drainingSince returns when Drain was first called, or the zero time.
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

// memberOf parses a memberlist node.
func memberOf(n *memberlist.Node) (membership.Member, error) {
	if len(n.Addr) != net.IPv4len && len(n.Addr) != net.IPv6len {
		return membership.Member{}, errors.New("unknown address family")
	}
	m, err := decode(n.Meta)
	if err != nil {
		return m, err
	}
	m.Name, m.Gossip = n.Name, net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
	return m, nil
}

// NotifyAlive rejects nodes that are not Keyward members with a common protocol version, before memberlist adds them.
func (t *table) NotifyAlive(n *memberlist.Node) error {
	m, err := memberOf(n)
	if err == nil && !m.SharesProtocol() {
		err = fmt.Errorf("member %q supports protocol %d to %d, this one %d to %d",
			m.ID, m.ProtocolMin, m.ProtocolMax, membership.ProtocolMin, membership.ProtocolMax)
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

// NotifyJoin records a boot that has become alive.
func (t *table) NotifyJoin(n *memberlist.Node) { t.NotifyUpdate(n) }

// NotifyUpdate records what a boot announces now.
func (t *table) NotifyUpdate(n *memberlist.Node) {
	m, err := memberOf(n)
	if err != nil {
		return // NotifyAlive has rejected it
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

// NotifyLeave records a boot that has left or died. Memberlist does not distinguish them here: a member that leaves
// has announced it before.
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

// NodeMeta returns this member's announcement.
func (t *table) NodeMeta(int) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return encode(&t.self)
}

// NotifyMsg merges a record of another member.
func (t *table) NotifyMsg(msg []byte) {
	changed, err := t.records.Merge(time.Now(), msg)
	if err != nil {
		t.countRefused()
	}
	if changed {
		t.signal()
	}
}

// GetBroadcasts returns the records to send and to pass on.
func (t *table) GetBroadcasts(overhead, limit int) [][]byte {
	return t.records.Broadcasts(overhead, limit)
}

// LocalState returns nothing: announcements are in the metadata.
func (t *table) LocalState(bool) []byte { return nil }

// MergeRemoteState ignores the state.
func (t *table) MergeRemoteState([]byte, bool) {}
