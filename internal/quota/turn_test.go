package quota

import (
	"testing"
	"time"
)

func TestTTL(t *testing.T) {
	for _, c := range []struct {
		left, want time.Duration
	}{
		{10 * time.Second, 9 * time.Second}, {2100 * time.Millisecond, 2 * time.Second},
		{2099 * time.Millisecond, time.Second}, {time.Second, 0},
	} {
		if got := ttl(1e18, 1e18+int64(c.left)); got != c.want {
			t.Errorf("TTL %v before the end: %v, want %v", c.left, got, c.want)
		}
	}
}

// With windows of ten seconds leases reach into the next window from the start.
func TestCoverOfShortWindow(t *testing.T) {
	r := newRig(t, 1000, 10*time.Second)
	r.steady(20)
	p := r.pushes()
	equal(t, "TTL", p[len(p)-1].TTL, 19*time.Second)
	a := r.l.allotments[key]
	equal(t, "ahead", a.ahead, a.lines[0].live)
	equal(t, "covered", a.next >= a.ahead, true)
}

// With longer windows leases are extended ten seconds before the end, and the lot is asked for two seconds before it.
func TestCoverOfLongWindow(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	l := r.steady(5)[0]
	equal(t, "TTL", time.Duration(l.endsAt-l.sentAt), 59*time.Second)
	r.until(49 * time.Second)
	r.report(1, 245, 0)
	r.pushes()
	r.asks = nil
	r.until(50*time.Second + time.Millisecond)
	if p := r.one(Same); p.Tokens != uint32(l.size) || p.TTL != 69*time.Second {
		t.Errorf("extension %+v of a lease of %d", p, l.size)
	}
	cover := r.asks
	r.asks = nil
	r.until(58*time.Second + time.Millisecond)
	if len(cover) != 1 || cover[0].Window != r.window()+1 || len(r.asks) > 1 {
		t.Errorf("asks %+v, then %+v; want one for the next window, then at most one more", cover, r.asks)
	}
	r.turn(time.Millisecond)
	if p := r.one(Pair); r.into(p.at) != 0 || p.TTL != 59*time.Second {
		t.Errorf("lot %+v", p)
	}
}

// What the next window has no room for is refused shortly before its start, and not charged to it.
func TestNoRoomInNextWindow(t *testing.T) {
	r := newRig(t, 1000, 10*time.Second)
	lines := r.steady(40, 40)
	r.until(5 * time.Second)
	r.report(1, 400, 0)
	r.report(2, 400, 0)
	r.pushes()
	r.deaf[2] = true
	r.turn(-time.Millisecond)
	sent := r.pushes()
	if len(sent) != 2 || sent[0].Kind != Deny || r.into(sent[0].at) != 9930*time.Millisecond || sent[0].TTL != 9*time.Second {
		t.Fatalf("pushes %+v; want two refusals", sent)
	}
	r.turn(-time.Millisecond + 2*time.Millisecond)
	equal(t, "carried after an acknowledgement", lines[0].carried, 0)
	equal(t, "past after an acknowledgement", lines[0].past > 200, true)
	equal(t, "carried without one", lines[1].carried > 200, true)
	a := r.l.allotments[key]
	equal(t, "charged", a.charged, lines[0].live+lines[1].live+lines[1].carried)
}

// While there is room, an Envoy's lease lasts until the next one replaces it.
func TestRoomInNextWindow(t *testing.T) {
	r := newRig(t, 1000, 10*time.Second)
	l := r.steady(20)[0]
	r.until(5 * time.Second)
	r.report(1, 100, 0)
	r.pushes()
	rest := l.rest()
	r.turn(time.Millisecond)
	p := r.one(Pair)
	equal(t, "into the window", r.into(p.at), 0)
	equal(t, "carried", l.carried, rest)
	equal(t, "charge", l.charge(), rest+l.live)
	r.wait(2 * time.Second)
	r.report(1, 100, 0) // at most these were admitted in this window
	equal(t, "spent", l.spent, 100)
	equal(t, "carried after a report", l.carried, 0)
}

