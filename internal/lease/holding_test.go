package lease

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

const (
	ms     = int64(time.Millisecond)
	second = int64(time.Second)
)

var perMinute = limit.Rule{Window: time.Minute, Limit: 1000}

// granted returns a Holding that sent a request at now and was granted n hits of window 7, which ends after left.
func granted(t *testing.T, now int64, n uint64, left time.Duration) *Holding {
	t.Helper()
	h := &Holding{Salt: 1}
	if _, v := h.Decide(now, perMinute, 1); v != Unknown || !h.Due(now) {
		t.Fatalf("nothing held: %v, due %v", v, h.Due(now))
	}
	r := h.Request(now)
	if !r.Want || r.Have != 0 {
		t.Fatalf("%+v", r)
	}
	if !h.Accept(now, &Grant{Seq: r.Seq, Window: 7, Total: n, Used: n, Limit: 1000, Left: left, Flags: Hot}) {
		t.Fatal("not accepted")
	}
	return h
}

func TestDecidesFromTheBalance(t *testing.T) {
	h := granted(t, second, 10, 30*time.Second)
	before := uint64(0)
	for i := range uint64(5) {
		d, v := h.Decide(second, perMinute, 2)
		if v != Admitted || d.Over || d.Before != before || d.After != before+2 ||
			d.Remaining != uint32(998-2*i) || d.Reset != 30*time.Second {
			t.Fatalf("decision %d: %v %+v", i, v, d)
		}
		before = d.After
	}
	if _, v := h.Decide(second, perMinute, 1); v != Unknown {
		t.Errorf("spent: %v", v)
	}
	if s := h.TakeStats(); s.Local != 5 || s.Grants != 1 || s.Stranded != 0 {
		t.Errorf("%+v", s)
	}
}

func TestNothingIsSpentAfterTheWindow(t *testing.T) {
	h := granted(t, second, 10, 2*time.Second)
	if _, v := h.Decide(3*second-1, perMinute, 1); v != Admitted {
		t.Error(v)
	}
	if _, v := h.Decide(3*second, perMinute, 1); v != Unknown || h.Left(3*second) != 0 {
		t.Error(v)
	}
	if s := h.TakeStats(); s.Stranded != 9 {
		t.Errorf("%+v", s)
	}
	// The rest of the window counts from the request on, however late the reply is.
	h = &Holding{}
	h.Decide(0, perMinute, 1)
	r := h.Request(second)
	h.Accept(4*second, &Grant{Seq: r.Seq, Window: 7, Total: 10, Limit: 1000, Left: 2 * time.Second, Flags: Hot})
	if _, v := h.Decide(4*second, perMinute, 1); v != Unknown {
		t.Error(v)
	}
}

func TestOneInFlight(t *testing.T) {
	h := &Holding{}
	h.Decide(0, perMinute, 1)
	old := h.Request(0)
	h.Decide(1, perMinute, 1)
	if h.Due(99*ms - 25*ms/2) {
		t.Error("due while one is in flight")
	}
	var waits []int64
	for at, last := int64(0), int64(0); len(waits) < 6; at += ms {
		h.Decide(at, perMinute, 1)
		if h.Due(at) {
			h.Request(at)
			waits = append(waits, at-last)
			last = at
		}
	}
	for i, want := range []int64{100, 200, 400, 800, 1000, 1000} {
		if got := waits[i] / ms; got < want*7/8-1 || got > want*9/8+1 {
			t.Errorf("wait %d is %d ms", i, got)
		}
	}
	if h.Accept(second, &Grant{Seq: old.Seq, Window: 7, Total: 10, Left: time.Minute}) {
		t.Error("a reply to a request that timed out is accepted")
	}
	g := Grant{Seq: h.seq, Window: 7, Total: 10, Left: time.Minute, Flags: Hot}
	if !h.Accept(second, &g) || h.Accept(second, &g) {
		t.Error("not accepted, or twice")
	}
}

