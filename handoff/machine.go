package handoff

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

const (
	resendAfter = int64(time.Second)       // a transfer whose Ack is unconfirmed for this long is repeated
	maxHistory  = 8                        // number of rings that are remembered
	noneLost    = int64(math.MaxInt64 / 4) // Message.SinceLost of a member that has confirmed no failed member
)

// Machine tracks what one member owns. It has no clock and no I/O: methods receive the time and messages and return the
// messages to send. It is not safe for concurrent use; its OwnershipViews are.
type Machine struct {
	opts       Options
	membership *membership.View
	view       *OwnershipView

	adoptedAt       int64 // when the current ring was adopted
	seq             uint64
	epoch           uint16
	completeVersion uint64     // see membership.Progress.CompleteRing
	neverOwned      bool       // this member has not owned any key since it started
	unconfirmed     bool       // no peer confirmed this member at the last Tick
	extentStale     bool       // confirmations arrived that the view does not include yet
	revokedBase     *ring.Ring // the last base whose ownership was revoked; nil: none since a ring was complete
	lostExpireAt    int64      // when the ownership of all failed members has expired; see noOtherOwner
	minStall        int64      // see updateMinStall
	pingRounds      uint64     // number of ping rounds; their intervals vary by it

	history      []*ring.Ring // adopted rings, newest first, including the current one
	peers        map[ring.ID]*peer
	sortedPeers  []*peer              // sorted by ID, so that equal histories give equal traces
	missingSince map[memberBoot]int64 // when each failed member was first missing
	stayed       struct {             // see lossRing
		base, ring *ring.Ring
	}
	confirmed  map[memberBoot]lastConfirmation
	copiesFrom map[memberBoot]int64 // leaving members that have sent replicas, and when they were last live
	contacts   *contacts
}

// memberBoot identifies one boot of one member.
type memberBoot struct {
	id     ring.ID
	bootID uint64
}

// lastConfirmation is the last confirmation that this member has sent to one boot of a peer.
type lastConfirmation struct {
	at       int64
	takeover int64 // Machine.takeoverOf the peer
}

// peer is the state that a Machine keeps for a live member.
type peer struct {
	*membership.Member // in Machine.membership

	reported    bool   // the fields below were received from it
	ringVersion uint64 // from its last Ping
	seq         uint64
	neverOwned  bool
	needsAck    bool  // it has no Ack from this member yet
	needsCopies bool  // it lacks replicas that follow the Ack
	confirmedAt int64 // time of this member's latest ping that the peer confirmed, by the local clock; 0: none
	nextPing    int64 // when to ping it again
	added       bool  // it was not on the previous ring
	clock       clockOffset

	acked       bool // it sent its Ack for the current ring and seq
	prefetched  bool // it has sent all prefetched replicas
	copiesAcked bool // it has sent all successor replicas for the current ring and seq
	counters    incoming
	copies      incoming // its transfer of successor replicas
	sending     outgoing
}

// NewMachine returns a Machine without a ring.
func NewMachine(o Options) *Machine {
	o.Detection = o.Detection.OrDefault()
	m := &Machine{
		opts: o, neverOwned: true, peers: map[ring.ID]*peer{}, confirmed: map[memberBoot]lastConfirmation{},
		copiesFrom: map[memberBoot]int64{}, contacts: &contacts{at: map[ring.ID]int64{}},
	}
	m.view = &OwnershipView{ring: ring.New(nil), self: -1, baseSelf: -1}
	m.membership = &membership.View{Self: o.Self, BootID: o.BootID, Ring: m.view.ring}
	return m
}

// View returns the current view.
func (m *Machine) View() *OwnershipView { return m.view }

// Membership returns the last view of the cluster that was set.
func (m *Machine) Membership() *membership.View { return m.membership }

// Peer returns the live member with that ID, or nil if there is none.
func (m *Machine) Peer(id ring.ID) *membership.Member {
	if p := m.peers[id]; p != nil {
		return p.Member
	}
	return nil
}

// CanReceive reports whether member id is a live peer whose protocol has handoff, replicas and leases.
func (m *Machine) CanReceive(id ring.ID) bool {
	p := m.peers[id]
	return p != nil && !p.NoHandoff
}