// Without hits of the next window leases are ended before their TTL ends: then the Envoy's fallback would decide.
func TestNoCover(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	l := r.steady(5)[0]
	r.pushes()
	r.broke = true
	r.turn(-time.Millisecond)
	p := r.one(Deny)
	if end := l.sentAt; r.into(end) < 58*time.Second || r.into(p.at) > 59*time.Second {
		t.Errorf("refused at %v", r.into(p.at))
	}
	asks := len(r.asks)
	r.wait(10 * time.Second)
	equal(t, "asked again", len(r.asks) > asks, true)
	equal(t, "held", r.l.allotments[key].held, 0)
	r.none()
	r.broke = false
	r.wait(time.Second)
	for len(r.sent) == 0 && r.into(r.now) < 30*time.Second { // the next ask is made with a report
		r.report(1, 0, 5)
		r.wait(time.Second)
	}
	if p := r.one(Pair); p.TTL > 50*time.Second || p.Tokens == 0 {
		t.Errorf("lease %+v", p)
	}
}

// An extension that arrives after the lease has ended fills its bucket again.
func TestLateExtension(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	l := r.steady(5)[0]
	r.until(49 * time.Second)
	r.report(1, 245, 0)
	size, charge := l.size, l.charge()
	r.deaf[1] = true
	r.until(50*time.Second + time.Millisecond)
	equal(t, "extended", l.same != 0, true)
	r.until(59500 * time.Millisecond)
	r.l.Acked(r.now, 1, l.stream.serial-1)
	r.l.Acked(r.now, 1, l.same)
	equal(t, "charge", l.charge(), charge+size)
}

// A lease whose stream has closed is charged to the next window if it may last until then.
func TestClosedStreamReachesOn(t *testing.T) {
	r := newRig(t, 1000, 10*time.Second)
	l := r.steady(20)[0]
	r.wait(time.Second)
	r.l.Closed(r.now, 1)
	r.l.Opened(r.now, 2, "")
	r.report(2, 0, 0)
	r.turn(time.Millisecond)
	a := r.l.allotments[key]
	equal(t, "gone", a.gone, l.live)
	equal(t, "within what is held", a.charged <= a.held, true)
	r.turn(time.Millisecond)
	equal(t, "gone after its TTL", a.gone, 0)
}

// A lease whose line is abandoned is charged to the window in which it ends, and not to the next one.
func TestAbandonedLeaseEnds(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		r := newRig(t, 1000, 10*time.Second)
		l := r.steady(20, 20)[0]
		a := l.allotment
		for !l.removed {
			r.wait(5 * time.Second)
			r.deaf[1] = deaf && r.now-l.hitAt >= int64(abandonAfter)
			r.report(2, 100, 0)
			r.report(1, 0, 0)
		}
		equal(t, "charged", a.gone > 10, true)
		r.turn(time.Millisecond)
		equal(t, "charged to the next window", a.gone > 10, deaf)
	}
}

// Several windows may pass without a call.
func TestLongPause(t *testing.T) {
	r := newRig(t, 1000, 10*time.Second)
	l := r.steady(20)[0]
	r.now += int64(time.Minute)
	r.run()
	a := r.l.allotments[key]
	equal(t, "window", a.window, r.window())
	equal(t, "within what is held", a.charged <= a.held, true)
	equal(t, "lease", l.live > 0 && l.carried > 0, true)
}

func TestNewQuota(t *testing.T) {
	r := newRig(t, 1000, 10*time.Second)
	l := r.steady(20)[0]
	live := l.live
	r.wait(time.Second)
	r.quota.Window, r.lent = time.Minute, map[int64]uint64{}
	r.report(1, 0, 5)
	r.wait(100 * time.Millisecond)
	a := r.l.allotments[key]
	equal(t, "window", a.window, r.window())
	equal(t, "carried", l.carried, live)
	equal(t, "within what is held", a.charged <= a.held && l.live > 0, true)
}

