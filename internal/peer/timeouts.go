package peer

import (
	"math"
	"slices"
	"time"
)

const (
	// aliveFor is how long a member that received requests may be silent and still counts as alive. Processes of a busy
	// machine may not run for tens of milliseconds. A stopped member delays requests by this time once.
	aliveFor = 250 * time.Millisecond
	// resolveTime is how long a result that Node has returned may take to arrive.
	resolveTime = 20 * time.Millisecond
	// minQueue is how many groups may always wait on one link.
	minQueue = 64
	// paceSamples is the number of replies over which a link's pace is averaged.
	paceSamples = 64
)

// lastSignOfLife returns when the member last gave a sign of life.
func (l *link) lastSignOfLife() int64 { return max(l.lastRead.Load(), l.lastHeartbeatReply.Load()) }

// silentFor returns for how long requests have been waiting without a sign of life from the member.
func (l *link) silentFor(now int64) time.Duration {
	return time.Duration(now - max(l.lastSignOfLife(), l.waitingSince.Load()))
}

// isAlive reports whether the member has a stream and is not silent.
func (l *link) isAlive(now int64) bool { return l.connected.Load() && l.silentFor(now) < aliveFor }

// longestSilence returns the longest time since the last sign of life of a member, whether or not requests wait for it.
// Heartbeats come every Detection.Heartbeat.
func (p *Peer) longestSilence(now int64) (longest time.Duration) {
	for _, l := range *p.links.Load() {
		longest = max(longest, time.Duration(now-l.lastSignOfLife()))
	}
	return longest
}

// queueTooLong reports whether one more group would not be answered within ttl at the current pace. It is called with
// l.mu held.
func (l *link) queueTooLong(ttl int64) bool {
	n := l.sentGroups.len()
	return n >= minQueue && int64(n)*l.pace > ttl
}

// recordPace records that a reply took this long with ahead groups before it on the link. It is called with l.mu held.
func (l *link) recordPace(took int64, ahead int) {
	if ahead < minQueue {
		l.pace -= l.pace / paceSamples // there is hardly a queue
		return
	}
	l.pace += (took/int64(ahead) - l.pace) / paceSamples
}

// timeoutStatus returns the status of a group that the member did not answer in time.
func (l *link) timeoutStatus(now int64) forwardStatus {
	if l.isAlive(now) {
		return forwardLate
	}
	return forwardTimeout
}

// expire handles what is still open at checkAt. Groups of members that are alive wait until giveUpAt, and are checked
// again when one of these members would be silent for too long. A local result that cannot be canceled is about to
// arrive, so it has resolveTime more. It is called with mu held, as the methods below.
func (c *call) expire() {
	next := int64(math.MaxInt64)
	for n := range c.groups {
		next = min(next, c.expireGroup(n))
	}
	if slices.ContainsFunc(c.slots, func(w slot) bool { return w.pending }) {
		next = min(next, c.expireLocal())
	}
	if c.checkAt = next; c.now >= c.giveUpAt {
		c.expired, c.checkAt = true, c.now+int64(resolveTime)
	}
}

// expireGroup fails group n, or returns when to check it again.
func (c *call) expireGroup(n int) (next int64) {
	g := &c.groups[n]
	if g.stage == groupDone {
		return math.MaxInt64
	}
	l := g.link
	if g.stage == groupUnsent {
		l = (*c.p.links.Load())[g.to]
	}
	status := forwardTimeout
	if l != nil && l.isAlive(c.now) {
		if c.now < c.giveUpAt {
			return min(c.giveUpAt, c.now+int64(aliveFor-l.silentFor(c.now)))
		}
		status = forwardLate
	}
	switch {
	case g.stage == groupUnsent:
		c.unsent--
	case !l.forgetGroup(g.id, c.doubt(g, status)):
		return c.now + int64(resolveTime) // its result is about to arrive
	}
	c.completeGroup(n, status)
	return math.MaxInt64
}

// expireLocal fails the local results, or returns when to check them again: Node waits for other members, too.
func (c *call) expireLocal() (next int64) {
	p := c.p
	most := p.o.Detection.Heartbeat() + aliveFor
	if silence := p.longestSilence(c.now); c.now < c.giveUpAt && silence < most {
		return min(c.giveUpAt, c.now+int64(most-silence))
	}
	next = math.MaxInt64
	for i := range c.slots {
		w := &c.slots[i]
		switch {
		case !w.pending:
			continue
		case p.o.Node.Cancel(c.reqs[i].Key, w):
		case c.expired:
			c.leaked = true
		default: // its result is about to arrive
			next = c.now + int64(resolveTime)
			continue
		}
		w.pending = false
		c.open--
		p.m.waits[waitExpired].Inc()
		c.degrade(i)
	}
	return next
}
