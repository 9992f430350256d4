package model

// open opens a stream. One that the server refuses ends before a message is sent.
func (p *Proxy) open() {
	if !p.refused {
		p.opened++
		p.stream = p.opened
	}
}

// send sends a message on the open stream. Without one it is lost.
func (p *Proxy) send(now int64, usages []ReportedUsage) {
	if p.stream > 0 {
		p.sent = append(p.sent, UsageReport{At: now, Stream: p.stream, Usages: usages})
	}
}

// Sent returns the messages sent since the last call, in order.
func (p *Proxy) Sent() []UsageReport {
	sent := p.sent
	p.sent = nil
	return sent
}

// EndStream ends the open stream, as the server or a broken connection does. Assignments go on. The next report of all
// ids opens another stream; until then the first hits of new ids are lost.
func (p *Proxy) EndStream(now int64) {
	p.Advance(now)
	p.stream = 0
}

// Refuse ends the open stream and makes the server refuse new ones, or accept them again. The usage of each report that
// finds the server refusing is lost.
func (p *Proxy) Refuse(now int64, refused bool) {
	p.Advance(now)
	p.refused = refused
	if refused {
		p.stream = 0
	}
}

// Pause stops the process, as SIGSTOP does, until Resume. Reports and the ends of assignments wait.
func (p *Proxy) Pause(now int64) {
	p.Advance(now)
	p.paused = true
}

// Resume continues a stopped process. The main thread does late what was due; workers decide by what they have until its
// publications arrive.
func (p *Proxy) Resume(now int64) {
	p.paused = false
	late := p.expiry
	for i := range late {
		late[i].at = max(late[i].at, now) // a common lower bound keeps the order of the heap
	}
	if p.tick > 0 {
		p.tick = max(p.tick, now)
	}
	p.Advance(now)
}

// Crashed reports whether Envoy has ended with a fault.
func (p *Proxy) Crashed() bool { return p.crashed }

// Streams returns how many streams were opened so far.
func (p *Proxy) Streams() int { return p.opened }

// expiry is the end of an assignment.
type expiry struct {
	at       int64
	id       string
	bucket   *bucket // the assignment has ended before if the main thread has another one
	fallback bool    // it is that of the expired fallback
}

// expiries is a heap, the first end at the top.
type expiries []expiry

func (e expiries) Len() int           { return len(e) }
func (e expiries) Less(i, j int) bool { return e[i].at < e[j].at }
func (e expiries) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *expiries) Push(x any)        { *e = append(*e, x.(expiry)) }
func (e *expiries) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}
