package federation

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

var minutes = limit.Rule{Window: time.Minute, Limit: 1000}

// lent returns an escrow that has requested hits for a rate of ten per second at now, and was lent them.
func lent(t *testing.T, a *PoolAccount, now int64) *Escrow {
	t.Helper()
	e := NewEscrow(1)
	e.Offer(now, minutes, EscrowSettings{Pool: 900}, 10)
	e.AddWaiting(10)
	if !e.Due(now, 0, time.Millisecond) {
		t.Fatal("nothing is requested")
	}
	r := e.Request(now, time.Millisecond)
	if g, ok := a.Grant(now, "eu", &r); !ok || !e.Accept(now, &g, time.Millisecond) {
		t.Fatalf("granted %v: %+v", ok, g)
	}
	e.TakeWaiting()
	return e
}

// What was lent in a window does not count against the slice of the next one, even if no grant of that one has come.
func TestGrantedEndsWithTheWindow(t *testing.T) {
	begin := minutes.End(1000)
	e := lent(t, &PoolAccount{}, begin+int64(50*time.Second))
	if n := e.Granted(begin + int64(59*time.Second)); n < 10 {
		t.Errorf("%d granted", n)
	}
	if n := e.Granted(begin + int64(61*time.Second)); n != 0 {
		t.Errorf("%d granted in the next window", n)
	}
}

// A region without requests for a second gives back what is left, and the coordinator lends it again.
func TestIdleRegionGivesBack(t *testing.T) {
	a, now := &PoolAccount{}, minutes.End(1000)
	e := lent(t, a, now)
	left := e.Left(now)
	now += int64(2 * time.Second)
	if left == 0 || !e.Due(now, 0, time.Millisecond) {
		t.Fatalf("%d left, nothing to give back", left)
	}
	r := e.Request(now, time.Millisecond)
	if r.Tokens != 0 || r.Left != 0 {
		t.Fatalf("%+v", r)
	}
	g, ok := a.Grant(now, "eu", &r)
	if !ok || g.Used != 0 || !e.Accept(now, &g, time.Millisecond) || e.Left(now) != 0 {
		t.Errorf("%+v, %d left here", g, e.Left(now))
	}
	if e.Due(now+int64(time.Second), 0, time.Millisecond) {
		t.Error("an idle region requests something")
	}
}

// When a pool is used up, requests are refused at once, and the region asks again after a pause.
func TestUsedUpPoolIsNotWaitedFor(t *testing.T) {
	a, now := &PoolAccount{}, minutes.End(1000)
	other := PoolRequest{Rule: minutes, Pool: 900, Boot: 2, Seq: 1, Tokens: 900}
	if _, ok := a.Grant(now, "us", &other); !ok {
		t.Fatal("not granted")
	}
	e := lent(t, a, now)
	set := EscrowSettings{Pool: 900}
	if v := e.Decide(now, minutes, set, 1); v != Refused {
		t.Errorf("verdict %d", v)
	}
	e.Offer(now, minutes, set, 10)
	if e.Due(now+int64(time.Millisecond), 0, time.Millisecond) {
		t.Error("asks again at once")
	}
	if !e.Due(now+int64(200*time.Millisecond), 0, time.Millisecond) {
		t.Error("does not ask again")
	}
}

func TestLink(t *testing.T) {
	var l CoordinatorLink
	now := int64(time.Hour)
	for i := range awayAfter {
		if l.Away() {
			t.Fatalf("away after %d requests", i)
		}
		l.Unanswered(now)
	}
	if !l.Away() || l.Usable(now) || !l.Usable(now+int64(probeFirst)) || l.Usable(now+int64(probeFirst)) {
		t.Error("a coordinator that is away is tried once after a second")
	}
	if !l.Answered(50*time.Millisecond) || l.Away() || l.RTT() != 50*time.Millisecond {
		t.Errorf("after a reply: away %v, round trip %v", l.Away(), l.RTT())
	}
	if !l.Failed(now) || !l.Away() {
		t.Error("not away after an error")
	}
}

