package handoff

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/keyward/keyward/ring"
)

const (
	beat     = int64(500 * time.Millisecond) // between two pings
	resend   = int64(time.Second)            // an Ack that has not arrived by then is repeated with all before it
	memories = 8                             // rings that are remembered
)

// Machine keeps one member's tokens. It is passive: it is given the time and what arrives, and returns what to send. It
// is not safe for concurrent use; its Views are.
type Machine struct {
	o        Options
	standing Membership
	view     *OwnershipView

	adopted int64 // when the present ring was
	seq     uint64
	epoch   uint16
	virgin  bool       // never held a token
	none    bool       // nobody confirmed self at the last Tick
	behind  bool       // confirmations have come that the view's reach lacks
	dropped *ring.Ring // the last base that was given up; nil: none since a ring was complete
	fenced  int64      // no member that was lost can be using its tokens any more from then on
	rounds  uint64     // of pings: what they are apart is mixed from it

	history   []*ring.Ring // the newest first, the present one too
	peers     map[ring.ID]*peer
	order     []*peer        // in the order of their names, so that equal histories give equal traces
	confirmed map[boot]int64 // when self last confirmed each boot of each member
	gone      map[boot]int64 // those that went without a farewell: when they were missed
}

// boot is one life of one member.
type boot struct {
	id   ring.ID
	inst uint64
}

// peer is what is known of a live member.
type peer struct {
	LivePeer
	heard   bool   // the fields below were heard from it
	ring    uint64 // by its last Ping
	seq     uint64
	virgin  bool
	owed    bool  // it lacks an Ack from self
	bare    bool  // it lacks copies that follow it
	confirm int64 // latest of self's pings that it confirmed, by self's clock; 0: none
	due     int64 // when self pings it again
	new     bool  // it was not on the ring before this one
	lead    lead

	acked  bool // for the present ring and seq
	warmed bool // it has sent all of its Shadow copies
	copied bool // all of its Extra ones, for the present ring and seq
	in     incoming
	copies incoming // the Extra ones
	out    outgoing
}

// NewMachine is a Machine without a ring.
func NewMachine(o Options) *Machine {
	if o.OwnershipTTL <= 0 {
		o.OwnershipTTL = 1500 * time.Millisecond
	}
	if o.TakeoverDelay <= 0 {
		o.TakeoverDelay = 2 * time.Second
	}
	m := &Machine{o: o, virgin: true, peers: map[ring.ID]*peer{}, confirmed: map[boot]int64{}}
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
	m.standing = s
	m.meet(s.Peers)
	m.miss(now, r)
	if v := *m.view; len(v.losses) > 0 {
		v.losses = m.unlost(v.losses)
		m.view = &v
	}
	if same {
		m.publish()
	} else {
		m.adopt(now, r)
		for _, p := range m.order { // some may have said before that they go by r
			m.release(now, p)
		}
	}
	m.settle(now)
	return m.ping(now, true)
}

// meet replaces the members that are live.
func (m *Machine) meet(peers []LivePeer) {
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
	m.order = slices.SortedFunc(maps.Values(next), func(a, b *peer) int { return cmp.Compare(a.ID, b.ID) })
}

// adopt makes r the present ring. Tokens stay where they are.
func (m *Machine) adopt(now int64, r *ring.Ring) {
	v := *m.view
	before := v.ring
	v.ring, v.self = r, r.Index(m.o.Self)
	m.adopted = now
	m.history = append([]*ring.Ring{r}, m.history...)
	m.history = m.history[:min(len(m.history), memories)]
	v.history = m.history[1:]
	v.steps = append(slices.Clone(v.steps), step{ring: r, self: v.self, released: make([]bool, r.Len())})
	if len(v.steps) > maxSteps || m.meets(before, r) {
		m.drop(&v)
		v.steps = v.steps[len(v.steps)-1:]
	}
	m.fenced = 0
	m.seq++
	for id, p := range m.peers {
		i := r.Index(id)
		p.new = seat(before, id, p.BootID) < 0 || p.new && !p.out.done
		p.restart()
		p.owed = true
		p.out.restart(i >= 0)
		// Fresh members have nobody's tokens, so a right need not wait for their first confirmation.
		if i >= 0 && (m.virgin || p.new && p.virgin && p.heard) {
			p.confirm = max(p.confirm, now)
		}
		if i >= 0 && p.Old {
			v.steps[len(v.steps)-1].released[i] = true // it takes its keys over without being asked
		}
	}
	m.view = &v
	m.publish()
}

