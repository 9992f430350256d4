package quota

import (
	"math"
	"time"
)

// Tick does what is due and returns the responses to send and the requests to the holder. Each response has all pushes for
// one Envoy.
func (b *Ledger) Tick(now int64) Work {
	b.work.Responses, b.pushes = b.work.Responses[:0], b.pushes[:0]
	if now >= b.nextAt {
		b.nextAt = math.MaxInt64
		for i := 0; i < len(b.list); i++ {
			a := b.list[i]
			switch {
			case len(a.lines) == 0 && (now >= min(a.end, a.emptyUntil) || a.quota.Unlimited):
				b.drop(now, i)
				i--
			case a.quota.Unlimited:
			case now >= a.scheduled:
				a.step(now)
			default:
				b.due(a.scheduled)
			}
		}
		b.send(now)
	}
	if b.retiring {
		b.asks, b.demands = b.asks[:0], b.demands[:0]
	}
	b.work.Asks, b.asks = b.asks, b.work.Asks[:0]
	b.work.Returns, b.returns = b.returns, b.work.Returns[:0]
	b.work.Demands, b.demands = b.demands, b.work.Demands[:0]
	return b.work
}

// drop removes an allotment that no Envoy uses.
func (b *Ledger) drop(now int64, i int) {
	a := b.list[i]
	a.dropped = true
	a.release(now, a.ahead)
	a.finish()
	reserved := min(a.next, a.ahead) // for leases of closed streams
	b.stats.Stranded += reserved
	b.giveBack(WindowHits{Key: a.key, Window: a.window + 1, Hits: a.next - reserved})
	delete(b.allotments, a.key)
	b.list[i] = b.list[len(b.list)-1]
	b.list = b.list[:len(b.list)-1]
}

// enqueue makes the line's stream send.
func (b *Ledger) enqueue(l *line) {
	s := l.stream
	if !l.queued {
		l.queued = true
		s.wants = append(s.wants, l)
	}
	if !s.queued {
		s.queued = true
		b.sending = append(b.sending, s)
	}
	b.due(s.sentAt + int64(spacing))
}

// send makes the responses of all streams that may be sent to.
func (b *Ledger) send(now int64) {
	later := b.sending[:0]
	for _, s := range b.sending {
		if at := s.sentAt + int64(spacing); now < at && s.sentAt != 0 {
			b.due(at)
			later = append(later, s)
			continue
		}
		s.queued = false
		b.respond(now, s)
	}
	b.sending = later
}

// respond makes the response for one stream.
func (b *Ledger) respond(now int64, s *stream) {
	first := len(b.pushes)
	for _, l := range s.wants {
		l.queued = false
		waited := l.waits()
		p, ok := l.allotment.push(now, l, s.serial+1)
		if !ok {
			continue
		}
		b.pushes = append(b.pushes, p)
		if !waited && l.waits() && p.Kind != Abandon {
			s.unacked = append(s.unacked, l)
		}
	}
	s.wants = s.wants[:0]
	if len(b.pushes) == first {
		return
	}
	s.serial++
	s.sentAt = now
	s.waiting = append(s.waiting, sentResponse{s.serial, now})
	b.work.Responses = append(b.work.Responses, Response{Stream: s.id, Serial: s.serial, Pushes: b.pushes[first:len(b.pushes):len(b.pushes)]})
}

// push turns what a line wants into a push, and charges it. It returns false if nothing is to be sent.
func (a *allotment) push(now int64, l *line, serial uint64) (p Push, ok bool) {
	kind := l.want
	l.want = 0
	p = Push{Stream: l.stream.id, Key: a.key, Kind: kind}
	switch kind {
	case Pair:
		ok = a.pushPair(now, l, serial, &p)
	case Same:
		if a.ledger.retiring {
			p.Tokens, p.TTL = uint32(l.size), ttl(now, a.end)
			if ok = a.cuttable(now, l); ok {
				l.cut(now, serial, p.TTL)
			}
			break
		}
		p.Tokens, p.TTL = uint32(l.size), ttl(now, a.nextEnd())
		if ok = l.kind == Pair && l.endsAt <= a.end && l.alive() <= a.freeAhead() && l.endsAt-now >= int64(extendBefore); ok {
			l.extend(now, serial, p.TTL)
		}
	case Deny:
		ok = true
		a.pushDeny(now, l, serial, &p)
	case Allow:
		ok = true
		p.TTL = allowTTL
		l.replace(now, Allow, serial, 0, p.TTL)
	case Abandon:
		a.settle(l)
		if c := a.remove(now, l); c != nil {
			l.stream.ending = append(l.stream.ending, endingLease{serial, a, c})
		}
		delete(l.stream.lines, a.key)
		return p, true
	}
	a.settle(l)
	return p, ok
}

// pushPair makes the push of a lease, as large as what is free allows. The TTL reaches into the next window if the lease
// and what it replaces can be charged to that as well.
func (a *allotment) pushPair(now int64, l *line, serial uint64, p *Push) bool {
	n := min(l.lot, a.free())
	p.TTL = ttl(now, a.nextEnd())
	before, room := l.rest()+l.old+l.carried, a.freeAhead()+l.counted.ahead
	switch covered := room - min(room, before); {
	case n <= covered:
	case n > 0 && a.awaitCover(now, l, before+n):
		return false
	case a.end-now <= int64(coverBefore) && covered >= n-n/5: // a smaller lease that lasts is better than one that ends before the window
		n = covered
	default:
		p.TTL = ttl(now, a.end)
	}
	l.awaits = 0
	switch {
	case n == 0 && l.live == 0 && (l.alive() > 0 || l.endsAt <= a.end):
		a.pushDeny(now, l, serial, p) // also so that the assignment before does not end: then the Envoy's fallback would decide
		return true
	case n == 0 || p.TTL < time.Second:
		return false
	}
	p.Tokens = uint32(n)
	l.replace(now, Pair, serial, n, p.TTL)
	a.ledger.stats.Pushed += n
	return true
}

// pushDeny makes the push of a refusal. It costs nothing, so its TTL is as long as a lease's may be.
func (a *allotment) pushDeny(now int64, l *line, serial uint64, p *Push) {
	p.Kind, p.Tokens, p.TTL = Deny, 0, max(time.Second, ttl(now, a.nextEnd()))
	l.replace(now, Deny, serial, 0, p.TTL)
}