// A region whose clock is ahead does not request in a loop while its window has begun and the coordinator's has not.
func TestRequestsWaitForTheCoordinatorsWindow(t *testing.T) {
	const ahead, rtt = int64(80 * time.Millisecond), time.Millisecond
	a, e, calls := &PoolAccount{}, NewEscrow(1), 0
	begin := minutes.End(1000)
	now := begin // by the region's clock
	e.Offer(now, minutes, EscrowSettings{Pool: 900}, 10)
	e.AddWaiting(10)
	for ; now < begin+2*ahead; now += int64(rtt) {
		if !e.Due(now, 0, rtt) {
			continue
		}
		r := e.Request(now, rtt)
		g, ok := a.Grant(now-ahead, "eu", &r)
		if !ok || !e.Accept(now, &g, rtt) {
			t.Fatalf("refused: %+v", g)
		}
		if calls++; e.Left(now) > 0 {
			break
		}
	}
	if left := e.Left(now); calls > 2 || left < 10 || now > begin+ahead+int64(5*rtt) {
		t.Errorf("%d calls, %d left after %v", calls, left, time.Duration(now-begin))
	}
}

var sliding = limit.Rule{Window: time.Minute, Limit: 1000, Algorithm: limit.SlidingWindow}

// What a region had of a window is reported only after the window has ended by its own clock: an escrow that ends before,
// because its request took long, can be lent more of the same window.
func TestPastIsReportedAfterItsEnd(t *testing.T) {
	a, e, set := &PoolAccount{}, NewEscrow(1), EscrowSettings{Pool: 900}
	now := sliding.End(1000)
	request := func(took time.Duration) PoolRequest {
		e.Offer(now, sliding, set, 10)
		e.AddWaiting(10)
		r := e.Request(now, time.Millisecond)
		g, ok := a.Grant(now+int64(took), "eu", &r)
		if now += 2 * int64(took); !ok || !e.Accept(now, &g, time.Millisecond) {
			t.Fatalf("%v: %+v", ok, g)
		}
		e.TakeWaiting()
		if e.Decide(now, sliding, set, 10) != Admitted {
			t.Fatal("refused")
		}
		return r
	}
	request(10 * time.Second) // so the escrow ends 9.75 s before its window
	now += int64(31 * time.Second)
	if e.Left(now) > 0 {
		t.Fatal("the escrow has not ended")
	}
	if r := request(time.Millisecond); r.Past != (Past{}) {
		t.Errorf("%+v is reported of window %d, which goes on", r.Past, e.window)
	}
	now = sliding.End(1001) - int64(time.Millisecond)
	r := request(0)
	now = sliding.End(1001)
	e.Offer(now, sliding, set, 10)
	if late := e.Request(now, time.Millisecond); r.Past != (Past{}) || late.Past.Window != 1001 || late.Past.Have < 30 {
		t.Errorf("%+v, then %+v", r.Past, late.Past)
	}
}

// An escrow of a sliding window is dropped when it has not been used for a while.
func TestSlidingEscrowExpires(t *testing.T) {
	a, e, now := &PoolAccount{}, NewEscrow(1), sliding.End(1000)
	e.Offer(now, sliding, EscrowSettings{Pool: 900}, 10)
	e.AddWaiting(10)
	for end := now + int64(5*time.Minute); now < end; now += int64(100 * time.Millisecond) {
		if e.Due(now, 0, time.Millisecond) {
			r := e.Request(now, time.Millisecond)
			if g, ok := a.Grant(now, "eu", &r); !ok || !e.Accept(now, &g, time.Millisecond) {
				t.Fatalf("%v: %+v", ok, g)
			}
			e.TakeWaiting()
		}
	}
	if !e.Expired(now) {
		t.Errorf("not expired: %+v", e)
	}
}
