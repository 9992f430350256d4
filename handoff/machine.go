package handoff

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/keyward/keyward/ring"
)

const (
	pingInterval = int64(500 * time.Millisecond) // between two pings
	resendAfter  = int64(time.Second)            // an Ack that has not arrived by then is repeated with all before it
	maxHistory   = 8                             // rings that are remembered
)

// Machine keeps one member's tokens. It is passive: it is given the time and what arrives, and returns what to send. It
// is not safe for concurrent use; its Views are.
type Machine struct {
	opts       Options
	membership Membership
	view       *OwnershipView

	adoptedAt    int64 // when the present ring was
	seq          uint64
	epoch        uint16
	neverOwned   bool       // never held a token
	unconfirmed  bool       // nobody confirmed self at the last Tick
	extentStale  bool       // confirmations have come that the view's reach lacks
	revokedBase  *ring.Ring // the last base that was given up; nil: none since a ring was complete
	lostExpireAt int64      // no member that was lost can be using its tokens any more from then on
	pingRounds   uint64     // of pings: what they are apart is mixed from it

	history      []*ring.Ring // the newest first, the present one too
	peers        map[ring.ID]*peer
	sortedPeers  []*peer              // in the order of their names, so that equal histories give equal traces
	confirmedAt  map[memberBoot]int64 // when self last confirmed each boot of each member
	missingSince map[memberBoot]int64 // those that went without a farewell: when they were missed
}

// memberBoot is one life of one member.
type memberBoot struct {
	id     ring.ID
	bootID uint64
}

// peer is what is known of a live member.
type peer struct {
	LivePeer
	reported    bool   // the fields below were heard from it
	ringVersion uint64 // by its last Ping
	seq         uint64
	neverOwned  bool
	needsAck    bool  // it lacks an Ack from self
	needsCopies bool  // it lacks copies that follow it
	confirmedAt int64 // latest of self's pings that it confirmed, by self's clock; 0: none
	nextPing    int64 // when self pings it again
	added       bool  // it was not on the ring before this one
	clock       clockOffset

	acked       bool // for the present ring and seq
	prefetched  bool // it has sent all of its Shadow copies
	copiesAcked bool // all of its Extra ones, for the present ring and seq
	counters    incoming
	copies      incoming // the Extra ones
	sending     outgoing
}

// NewMachine is a Machine without a ring.
func NewMachine(o Options) *Machine {
	if o.OwnershipTTL <= 0 {
		o.OwnershipTTL = 1500 * time.Millisecond
	}
	if o.TakeoverDelay <= 0 {
		o.TakeoverDelay = 2 * time.Second
	}
	m := &Machine{opts: o, neverOwned: true, peers: map[ring.ID]*peer{}, confirmedAt: map[memberBoot]int64{}}
	m.view = &OwnershipView{ring: ring.New(nil), self: -1, baseSelf: -1}
	return m
}

// View is what holds now.
func (m *Machine) View() *OwnershipView { return m.view }

// SetRing adopts r, and what membership says beside it.
func (m *Machine) SetRing(now int64, r *ring.Ring, s Membership) []Outbound {
	if r == nil {
		r = ring.New(nil)
	}
	same := m.seq > 0 && r.Fingerprint() == m.view.ring.Fingerprint()
	m.membership = s
	m.setPeers(s.Peers)
	m.updateMissing(now, r)
	if v := *m.view; len(v.losses) > 0 {
		v.losses = m.dropRecovered(v.losses)
		m.view = &v
	}
	if same {
		m.publish()
	} else {
		m.adoptRing(now, r)
		for _, p := range m.sortedPeers { // some may have said before that they go by r
			m.releaseTo(now, p)
		}
	}
	m.advance(now)
	return m.pingPeers(now, true)
}

// setPeers replaces the members that are live.
func (m *Machine) setPeers(peers []LivePeer) {
	next := make(map[ring.ID]*peer, len(peers))
	for _, p := range peers {
		old := m.peers[p.ID]
		if old == nil || old.BootID != p.BootID {
			old = &peer{}
		}
		old.LivePeer = p
		next[p.ID] = old
	}
	m.peers = next
	m.sortedPeers = slices.SortedFunc(maps.Values(next), func(a, b *peer) int { return cmp.Compare(a.ID, b.ID) })
}