// Fewer hits are held than the lines are charged after an Envoy has admitted more than it was granted.
func TestNothingBeyondHeld(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	r.quota.FirstAllow = true
	l := r.first(1)
	r.wait(5 * time.Second)
	r.pushes()
	r.report(1, 2000, 0)
	r.wait(5 * time.Second)
	r.report(1, 2000, 500)
	r.none()
	equal(t, "charge", r.charged() > 2000, true)
	equal(t, "free", l.allotment.free(), 0)
}

func TestReturns(t *testing.T) {
	r := newRig(t, 1500, time.Minute)
	r.steady(15)
	for range 4 { // the load ends
		r.wait(5 * time.Second)
		r.report(1, 0, 0)
	}
	r.wait(time.Second)
	a := r.l.allotments[key]
	if len(r.back) == 0 || a.held > 700 || a.charged > a.held || r.lent[r.window()] != a.held {
		t.Errorf("returned %+v; held %d of %d lent, charged %d", r.back, a.held, r.lent[r.window()], a.charged)
	}
	r.l.Closed(r.now, 1)
	r.turn(-time.Second)
	r.turn(time.Second)
	equal(t, "lent to no Envoy", r.lent[r.window()], 0)
}

func TestViews(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	r.steady(5, 20)
	keys := r.l.Keys()
	if len(keys) != 1 || keys[0].Key != key || keys[0].Lines != 2 || keys[0].Held == 0 || keys[0].Charged > keys[0].Held {
		t.Errorf("keys %+v", keys)
	}
	lines := r.l.Lines(r.now, key)
	if len(lines) != 2 || lines[0].Stream != 2 || lines[0].Rate != 20 || lines[0].Kind != Pair || lines[0].Charge < lines[0].Lease {
		t.Errorf("lines %+v", lines)
	}
	equal(t, "lines of an unknown key", len(r.l.Lines(r.now, "?")), 0)
	equal(t, "streams", r.l.Streams(), 2)
	equal(t, "granted", r.l.Stats().Granted > 0, true)
}

func TestValidate(t *testing.T) {
	equal(t, "10 s", KeyQuota{Window: 10 * time.Second}.Validate(), nil)
	equal(t, "unlimited", KeyQuota{Unlimited: true}.Validate(), nil)
	equal(t, "1 s", KeyQuota{Window: time.Second}.Validate() != nil, true)
}

// An extension that is not acknowledged when a window begins may arrive when the lease has ended.
func TestUnacknowledgedExtension(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	l := r.steady(5)[0]
	r.deaf[1] = true
	r.until(50*time.Second + time.Millisecond)
	rest, size := l.rest(), l.size
	equal(t, "extended", l.same != 0, true)
	r.turn(time.Millisecond)
	equal(t, "carried", l.carried, rest+size)
}

// A response that is unacknowledged when its stream closes may still arrive.
func TestUnacknowledgedOnClosedStream(t *testing.T) {
	r := newRig(t, 1000, 10*time.Second)
	l := r.steady(20)[0]
	r.wait(time.Second)
	r.deaf[1] = true
	r.l.allotments[key].order(l, Pair, 50)
	r.run()
	alive, until := l.alive(), r.now+int64(l.ttl)
	r.l.Closed(r.now+1, 1)
	c := r.l.allotments[key].closed
	if len(c) != 1 || c[0].hits != alive || c[0].until <= until {
		t.Errorf("closed leases %+v; want %d hits until after %d", c, alive, until)
	}
}