func TestAsksAheadAndGivesBack(t *testing.T) {
	h := granted(t, second, 100, time.Minute)
	for i := range 69 {
		h.Decide(second, perMinute, 1)
		if h.Due(second) {
			t.Fatalf("due with %d left", 99-i)
		}
	}
	if h.Decide(second, perMinute, 1); !h.Due(second) {
		t.Fatal("not due with 30% left")
	}
	r := h.Request(second)
	if !r.Want || r.Have != 100 || r.Left != 30 {
		t.Fatalf("%+v", r)
	}
	h.Accept(second, &Grant{Seq: r.Seq, Window: 7, Total: 170, Limit: 1000, Left: time.Minute, Flags: Hot})
	if h.Left(second) != 100 || h.Due(second) {
		t.Fatalf("%d left", h.Left(second))
	}
	if h.Due(2*second - 1) {
		t.Error("returns hits too early")
	}
	if !h.Due(2 * second) {
		t.Fatal("not due after a second without decisions")
	}
	r = h.Request(2 * second)
	if r.Want || r.Have != 70 || r.Left != 0 {
		t.Errorf("%+v", r)
	}
	h.Accept(2*second, &Grant{Seq: r.Seq, Window: 7, Total: 70, Limit: 1000, Left: time.Minute, Flags: Hot})
	if h.Due(11*second-1) || h.Idle(11*second-1) || !h.Idle(11*second) {
		t.Error("not idle after 10 s")
	}
}

func TestTheTail(t *testing.T) {
	h := granted(t, second, 100, time.Minute)
	h.ReceiveNotice(second, &Notice{Window: 7, Kind: Recall})
	if h.Due(second) {
		t.Error("returns what it needs at a hit per second")
	}
	if !h.Due(second + 100*ms) {
		t.Error("keeps hits although there are no requests")
	}
	h = granted(t, second, 200, time.Minute)
	h.ReceiveNotice(second, &Notice{Window: 7, Kind: Recall})
	if !h.Due(second) {
		t.Fatal("keeps hits that it does not need")
	}
	if r := h.Request(second); r.Want || r.Left != 61 || r.Have != 61 {
		t.Errorf("%+v", r)
	}
	h = granted(t, second, 100, time.Minute)
	for range 300 { // a large balance for such a demand
		h.Decide(second, perMinute, 1)
	}
	r := h.Request(second)
	h.Accept(second, &Grant{
		Seq: r.Seq, Window: 7, Total: 100, Used: 990, Limit: 1000, Left: time.Minute, Flags: Hot | Last,
	})
	if h.Decide(second, perMinute, 1); h.Due(second + 500*ms) {
		t.Error("sends further requests after Last")
	}
	h.Decide(2*second, perMinute, 1)
	if !h.Due(2 * second) {
		t.Error("sends no further request")
	}
}

func TestRefuses(t *testing.T) {
	h := granted(t, second, 2, time.Minute)
	h.ReceiveNotice(second, &Notice{Window: 6, Limit: 1000, Left: time.Minute, Kind: Deny}) // an old notice
	h.Decide(second, perMinute, 2)
	if _, v := h.Decide(second, perMinute, 1); v != Unknown {
		t.Error("refused by a notice about the previous window")
	}
	h.ReceiveNotice(second, &Notice{Window: 7, Limit: 1000, Left: 3 * time.Second, Kind: Deny})
	d, v := h.Decide(second, perMinute, 5)
	if v != Refused || !d.Over || d.Before != 1000 || d.After != 1005 || d.Reset != 3*time.Second || d.Remaining != 0 {
		t.Errorf("%v %+v", v, d)
	}
	if _, v := h.Decide(4*second, perMinute, 1); v != Unknown {
		t.Error("refused too long")
	}
	h.ReceiveNotice(second, &Notice{Window: 7, Limit: 1000, Left: 3 * time.Second, Kind: Deny})
	raised := perMinute
	raised.Limit++
	if _, v := h.Decide(second, raised, 1); v != Unknown {
		t.Error("a raised limit is refused")
	}
	h.ReceiveNotice(second, &Notice{Window: 7, Limit: 1001, Left: 3 * time.Second, Kind: Deny})
	h.ReceiveNotice(second, &Notice{Kind: Lift})
	if _, v := h.Decide(second, raised, 1); v != Unknown {
		t.Error("a lifted refusal still applies")
	}
}