// adoptRing makes r the present ring. Tokens stay where they are.
func (m *Machine) adoptRing(now int64, r *ring.Ring) {
	v := *m.view
	before := v.ring
	v.ring, v.self = r, r.Index(m.opts.Self)
	m.adoptedAt = now
	m.history = append([]*ring.Ring{r}, m.history...)
	m.history = m.history[:min(len(m.history), maxHistory)]
	v.history = m.history[1:]
	v.steps = append(slices.Clone(v.steps), step{ring: r, self: v.self, released: make([]bool, r.Len())})
	if len(v.steps) > maxSteps || m.rejoinsMajority(before, r) {
		m.revokeBase(&v)
		v.steps = v.steps[len(v.steps)-1:]
	}
	m.lostExpireAt = 0
	m.seq++
	for id, p := range m.peers {
		i := r.Index(id)
		p.added = placeOf(before, id, p.BootID) < 0 || p.added && !p.sending.ackReceived
		p.restart()
		p.needsAck = true
		p.sending.restart(i >= 0)
		// Fresh members have nobody's tokens, so a right need not wait for their first confirmation.
		if i >= 0 && (m.neverOwned || p.added && p.neverOwned && p.reported) {
			p.confirmedAt = max(p.confirmedAt, now)
		}
		if i >= 0 && p.NoHandoff {
			v.steps[len(v.steps)-1].released[i] = true // it takes its keys over without being asked
		}
	}
	m.view = &v
	m.publish()
}

// placeOf is the place of a boot of a member on r; -1 if that boot has none.
func placeOf(r *ring.Ring, id ring.ID, inst uint64) int {
	i := r.Index(id)
	if i >= 0 && r.At(i).BootID != inst {
		return -1
	}
	return i
}

// rejoinsMajority says whether self comes out of the smaller part of a divided cluster: the tokens that it made anew there are
// those that the larger part has, too, and go on using until it has heard of the new ring. Self's have to yield.
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

// publish makes a new View of the same tokens.
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

// countConfirmations collects who confirms self.
func (m *Machine) countConfirmations(v *OwnershipView) confirmations {
	r := confirmations{nref: v.NRef(), policy: m.opts.Policy, until: make([]int64, 0, v.ring.Len())}
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
			r.until = append(r.until, p.confirmedAt+int64(m.opts.OwnershipTTL))
		}
	}
	// N_ref may still count members that leave. When somebody is lost, as it shows if N_ref exceeds the ring by more than those,
	// it cannot be told whether it counts them.
	leaving, missing := m.leavingPeers(v.ring), r.nref-v.ring.Len()
	if missing > len(leaving) || m.missingCounted(v.ring) {
		missing = 0
	}
	for _, p := range leaving {
		if missing > 0 && p.confirmedAt > 0 {
			missing--
			r.until = append(r.until, p.confirmedAt+int64(m.opts.OwnershipTTL))
		}
	}
	slices.SortFunc(r.until, func(a, b int64) int { return cmp.Compare(b, a) })
	return r
}

// leavingPeers are the live members that have left r.
func (m *Machine) leavingPeers(r *ring.Ring) []*peer {
	var ps []*peer
	for _, p := range m.sortedPeers {
		if p.State == Leaving && r.Index(p.ID) < 0 {
			ps = append(ps, p)
		}
	}
	return ps
}