// Leases reach into the next window only if all of them can be charged to it.
func TestReachIsCharged(t *testing.T) {
	r := newRig(t, 1000, 10*time.Second)
	l := r.steady(20)[0]
	r.wait(time.Second)
	a := r.l.allotments[key]
	r.pushes()
	a.next = a.ahead + 49
	a.order(l, Pair, 50)
	r.run()
	equal(t, "TTL of a lease that finds no room", r.pushes()[0].TTL, 8*time.Second)
	a.next = l.charge() - l.spent + 50
	r.wait(time.Second)
	a.order(l, Pair, 50)
	r.pushes()
	r.run()
	equal(t, "TTL of a lease that finds room", r.pushes()[0].TTL, 17*time.Second)
}

// A lease that is acknowledged after the hits of the next window were granted is extended all the same, so that its Envoy
// does not refuse at the window's end.
func TestCoverAfterAcknowledgement(t *testing.T) {
	r := newRig(t, 1500, 10*time.Second)
	r.l, r.quota.Envoys = NewLedger(Options{Shared: true}), 5
	r.now += int64(30 * time.Millisecond)
	r.first(1)
	for range 8 {
		r.wait(5 * time.Second)
		r.report(1, 225, 0)
	}
	for _, p := range r.pushes() {
		if p.Kind == Deny {
			t.Errorf("refused %v into a window", r.into(p.at))
		}
	}
}

// Each hit of a window that has ended was spent, given back, or is counted as lost.
func TestGrantsAreAccountedFor(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	r.steady(2, 4, 1)
	begin, first := r.l.Stats(), r.window()
	for _, l := range r.l.allotments[key].lines {
		begin.Stranded += l.late
	}
	var spent uint64
	endWindow := func() { // reports of all open streams, to the end of the window
		for r.into(r.now) < 50*time.Second {
			r.wait(5 * time.Second)
			for s := range r.l.streams {
				r.report(s, 5*s, 0)
			}
		}
		r.until(time.Minute - time.Nanosecond)
		for _, l := range r.l.allotments[key].lines {
			spent += l.spent
		}
		r.turn(time.Millisecond)
	}
	endWindow()
	r.wait(7 * time.Second)
	spent += r.l.streams[2].lines[key].spent
	r.l.Closed(r.now, 2)
	endWindow()
	r.l.Granted(r.now, AskResult{WindowHits: WindowHits{Key: "gone", Window: r.window(), Hits: 7}})
	endWindow()
	s := r.l.Stats()
	lost := s.Stranded - begin.Stranded + s.Unassigned - begin.Unassigned
	spent += s.Late - begin.Late
	for _, l := range r.l.allotments[key].lines {
		lost += l.late
	}
	lent := uint64(7)
	for w := first; w < r.window(); w++ {
		lent += r.lent[w]
	}
	if s.Stranded == begin.Stranded || s.Unassigned-begin.Unassigned < 7 || lent != spent+lost {
		t.Errorf("%d hits were granted and not given back; %d were spent, %d are lost: %+v, %+v at the begin", lent, spent, lost, s, begin)
	}
}

// The age of reports and the wait for acknowledgements are those of the worst stream.
func TestWaits(t *testing.T) {
	r := newRig(t, 1000, time.Minute)
	r.steady(1, 2)
	waits := func(report, ack time.Duration) {
		t.Helper()
		if a, b := r.l.Waits(r.now); a != report || b != ack {
			t.Errorf("report %v, acknowledgement %v; want %v, %v", a, b, report, ack)
		}
	}
	r.until(time.Second)
	r.report(1, 1, 0)
	r.report(2, 2, 0)
	r.wait(3 * time.Second)
	r.report(1, 3, 0)
	waits(3*time.Second, 0)
	r.deaf[3] = true
	r.first(3)
	r.wait(2 * time.Second)
	at := int64(0)
	for _, p := range r.pushes() {
		if p.Stream == 3 {
			at = max(at, p.at)
			break
		}
	}
	waits(5*time.Second, time.Duration(r.now-at))
	r.l.Closed(r.now, 3)
	waits(5*time.Second, 0)
	r.l.Closed(r.now, 2)
	waits(2*time.Second, 0)
	r.l.Closed(r.now, 1)
	waits(0, 0)
}