// TestLimitsOfRules requires that only the owner decides after a limit was lowered, and that a balance is for one kind
// of window.
func TestLimitsOfRules(t *testing.T) {
	h := granted(t, second, 10, time.Minute)
	lowered, hourly := perMinute, perMinute
	lowered.Limit--
	hourly.Window = time.Hour
	if _, v := h.Decide(second, lowered, 1); v != Unknown {
		t.Error(v)
	}
	if _, v := h.Decide(second, perMinute, 1); v != Admitted {
		t.Error(v)
	}
	if _, v := h.Decide(second, hourly, 1); v != Unknown || h.Left(second) != 0 {
		t.Error(v)
	}
}

func TestRefusesGrantsAgainstConditions(t *testing.T) {
	for name, c := range map[string]struct {
		g    Grant
		want Condition
	}{
		"of a window that is over": {Grant{Window: 6, Total: 50, Left: time.Second}, C3},
		"longer than a window":     {Grant{Window: 8, Total: 50, Left: time.Minute + 1}, C3},
		"of no time":               {Grant{Window: 7, Total: 50, Left: -1}, C3},
		"less than is held":        {Grant{Window: 7, Total: 9, Left: time.Second}, C2},
	} {
		h := granted(t, second, 10, time.Minute)
		h.Decide(second, perMinute, 9)
		c.g.Seq = h.Request(second).Seq
		if h.Accept(second, &c.g) || h.Left(second) != 1 {
			t.Errorf("%s: accepted", name)
		}
		if v := h.TakeStats().Violations; v[c.want] != 1 {
			t.Errorf("%s: %v", name, v)
		}
	}
}

func TestDemandIsAnAverageOfASecond(t *testing.T) {
	var m RateMeter
	for at := int64(0); at < 5*second; at += ms {
		m.Count(at, 3)
	}
	if r := m.Rate(5 * second); r < 2950 || r > 3050 {
		t.Errorf("3000 per second are measured as %v", r)
	}
	if r := m.Rate(6 * second); r < 1080 || r > 1120 { // 3000 / e
		t.Errorf("after a second %v", r)
	}
}

func TestDecideAllocatesNothing(t *testing.T) {
	h := granted(t, second, 1<<40, time.Minute)
	now := second
	if n := testing.AllocsPerRun(1000, func() {
		now += ms
		h.Decide(now, perMinute, 1)
		h.Due(now)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecide(b *testing.B) {
	h := Holding{}
	h.Decide(0, perMinute, 1)
	r := h.Request(0)
	h.Accept(0, &Grant{Seq: r.Seq, Window: 7, Total: 1 << 60, Limit: 1000, Left: time.Minute, Flags: Hot})
	b.ReportAllocs()
	for i := range int64(b.N) {
		h.Decide(i%second*10, perMinute, 1)
		h.Due(i % second * 10)
	}
}

// TestRefusalEndsWithItsWindow requires that a delayed notice does not refuse hits in the next window.
func TestRefusalEndsWithItsWindow(t *testing.T) {
	h := granted(t, 420*second, 10, 60*time.Second)
	// The window ends at 480 s.
	h.ReceiveNotice(479*second+5*ms, &Notice{Window: 7, Limit: 1000, Left: time.Second, Kind: Deny})
	if _, v := h.Decide(480*second-1, perMinute, 11); v != Refused {
		t.Errorf("in the window: %v", v)
	}
	if _, v := h.Decide(480*second, perMinute, 1); v != Unknown {
		t.Errorf("in the next: %v", v)
	}
}

// TestUrgent covers balances that last long enough for a shared message, and balances that do not.
func TestUrgent(t *testing.T) {
	h := granted(t, second, 100, 30*time.Second)
	h.Decide(second, perMinute, 1)
	if h.Urgent(second) {
		t.Error("a hundred hits at one per second are urgent")
	}
	for range 69 {
		h.Decide(second, perMinute, 1)
	}
	if h.Decide(second, perMinute, 25); !h.Urgent(second) {
		t.Error("five hits at a hundred per second are not urgent")
	}
}