// pingPeers is the heartbeat to every live member, or to those whose turn it is.
func (m *Machine) pingPeers(now int64, all bool) []Outbound {
	m.pingRounds++
	turn := func(p *peer) bool { return !p.NoHandoff && (all || now >= p.nextPing) }
	n := 0
	for _, p := range m.sortedPeers {
		if turn(p) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	outs := make([]Outbound, 0, n)
	for _, p := range m.sortedPeers {
		if turn(p) {
			outs = append(outs, Outbound{p.ID, m.pingTo(now, p)})
		}
	}
	return outs
}

// pingTo is the heartbeat to p. Until the next one it is a fifth more or less than beat, so that members which start together
// do not beat together; the mix needs no randomness.
func (m *Machine) pingTo(now int64, p *peer) Message {
	x := (m.opts.BootID + m.pingRounds) * 0x9E3779B97F4A7C15 >> 40
	p.nextPing = now + pingInterval - pingInterval/5 + int64(x)%(pingInterval*2/5)
	msg := Message{Kind: Ping, Ring: m.view.ring.Fingerprint(), Seq: m.seq, Sent: now, Now: now}
	switch {
	case m.awaitsAck(p):
		msg.Flags |= NeedsAck
	case p.acked && !p.copiesAcked:
		msg.Flags |= needsCopies
	}
	if m.neverOwned {
		msg.Flags |= NeverOwned
	}
	return msg
}

// awaitsAck says whether p has something for self that has not come yet.
func (m *Machine) awaitsAck(p *peer) bool {
	if m.view.self < 0 {
		return !p.prefetched && p.State == Active && !m.membership.Leaving
	}
	return !p.acked
}

// Step takes in a message of the boot inst of member from: a Ping, a Pong, an Ack, or the head of a Chunk or OwnershipRequest.
func (m *Machine) Step(now int64, from ring.ID, inst uint64, msg *Message) []Outbound {
	p := m.peers[from]
	if p == nil || p.BootID != inst {
		return nil
	}
	switch msg.Kind {
	case Ping:
		return m.handlePing(now, p, msg)
	case Pong:
		if msg.Flags&Confirmed != 0 && msg.Sent <= now && msg.Sent > p.confirmedAt {
			return m.handlePong(now, p, msg.Sent)
		}
	case OwnershipRequest:
		// It tells by which ring its sender goes, as a Ping does.
		p.reported, p.ringVersion, p.seq = true, msg.Ring, msg.Seq
		m.releaseTo(now, p)
	case Chunk:
		p.incoming(msg).addChunk(m, msg)
	case Ack:
		if p.incoming(msg).completes(m, msg) {
			m.handleAck(now, p, msg)
			return []Outbound{{p.ID, m.pingTo(now, p)}} // says that it came
		}
	}
	return nil
}

// handlePong takes p's confirmation of self's ping at sent. When p is one of those that self was apart from, what they
// have made anew is valid, and self's tokens are not, even though self's ring has never changed.
func (m *Machine) handlePong(now int64, p *peer, sent int64) []Outbound {
	if m.confirmationExpired(now, p) && m.partitioned(now) {
		return m.RevokeAll(now)
	}
	lasts := p.confirmedAt+int64(m.opts.OwnershipTTL)-pingInterval > now
	p.confirmedAt, m.extentStale = sent, true
	if !lasts {
		m.publishConfirmations()
	}
	return nil
}

// publishConfirmations publishes the confirmations that have come. One that takes the place of another which holds for a beat longer waits for
// the next Tick: among many members this would be most of what an idle one does.
func (m *Machine) publishConfirmations() {
	if !m.extentStale {
		return
	}
	v := *m.view
	v.confirmations, m.extentStale = m.countConfirmations(&v), false
	m.view = &v // only the reach is another, so the epoch stays
}

func (m *Machine) handlePing(now int64, p *peer, msg *Message) []Outbound {
	if p.reported && msg.Seq < p.seq {
		return nil // overtaken by a later one
	}
	fresh := !p.reported || p.ringVersion != msg.Ring || p.seq != msg.Seq
	p.reported, p.ringVersion, p.seq, p.neverOwned = true, msg.Ring, msg.Seq, msg.Flags&NeverOwned != 0
	p.needsAck, p.needsCopies = msg.Flags&NeedsAck != 0, msg.Flags&needsCopies != 0
	if !fresh {
		m.checkDelivery(now, p)
	}
	m.releaseTo(now, p)
	m.advance(now)
	pong := Message{Kind: Pong, Ring: m.view.ring.Fingerprint(), Seq: msg.Seq, Sent: msg.Sent, Now: now}
	if m.mayConfirm(p) {
		pong.Flags |= Confirmed
		m.confirmedAt[memberBoot{p.ID, p.BootID}] = now
	}
	outs := []Outbound{{p.ID, pong}}
	// Self's own goes along if it is nearly due, so that of two members mostly one begins. And p can confirm self from now on if it
	// could not before.
	if now > p.nextPing-pingInterval/2 || fresh && p.ringVersion == m.view.ring.Fingerprint() && p.confirmedAt+pingInterval < now {
		outs = append(outs, Outbound{p.ID, m.pingTo(now, p)})
	}
	return outs
}

// mayConfirm says whether p may use its tokens as far as self is concerned: it has its place, and, coming back after
// others may have decided its keys, it has been told what they know.
func (m *Machine) mayConfirm(p *peer) bool {
	i := m.view.ring.Index(p.ID)
	if i < 0 {
		return p.State == Leaving
	}
	if m.view.ring.At(i).BootID != p.BootID {
		return false
	}
	return !p.added || p.neverOwned || m.neverOwned || m.view.Steady() || p.sending.ackReceived
}

// Tick lets time pass.
func (m *Machine) Tick(now int64) []Outbound {
	m.publishConfirmations()
	if was := m.unconfirmed; m.checkIsolation(now) && !was {
		return m.RevokeAll(now)
	}
	for _, p := range m.sortedPeers {
		m.releaseTo(now, p)
	}
	m.advance(now)
	m.forgetConfirmations(now)
	if m.seq == 0 {
		return nil
	}
	return m.pingPeers(now, false)
}