// SetMembership adopts v and its ring. It returns a heartbeat for every peer.
func (m *Machine) SetMembership(now int64, v *membership.View) []protocol.Outbound {
	r := v.Ring
	if r == nil {
		r = ring.New(nil)
	}
	outs := m.revokeIfIsolated(now)
	same := m.seq > 0 && r.Fingerprint() == m.view.ring.Fingerprint()
	m.membership = v
	before := m.peers
	m.setPeers()
	m.forgetCopies(now)
	m.updateMissing(now, r)
	if o := *m.view; len(o.losses) > 0 {
		o.losses = m.dropRecovered(o.losses)
		m.view = &o
	}
	if same {
		if m.lostHolder(before) {
			m.askAgain(now)
		}
		m.publish()
	} else {
		m.adoptRing(now, r)
		for _, p := range m.sortedPeers { // peers may already have reported that they use r
			m.releaseTo(now, p)
		}
	}
	m.advance(now)
	return append(outs, m.pingPeers(now, true)...)
}

// setPeers sets the live members of the membership. State of members with an unchanged boot ID is kept.
func (m *Machine) setPeers() {
	next := make(map[ring.ID]*peer, len(m.membership.Members))
	for x := range m.membership.Peers() {
		p := m.peers[x.ID]
		if p == nil || p.BootID != x.BootID {
			p = &peer{}
		}
		p.Member = x
		next[x.ID] = p
	}
	m.peers = next
	m.contacts.keep(next)
	m.sortedPeers = slices.SortedFunc(maps.Values(next), func(a, b *peer) int { return cmp.Compare(a.ID, b.ID) })
	m.updateMinStall()
}

// adoptRing makes r the current ring. Ownership does not change.
func (m *Machine) adoptRing(now int64, r *ring.Ring) {
	v := *m.view
	before, full := v.ring, v.confirmations.fullUntil()
	v.ring, v.self = r, r.Index(m.opts.Self)
	m.startAdoption(now, r)
	m.history = append([]*ring.Ring{r}, m.history...)
	m.history = m.history[:min(len(m.history), maxHistory)]
	v.history = m.history[1:]
	v.steps = append(slices.Clone(v.steps), step{ring: r, self: v.self, released: make([]bool, r.Len())})
	if len(v.steps) > maxSteps || m.rejoinsMajority(before, r) {
		m.revokeBase(&v)
		v.steps = v.steps[len(v.steps)-1:]
	}
	for id, p := range m.peers {
		i := r.Index(id)
		p.added = placeOf(before, id, p.BootID) < 0 || p.added && !p.sending.ackReceived
		p.restart()
		p.needsAck = true
		p.sending.restart(i >= 0)
		// New members own nothing, so this member may decide before their first confirmation, but not for longer than
		// without them: what they reported may be old.
		switch {
		case i < 0:
		case m.neverOwned:
			p.confirmedAt = max(p.confirmedAt, now)
		case p.added && p.neverOwned && p.reported:
			p.confirmedAt = max(p.confirmedAt, min(now, full-m.ttl(p)))
		}
		if i >= 0 && p.NoHandoff {
			v.steps[len(v.steps)-1].released[i] = true // it takes over its keys without a request
		}
	}
	m.view = &v
	m.publish()
}

// startAdoption starts the adoption of r, which may be the current ring.
func (m *Machine) startAdoption(now int64, r *ring.Ring) {
	m.adoptedAt, m.lostExpireAt = now, 0
	m.seq++
	if m.completeVersion == r.Fingerprint() {
		m.completeVersion = 0
	}
}

// placeOf returns the index in r of a member's boot, or -1 if that boot is not on r.
func placeOf(r *ring.Ring, id ring.ID, bootID uint64) int {
	i := r.Index(id)
	if i >= 0 && r.At(i).BootID != bootID {
		return -1
	}
	return i
}

// rejoinsMajority reports whether r ends a partition in which this member was on the smaller side. The larger side has
// taken over the same keys and continues to decide them until it adopts r, so this member must give up what it took
// over.
func (m *Machine) rejoinsMajority(before, r *ring.Ring) bool {
	if before.Len() == 0 || 2*before.Len() > m.view.nref {
		return false
	}
	for i := range r.Len() {
		a := r.At(i)
		if a.ID == m.opts.Self || placeOf(before, a.ID, a.BootID) >= 0 {
			continue
		}
		if p := m.peers[a.ID]; p == nil || !p.reported || !p.neverOwned {
			return true
		}
	}
	return false
}

