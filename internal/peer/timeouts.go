package peer

import (
	"math"
	"time"
)

const (
	// aliveFor is how long a member that is asked may be silent and is still taken for alive. Processes of a busy machine
	// do not run for tens of milliseconds; a stopped one costs questions that much once.
	aliveFor = 250 * time.Millisecond
	// resolveTime is how long an answer that Node has given may take to come through.
	resolveTime = 20 * time.Millisecond
	// minQueue is how many groups may always be out on one link.
	minQueue = 64
)

// lastSignOfLife is when the member last gave a sign of life.
func (l *link) lastSignOfLife() int64 { return max(l.lastRead.Load(), l.lastConfirmed.Load()) }

// silentFor is for how long the member has been asked without a sign of life.
func (l *link) silentFor(now int64) time.Duration {
	return time.Duration(now - max(l.lastSignOfLife(), l.waitingSince.Load()))
}

// isAlive reports whether the member is taken for alive: it has a stream and is not silent.
func (l *link) isAlive(now int64) bool { return l.connected.Load() && l.silentFor(now) < aliveFor }

// longestSilence is the longest time for which one of the members was not heard, asked or not: heartbeats are a beat apart.
func (p *Peer) longestSilence(now int64) (longest time.Duration) {
	for _, l := range *p.links.Load() {
		longest = max(longest, time.Duration(now-l.lastSignOfLife()))
	}
	return longest
}

// queueTooLong reports whether one more group would not be answered within ttl, by how long the groups before took. It is called
// with mu held.
func (l *link) queueTooLong(ttl int64) bool {
	n := l.sentGroups.len()
	return n >= minQueue && int64(n)*l.pace > ttl
}

// recordPace notes that a group was answered after took, with ahead groups before it on the link. It is called with mu held.
func (l *link) recordPace(took int64, ahead int) {
	if ahead < minQueue {
		l.pace -= l.pace / paceSamples // there is hardly a queue
		return
	}
	l.pace += (took/int64(ahead) - l.pace) / paceSamples
}

// paceSamples is the number of answers over which a link's pace is averaged.
const paceSamples = 64

// timeoutStatus is what became of a question that was not answered in time.
func (p *Peer) timeoutStatus(l *link, now int64) forwardStatus {
	if l.isAlive(now) {
		return forwardLate
	}
	return forwardTimeout
}

// expire looks at what has not been answered by c.end. What waits for members that are alive goes on waiting until c.last,
// and is looked at again when one of them would be silent for too long. A later answer that cannot be cancelled is on its
// way and is waited for once more.
func (p *Peer) expire(c *call) {
	end := int64(math.MaxInt64)
	for g := range c.groups {
		end = min(end, p.expireGroup(c, g))
	}
	if len(c.local) > 0 {
		end = min(end, p.expireLocal(c))
	}
	if c.checkAt = end; c.now >= c.giveUpAt {
		c.expired, c.checkAt = true, c.now+int64(resolveTime)
	}
}

// expireGroup returns until when group g may go on.
func (p *Peer) expireGroup(c *call, g int) (end int64) {
	a := &c.groups[g]
	if a.stage == groupDone {
		return math.MaxInt64
	}
	l := a.link
	if a.stage == groupUnsent {
		l = (*p.links.Load())[a.to]
	}
	r := forwardTimeout
	if l != nil && l.isAlive(c.now) {
		if c.now < c.giveUpAt {
			return min(c.giveUpAt, c.now+int64(aliveFor-l.silentFor(c.now)))
		}
		r = forwardLate
	}
	if a.stage == groupSent {
		l.forgetGroup(a.id)
	} else {
		c.unsent--
	}
	p.completeGroup(c, g, r)
	return math.MaxInt64
}

// expireLocal returns until when the answers that this member's Node gives later may go on: it waits for other members, too.
func (p *Peer) expireLocal(c *call) (end int64) {
	if quiet := p.longestSilence(c.now); c.now < c.giveUpAt && quiet < keepaliveEvery+aliveFor {
		return min(c.giveUpAt, c.now+int64(keepaliveEvery+aliveFor-quiet))
	}
	end = math.MaxInt64
	for n := range c.local {
		w := &c.local[n]
		switch {
		case w.done:
			continue
		case c.expired:
			p.waits.abandon(w.ticket)
		case p.o.Node.Cancel(w.ticket):
			p.waits.forget(w.ticket)
		default:
			end = c.now + int64(resolveTime)
			continue
		}
		w.done = true
		c.open--
		p.m.waits[waitExpired].Inc()
		c.as[w.index] = p.degrade(&c.qs[w.index])
	}
	return end
}
