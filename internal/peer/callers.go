package peer

import (
	"sync"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// frameCaller is the type of a frame with a callerMessage, since version 3.
const frameCaller = 49

const (
	// callerRepeat is the time after which a message about a caller is repeated.
	callerRepeat = 500 * time.Millisecond
	// memberDead is how long a member has to be absent before it has no connections of callers any more.
	memberDead = 10 * time.Second
	// maxInquiries is the most callers that one member asks about at a time. The slots of others come back when they lapse.
	maxInquiries = 1 << 12
)

// callerKind is the kind of a callerMessage.
type callerKind uint8

const (
	callerAsk  callerKind = 1 // has the receiver a connection of the caller that was opened before that time?
	callerHere callerKind = 2 // reply: it has, and will notice the caller's end
	callerNone callerKind = 3 // reply: it has none
	callerDead callerKind = 4 // the caller is dead: release what it made before that time
	callerDone callerKind = 5 // reply: the receiver will
)

// callerMessage is a message between members about a caller.
type callerMessage struct {
	kind   callerKind
	caller uint64 // as owner.Node.ReleaseCaller has it
	before int64  // by the clock of the member that asks
}

const callerSize = 25

// appendCaller appends a frame with m, which is sent at now.
func appendCaller(b []byte, m callerMessage, now int64) []byte {
	w, at := beginFrame(b, frameCaller)
	w = w.U16(callerSize).I64(now).U8(byte(m.kind)).U64(m.caller).I64(m.before)
	w.EndLen32(at)
	return w
}

// parseCaller reads the payload of a frame. sent is the sender's clock at sending.
func parseCaller(b []byte) (m callerMessage, sent int64, err error) {
	r := wire.NewReader(b)
	head := r.Record(int(r.U16()))
	sent = head.I64()
	m.kind, m.caller, m.before = callerKind(head.U8()), head.U64(), head.I64()
	if err := r.Err(); err != nil {
		return m, 0, err
	}
	return m, sent, head.Err()
}

// callers finds out which callers are dead. A caller has died when no member has a connection of it that is older than
// the one whose end a member has seen. A member that does not reply counts as having one, until it has been absent for
// memberDead. The members are notified of the death until each has confirmed it.
type callers struct {
	patience  time.Duration // memberDead, except in tests
	mu        sync.Mutex
	inquiries map[uint64]*inquiry // guarded by mu, by caller
	absent    map[ring.ID]absence // guarded by mu: members that are no longer in the view
	present   map[ring.ID]*link   // guarded by mu: links to those that are
}

type absence struct{ since, at int64 } // by the monotonic clock, and by Node's

// inquiry is about one caller that may have died.
type inquiry struct {
	before  int64
	began   int64 // by the monotonic clock, as all times below
	diedAt  int64 // when it turned out to be dead; 0: not yet
	members map[ring.ID]*inquired
}

// inquired is one member's part of an inquiry.
type inquired struct {
	sent int64 // the last message; 0: none
	done bool  // it has replied, or confirmed the death
}

// callerOut is a message to be sent after mu is released.
type callerOut struct {
	to *link
	m  callerMessage
}

// CallerGone begins to find out whether a caller has died, which owner.Who names. This member has seen the end of one
// of its connections, has no older one, and knows that it lived that long ago. It does not block.
func (p *Peer) CallerGone(caller uint64, ago time.Duration) {
	p.callers.begin(caller, p.clock.now()-int64(ago), p.clock.mono(), false)
	p.tickCallers()
}

// begin adds an inquiry. If the caller is known to be dead, the members only have to be notified.
func (c *callers) begin(caller uint64, before, mono int64, dead bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.inquiries[caller]
	switch {
	case q != nil && q.before >= before:
		return
	case q == nil && len(c.inquiries) >= maxInquiries:
		return
	case c.inquiries == nil:
		c.inquiries = map[uint64]*inquiry{}
	}
	q = &inquiry{before: before, began: mono, members: map[ring.ID]*inquired{}}
	if dead {
		q.diedAt = mono
	}
	c.inquiries[caller] = q
}

// tickCallers sends the messages about callers that are due.
func (p *Peer) tickCallers() {
	now, mono := p.clock.now(), p.clock.mono()
	for _, d := range p.callers.takeDead(mono) {
		caller := owner.MemberCallers(d.member)
		p.callers.begin(caller, d.at, mono, true)
		p.o.Node.ReleaseCaller(now, caller, d.at)
	}
	out, dead := p.callers.due(*p.links.Load(), mono)
	for _, m := range dead {
		p.o.Node.ReleaseCaller(now, m.caller, m.before)
	}
	for i := range out {
		out[i].to.enqueueCaller(out[i].m)
	}
}

// deadMember is a member that has been absent for memberDead, since at.
type deadMember struct {
	member ring.ID
	at     int64
}

// setMembers records which members are in the view, and since when others are absent.
func (c *callers) setMembers(links map[ring.ID]*link, now, mono int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.present {
		if links[id] == nil {
			if c.absent == nil {
				c.absent = map[ring.ID]absence{}
			}
			c.absent[id] = absence{mono, now}
		}
	}
	for id := range links {
		delete(c.absent, id)
	}
	c.present = links
}

// takeDead returns the members that are dead now.
func (c *callers) takeDead(mono int64) (dead []deadMember) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, a := range c.absent {
		if mono-a.since >= int64(c.patience) {
			delete(c.absent, id)
			dead = append(dead, deadMember{id, a.at})
		}
	}
	return dead
}