// publish makes a new view with the same ownership and a new epoch.
func (m *Machine) publish() *OwnershipView {
	v := *m.view
	if m.epoch++; m.epoch == 0 {
		m.epoch = 1
	}
	v.epoch, v.seq, v.nref, v.joined = m.epoch, m.seq, m.membership.NRef, m.membership.Joined
	v.steps = slices.Clone(v.steps)
	if n := len(v.steps); n > 0 && v.steps[n-1].epoch == 0 {
		v.steps[n-1].epoch = m.epoch
	}
	v.live = make(map[ring.ID]bool, len(m.peers))
	for id := range m.peers {
		v.live[id] = true
	}
	v.confirmations, m.extentStale = m.countConfirmations(&v), false
	m.view = &v
	return &v
}

// countConfirmations returns which peers confirm this member, and until when.
func (m *Machine) countConfirmations(v *OwnershipView) confirmations {
	r := confirmations{nref: v.NRef(), until: make([]int64, 0, v.ring.Len())}
	for i := range v.ring.Len() {
		x := v.ring.At(i)
		if x.ID == m.opts.Self {
			continue
		}
		r.others++
		p := m.peers[x.ID]
		switch {
		case p == nil:
		case p.NoHandoff:
			r.noHandoff++
		case p.confirmedAt > 0:
			r.until = append(r.until, p.confirmedAt+m.ttl(p))
		}
	}
	// N_ref may still count members that are leaving. If it exceeds the ring by more than those, a member has failed,
	// and it is unknown whether N_ref counts that member or a leaving one.
	leaving, missing := m.leavingPeers(v.ring), r.nref-v.ring.Len()
	if missing > len(leaving) || m.missingCounted(v.ring) {
		missing = 0
	}
	for _, p := range leaving {
		if missing > 0 && p.confirmedAt > 0 {
			missing--
			r.until = append(r.until, p.confirmedAt+m.ttl(p))
		}
	}
	slices.SortFunc(r.until, func(a, b int64) int { return cmp.Compare(b, a) })
	return r
}

// leavingPeers returns the live members that have left r.
func (m *Machine) leavingPeers(r *ring.Ring) []*peer {
	var ps []*peer
	for _, p := range m.sortedPeers {
		if p.State == membership.Leaving && r.Index(p.ID) < 0 {
			ps = append(ps, p)
		}
	}
	return ps
}

// Step processes a message from the given boot of a member: a Ping, a Pong, an Ack, or the header of a Chunk or an
// OwnershipRequest. Messages from an earlier boot of that member are dropped.
func (m *Machine) Step(now int64, from ring.ID, bootID uint64, msg *protocol.Message) []protocol.Outbound {
	p := m.peers[from]
	if p == nil || p.BootID != bootID {
		return nil
	}
	outs := m.revokeIfIsolated(now)
	return append(outs, m.step(now, p, msg)...)
}

func (m *Machine) step(now int64, p *peer, msg *protocol.Message) []protocol.Outbound {
	switch msg.Kind {
	case protocol.Ping:
		return m.handlePing(now, p, msg)
	case protocol.Pong:
		if msg.Flags&protocol.Confirmed != 0 && msg.Sent <= now && msg.Sent > p.confirmedAt {
			return m.handlePong(now, p, msg.Sent)
		}
	case protocol.OwnershipRequest:
		// Like a Ping, the request contains the sender's ring.
		if p.reported && msg.Seq < p.seq {
			return nil // a ping has overtaken it
		}
		p.reported, p.ringVersion, p.seq = true, msg.Ring, msg.Seq
		m.releaseTo(now, p)
	case protocol.Chunk:
		m.noteCopies(now, p, msg)
		p.incoming(msg).addChunk(m, msg)
	case protocol.Ack:
		if p.incoming(msg).completes(m, msg) {
			m.handleAck(now, p, msg)
			return []protocol.Outbound{{To: p.ID, Msg: m.pingTo(now, p)}} // confirms the Ack
		}
	}
	return nil
}

// Tick advances the time: it revokes ownership that no peer confirms, continues transfers and returns the heartbeats
// that are due.
func (m *Machine) Tick(now int64) []protocol.Outbound {
	m.publishConfirmations()
	if outs := m.revokeIfIsolated(now); outs != nil {
		return outs
	}
	for _, p := range m.sortedPeers {
		m.releaseTo(now, p)
	}
	m.advance(now)
	m.forgetConfirmations(now)
	m.forgetCopies(now)
	if m.seq == 0 {
		return nil
	}
	return m.pingPeers(now, false)
}
