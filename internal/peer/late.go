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
	// leastQueue is how many groups may always be out on one link.
	leastQueue = 64
)

// sign is when the member last gave a sign of life.
func (l *link) sign() int64 { return max(l.heard.Load(), l.proved.Load()) }

// silence is for how long the member has been asked without a sign of life.
func (l *link) silence(now int64) time.Duration {
	return time.Duration(now - max(l.sign(), l.asked.Load()))
}

// lives reports whether the member is taken for alive: it has a stream and is not silent.
func (l *link) lives(now int64) bool { return l.connected.Load() && l.silence(now) < aliveFor }

// quiet is the longest time for which one of the members was not heard, asked or not: heartbeats are a beat apart.
func (p *Peer) quiet(now int64) (longest time.Duration) {
	for _, l := range *p.links.Load() {
		longest = max(longest, time.Duration(now-l.sign()))
	}
	return longest
}

// tooMany reports whether one more group would not be answered within ttl, by how long the groups before took. It is called
// with mu held.
func (l *link) tooMany(ttl int64) bool {
	n := l.tickets.len()
	return n >= leastQueue && int64(n)*l.pace > ttl
}

// paced notes that a group was answered after took, with ahead groups before it on the link. It is called with mu held.
func (l *link) paced(took int64, ahead int) {
	if ahead < leastQueue {
		l.pace -= l.pace / paceOver // there is hardly a queue
		return
	}
	l.pace += (took/int64(ahead) - l.pace) / paceOver
}

// paceOver is the number of answers over which a link's pace is averaged.
const paceOver = 64

// missed is what became of a question that was not answered in time.
func (p *Peer) missed(l *link, now int64) result {
	if l.lives(now) {
		return tooLate
	}
	return timeout
}

// expire looks at what has not been answered by c.end. What waits for members that are alive goes on waiting until c.last,
// and is looked at again when one of them would be silent for too long. A later answer that cannot be cancelled is on its
// way and is waited for once more.
func (p *Peer) expire(c *call) {
	end := int64(math.MaxInt64)
	for g := range c.groups {
		end = min(end, p.expireGroup(c, g))
	}
	if len(c.later) > 0 {
		end = min(end, p.expireLater(c))
	}
	if c.end = end; c.now >= c.last {
		c.over, c.end = true, c.now+int64(resolveTime)
	}
}

// expireGroup returns until when group g may go on.
func (p *Peer) expireGroup(c *call, g int) (end int64) {
	a := &c.groups[g]
	if a.stage == settled {
		return math.MaxInt64
	}
	l := a.link
	if a.stage == unsent {
		l = (*p.links.Load())[a.to]
	}
	r := timeout
	if l != nil && l.lives(c.now) {
		if c.now < c.last {
			return min(c.last, c.now+int64(aliveFor-l.silence(c.now)))
		}
		r = tooLate
	}
	if a.stage == sent {
		l.withdraw(a.ticket)
	} else {
		c.unsent--
	}
	p.settle(c, g, r)
	return math.MaxInt64
}

// expireLater returns until when the answers that this member's Node gives later may go on: it waits for other members, too.
func (p *Peer) expireLater(c *call) (end int64) {
	if quiet := p.quiet(c.now); c.now < c.last && quiet < beat+aliveFor {
		return min(c.last, c.now+int64(beat+aliveFor-quiet))
	}
	end = math.MaxInt64
	for n := range c.later {
		w := &c.later[n]
		switch {
		case w.settled:
			continue
		case c.over:
			p.waits.abandon(w.ticket)
		case p.o.Node.Cancel(w.ticket):
			p.waits.forget(w.ticket)
		default:
			end = c.now + int64(resolveTime)
			continue
		}
		w.settled = true
		c.open--
		p.m.waits[expired].Inc()
		c.as[w.index] = p.fallback(&c.qs[w.index])
	}
	return end
}