// due returns the messages that are due, and the callers that have turned out to be dead.
func (c *callers) due(links map[ring.ID]*link, mono int64) (out []callerOut, dead []callerMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for caller, q := range c.inquiries {
		m := callerMessage{kind: callerAsk, caller: caller, before: q.before}
		if q.diedAt == 0 && c.askedAll(q, links) {
			q.diedAt = mono
			clear(q.members)
			dead = append(dead, m)
		}
		if q.diedAt > 0 {
			m.kind = callerDead
			if len(q.members) > 0 && c.askedAll(q, links) || len(links) == 0 || mono-q.diedAt > int64(claim.MarkLife) {
				delete(c.inquiries, caller)
				continue
			}
		}
		out = q.messages(links, m, mono, out)
	}
	return out, dead
}

// askedAll reports whether all members have replied, or are dead. It is called with mu held.
func (c *callers) askedAll(q *inquiry, links map[ring.ID]*link) bool {
	for id := range links {
		if x := q.members[id]; x == nil || !x.done {
			return false
		}
	}
	for id := range c.absent {
		if x := q.members[id]; q.diedAt == 0 && (x == nil || !x.done) {
			return false
		}
	}
	return true
}

// messages appends m to all members that have not replied.
func (q *inquiry) messages(links map[ring.ID]*link, m callerMessage, mono int64, out []callerOut) []callerOut {
	for id, l := range links {
		x := q.members[id]
		if x == nil {
			x = &inquired{}
			q.members[id] = x
		}
		if x.done || x.sent > 0 && mono-x.sent < int64(callerRepeat) {
			continue
		}
		x.sent = mono
		out = append(out, callerOut{l, m})
	}
	return out
}

// reply records the reply of a member.
func (c *callers) reply(from ring.ID, m callerMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.inquiries[m.caller]
	if q == nil || q.before != m.before {
		return
	}
	x := q.members[from]
	switch {
	case x == nil:
	case m.kind == callerHere && q.diedAt == 0:
		delete(c.inquiries, m.caller)
	case m.kind == callerNone && q.diedAt == 0, m.kind == callerDone && q.diedAt > 0:
		x.done = true
	}
}

// enqueueCaller queues m, unless that is not possible now; then it is repeated. Such messages are few.
func (l *link) enqueueCaller(m callerMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.live || len(l.out) > 2*l.bounds.bytes {
		return
	}
	l.wakeWriter()
	l.out = appendCaller(l.out, m, l.clock.now())
}

// receiveCaller processes a message about a caller. Its time is converted to this member's clock.
func (s *server) receiveCaller(now int64, payload []byte) {
	m, sent, err := parseCaller(payload)
	if err != nil {
		s.countRefused(parseErrorReason(err))
		return
	}
	if reason := s.refusalReason(now, sent, false); reason != "" {
		s.countRefused(reason)
		return
	}
	p := s.p
	before := m.before - int64(p.skews.of(s.from))
	switch m.kind {
	case callerAsk:
		m.kind = callerNone
		if p.o.HasCaller(m.caller, time.Duration(now-before)) {
			m.kind = callerHere
		}
	case callerDead:
		m.kind = callerDone
		p.o.Node.ReleaseCaller(now, m.caller, before)
	default:
		p.callers.reply(s.from, m)
		p.tickCallers()
		return
	}
	if l := (*p.links.Load())[s.from]; l != nil {
		l.enqueueCaller(m)
	}
}