// seat is the place of a boot of a member on r; -1 if that boot has none.
func seat(r *ring.Ring, id ring.ID, inst uint64) int {
	i := r.Index(id)
	if i >= 0 && r.At(i).BootID != inst {
		return -1
	}
	return i
}

// meets says whether self comes out of the smaller part of a divided cluster: the tokens that it made anew there are
// those that the larger part has, too, and go on using until it has heard of the new ring. Self's have to yield.
func (m *Machine) meets(before, r *ring.Ring) bool {
	if before.Len() == 0 || 2*before.Len() > m.view.nref {
		return false
	}
	for i := range r.Len() {
		a := r.At(i)
		if a.ID == m.o.Self || seat(before, a.ID, a.BootID) >= 0 {
			continue
		}
		if p := m.peers[a.ID]; p == nil || !p.heard || !p.virgin {
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
	v.epoch, v.seq, v.nref, v.joined = m.epoch, m.seq, m.standing.NRef, m.standing.Joined
	v.steps = slices.Clone(v.steps)
	if n := len(v.steps); n > 0 && v.steps[n-1].epoch == 0 {
		v.steps[n-1].epoch = m.epoch
	}
	v.live = make(map[ring.ID]bool, len(m.peers))
	for id := range m.peers {
		v.live[id] = true
	}
	v.reach, m.behind = m.reach(&v), false
	m.view = &v
	return &v
}

// reach collects who confirms self.
func (m *Machine) reach(v *OwnershipView) reach {
	r := reach{nref: v.NRef(), policy: m.o.Policy, until: make([]int64, 0, v.ring.Len())}
	for i := range v.ring.Len() {
		x := v.ring.At(i)
		if x.ID == m.o.Self {
			continue
		}
		r.others++
		p := m.peers[x.ID]
		switch {
		case p == nil:
		case p.Old:
			r.old++
		case p.confirm > 0:
			r.until = append(r.until, p.confirm+int64(m.o.OwnershipTTL))
		}
	}
	// N_ref may still count members that leave. When somebody is lost, as it shows if N_ref exceeds the ring by more than those,
	// it cannot be told whether it counts them.
	leaving, missing := m.leaving(v.ring), r.nref-v.ring.Len()
	if missing > len(leaving) || m.bereaved(v.ring) {
		missing = 0
	}
	for _, p := range leaving {
		if missing > 0 && p.confirm > 0 {
			missing--
			r.until = append(r.until, p.confirm+int64(m.o.OwnershipTTL))
		}
	}
	slices.SortFunc(r.until, func(a, b int64) int { return cmp.Compare(b, a) })
	return r
}

// leaving are the live members that have left r.
func (m *Machine) leaving(r *ring.Ring) []*peer {
	var ps []*peer
	for _, p := range m.order {
		if p.State == Leaving && r.Index(p.ID) < 0 {
			ps = append(ps, p)
		}
	}
	return ps
}

// ping is the heartbeat to every live member, or to those whose turn it is.
func (m *Machine) ping(now int64, all bool) []Outbound {
	m.rounds++
	turn := func(p *peer) bool { return !p.Old && (all || now >= p.due) }
	n := 0
	for _, p := range m.order {
		if turn(p) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	outs := make([]Outbound, 0, n)
	for _, p := range m.order {
		if turn(p) {
			outs = append(outs, Outbound{p.ID, m.beat(now, p)})
		}
	}
	return outs
}

// beat is the heartbeat to p. Until the next one it is a fifth more or less than beat, so that members which start together
// do not beat together; the mix needs no randomness.
func (m *Machine) beat(now int64, p *peer) Message {
	x := (m.o.BootID + m.rounds) * 0x9E3779B97F4A7C15 >> 40
	p.due = now + beat - beat/5 + int64(x)%(beat*2/5)
	msg := Message{Kind: Ping, Ring: m.view.ring.Fingerprint(), Seq: m.seq, Sent: now, Now: now}
	switch {
	case m.owed(p):
		msg.Flags |= NeedsAck
	case p.acked && !p.copied:
		msg.Flags |= needsCopies
	}
	if m.virgin {
		msg.Flags |= NeverOwned
	}
	return msg
}

// owed says whether p has something for self that has not come yet.
func (m *Machine) owed(p *peer) bool {
	if m.view.self < 0 {
		return !p.warmed && p.State == Active && !m.standing.Leaving
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
		return m.pinged(now, p, msg)
	case Pong:
		if msg.Flags&Confirmed != 0 && msg.Sent <= now && msg.Sent > p.confirm {
			return m.confirmedBy(now, p, msg.Sent)
		}
	case OwnershipRequest:
		// It tells by which ring its sender goes, as a Ping does.
		p.heard, p.ring, p.seq = true, msg.Ring, msg.Seq
		m.release(now, p)
	case Chunk:
		p.incoming(msg).chunk(m, msg)
	case Ack:
		if p.incoming(msg).complete(m, msg) {
			m.acked(now, p, msg)
			return []Outbound{{p.ID, m.beat(now, p)}} // says that it came
		}
	}
	return nil
}

// confirmedBy takes p's confirmation of self's ping at sent. When p is one of those that self was apart from, what they
// have made anew is valid, and self's tokens are not, even though self's ring has never changed.
func (m *Machine) confirmedBy(now int64, p *peer, sent int64) []Outbound {
	if m.lapsed(now, p) && m.apart(now) {
		return m.RevokeAll(now)
	}
	lasts := p.confirm+int64(m.o.OwnershipTTL)-beat > now
	p.confirm, m.behind = sent, true
	if !lasts {
		m.catchUp()
	}
	return nil
}

// catchUp publishes the confirmations that have come. One that takes the place of another which holds for a beat longer waits for
// the next Tick: among many members this would be most of what an idle one does.
func (m *Machine) catchUp() {
	if !m.behind {
		return
	}
	v := *m.view
	v.reach, m.behind = m.reach(&v), false
	m.view = &v // only the reach is another, so the epoch stays
}

func (m *Machine) pinged(now int64, p *peer, msg *Message) []Outbound {
	if p.heard && msg.Seq < p.seq {
		return nil // overtaken by a later one
	}
	fresh := !p.heard || p.ring != msg.Ring || p.seq != msg.Seq
	p.heard, p.ring, p.seq, p.virgin = true, msg.Ring, msg.Seq, msg.Flags&NeverOwned != 0
	p.owed, p.bare = msg.Flags&NeedsAck != 0, msg.Flags&needsCopies != 0
	if !fresh {
		m.received(now, p)
	}
	m.release(now, p)
	m.settle(now)
	pong := Message{Kind: Pong, Ring: m.view.ring.Fingerprint(), Seq: msg.Seq, Sent: msg.Sent, Now: now}
	if m.confirms(p) {
		pong.Flags |= Confirmed
		m.confirmed[boot{p.ID, p.BootID}] = now
	}
	outs := []Outbound{{p.ID, pong}}
	// Self's own goes along if it is nearly due, so that of two members mostly one begins. And p can confirm self from now on if it
	// could not before.
	if now > p.due-beat/2 || fresh && p.ring == m.view.ring.Fingerprint() && p.confirm+beat < now {
		outs = append(outs, Outbound{p.ID, m.beat(now, p)})
	}
	return outs
}

// confirms says whether p may use its tokens as far as self is concerned: it has its place, and, coming back after
// others may have decided its keys, it has been told what they know.
func (m *Machine) confirms(p *peer) bool {
	i := m.view.ring.Index(p.ID)
	if i < 0 {
		return p.State == Leaving
	}
	if m.view.ring.At(i).BootID != p.BootID {
		return false
	}
	return !p.new || p.virgin || m.virgin || m.view.Steady() || p.out.done
}

// Tick lets time pass.
func (m *Machine) Tick(now int64) []Outbound {
	m.catchUp()
	if was := m.none; m.isolated(now) && !was {
		return m.RevokeAll(now)
	}
	for _, p := range m.order {
		m.release(now, p)
	}
	m.settle(now)
	m.forget(now)
	if m.seq == 0 {
		return nil
	}
	return m.ping(now, false)
}
