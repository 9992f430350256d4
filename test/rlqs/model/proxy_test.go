package model

import (
	"math/rand/v2"
	"testing"
	"time"
)

// script drives one Proxy on a virtual clock.
type script struct {
	t   *testing.T
	p   *Proxy
	now int64
}

const minute = time.Minute

var (
	deny  = Strategy{Kind: DenyAll}
	allow = Strategy{Kind: AllowAll}
)

// begin has an Envoy that has seen id a.
func begin(t *testing.T, o ProxyOptions) *script {
	t.Helper()
	s := &script{t: t, p: NewProxy(o), now: 1e15}
	s.p.Hit(s.now, 0, "a")
	s.p.Sent()
	return s
}

func (s *script) wait(d time.Duration) { s.now += int64(d) }

func (s *script) push(response ...Action) int64 { return s.p.Receive(s.now, response...) }

// hits sends n requests, a microsecond apart, over all workers in turn, and returns how many were admitted.
func (s *script) hits(n int) (admitted int) {
	for i := range n {
		s.wait(time.Microsecond)
		if s.p.Hit(s.now, i%len(s.p.workers), "a") {
			admitted++
		}
	}
	return admitted
}

func (s *script) want(what string, got, want int) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("%s: %d, want %d", what, got, want)
	}
}

func TestPairIsExact(t *testing.T) {
	s := begin(t, ProxyOptions{NoAssignment: deny, Workers: 2})
	for _, n := range []uint32{1, 37, 100, 500, 7, 0} {
		s.push(Pair("a", n, minute)...)
		s.want("PAIR", s.hits(int(n)+300), int(n))
	}
	s.push(Pair("a", 100, minute)...)
	s.hits(60)
	s.push(Pair("a", 100, minute)...)
	s.want("PAIR over a rest of 40", s.hits(300), 100)
	s.wait(30 * time.Second)
	s.want("a spent lease after 30 s", s.hits(10), 0)
}

// A bucket that replaces another one without DENY_ALL before it starts with the other's fill ratio.
func TestReplacedBuckets(t *testing.T) {
	bare := func(n uint32) Action { return Same("a", n, minute) }
	for _, c := range []struct {
		what string
		next []Action
		want int
	}{
		{"bucket of 50", []Action{bare(50)}, 20},
		{"bucket of 500", []Action{bare(500)}, 200},
		{"SAME", []Action{bare(100)}, 40},
		{"PAIR", Pair("a", 100, minute), 100},
		{"other tokens_per_fill", []Action{{ID: "a", TTL: minute, Strategy: Strategy{TokenBucket, 100, 2, never}}}, 40},
		{"other seconds of the interval, which is not a change", []Action{{ID: "a", TTL: minute, Strategy: Strategy{TokenBucket, 100, 1, time.Second}}}, 40},
	} {
		s := begin(t, ProxyOptions{NoAssignment: deny})
		s.push(Pair("a", 100, minute)...)
		s.hits(60)
		s.push(c.next...)
		s.wait(20 * time.Second)
		s.want("100, 60 spent, then "+c.what, s.hits(900), c.want)
	}
}

// With workers behind, a changed bucket lets them spend the old one in addition to the copied rest; PAIR and SAME do not.
func TestStaleWorkers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 3000
	for kind, push := range map[string]func(i int) []Action{
		"same": func(int) []Action { return []Action{Same("a", n, minute)} },
		"bare": func(i int) []Action {
			return []Action{{ID: "a", TTL: minute, Strategy: Strategy{TokenBucket, n, uint32(1 + i%2), never}}}
		},
	} {
		s := begin(t, ProxyOptions{NoAssignment: deny, Workers: 2, Delay: RandomDelay(r, 2*time.Millisecond)})
		s.push(Pair("a", n, minute)...)
		s.wait(time.Second)
		admitted := 0
		for i := range 300 {
			admitted += s.hits(10)
			s.wait(2 * time.Millisecond)
			s.push(push(i)...)
		}
		admitted += s.hits(2 * n)
		if over := admitted - n; kind == "same" && over != 0 || kind == "bare" && over <= 0 {
			t.Errorf("%s: %d admitted beyond the lease", kind, over)
		}
	}
}

// After the answer to the PING no request meets the old assignment; before it, some do.
func TestPingIsAFence(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	s := begin(t, ProxyOptions{NoAssignment: deny, Workers: 4, Delay: RandomDelay(r, time.Millisecond)})
	early := 0
	for i := range 300 {
		kind := []Strategy{allow, deny}[i%2]
		used := s.push(Action{ID: "a", Strategy: kind, TTL: minute})
		if i > 0 && (s.hits(4) == 4) != (kind == allow) {
			early++
		}
		s.now = max(s.now, used)
		want := 0
		if kind == allow {
			want = 20
		}
		s.want("after the answer", s.hits(20), want)
	}
	if early == 0 {
		t.Error("no worker was ever behind")
	}
}

func TestLifetimes(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		0: 0, 900 * time.Millisecond: 0, time.Second: time.Second, 1900 * time.Millisecond: time.Second, 2 * time.Second: 2 * time.Second,
	} {
		s := begin(t, ProxyOptions{NoAssignment: deny})
		s.push(Action{ID: "a", Strategy: allow, TTL: ttl})
		s.wait(want - 10*time.Millisecond)
		if want > 0 {
			s.want(ttl.String()+": just before the end", s.hits(3), 3)
		}
		s.wait(20 * time.Millisecond)
		s.want(ttl.String()+": after the end", s.hits(3), 0)
	}
}

func TestSameExtends(t *testing.T) {
	s := begin(t, ProxyOptions{NoAssignment: deny})
	s.push(Pair("a", 1000, 2*time.Second)...)
	s.hits(10)
	s.wait(time.Second)
	s.push(Same("a", 1000, 3*time.Second))
	s.wait(2900 * time.Millisecond)
	s.want("before the new end", s.hits(90), 90)
	s.push(Pair("a", 10, 1*time.Second)...)
	s.wait(1100 * time.Millisecond)
	s.want("after the end", s.hits(10), 0)
}

func TestExpiredFallback(t *testing.T) {
	for _, c := range []struct {
		what  string
		o     ProxyOptions
		after []int // admitted of 20 requests 1.1, 2.1, 3.1, 4.1 s after a lease of 5 for 1 s
	}{
		{"DENY_ALL for 3 s", ProxyOptions{Expired: deny, ExpiredFor: 3 * time.Second}, []int{0, 0, 0, 20}},
		{"DENY_ALL without a timeout", ProxyOptions{Expired: deny}, []int{20, 20, 20, 20}},
		{"none, or reuse_last_assignment", ProxyOptions{}, []int{20, 20, 20, 20}},
		{"3 a second", ProxyOptions{NoAssignment: deny, Expired: Strategy{TokenBucket, 3, 3, time.Second}, ExpiredFor: 1e6 * time.Second}, []int{0, 3, 3, 3}},
	} {
		s := begin(t, c.o)
		s.push(Pair("a", 5, time.Second)...)
		s.want(c.what+": the lease", s.hits(20), 5)
		s.wait(100 * time.Millisecond)
		for _, want := range c.after {
			s.wait(time.Second)
			s.want(c.what+": later", s.hits(20), want)
		}
		s.push(Pair("a", 5, time.Second)...)
		s.want(c.what+": a new lease", s.hits(20), 5)
	}
}

func TestReports(t *testing.T) {
	p := NewProxy(ProxyOptions{NoAssignment: allow})
	now := int64(1e15)
	for range 3 {
		p.Hit(now, 0, "a")
	}
	now += 1300e6
	p.Hit(now, 0, "b")
	got := p.Sent()
	if len(got) != 2 || got[0].Usages[0] != (ReportedUsage{ID: "a", Allowed: 1}) || got[1].Usages[0] != (ReportedUsage{ID: "b", Allowed: 1}) || got[0].Stream != 1 {
		t.Fatalf("first hits: %+v", got)
	}
	p.Advance(now + 9500e6)
	got = p.Sent()
	if len(got) != 2 || got[0].At != 1e15+5e9 || got[1].At != 1e15+10e9 || len(got[1].Usages) != 2 {
		t.Fatalf("reports of all ids: %+v", got)
	}
	if got[0].Usages[0] != (ReportedUsage{"a", 2, 0, 5 * time.Second}) || got[0].Usages[1] != (ReportedUsage{"b", 0, 0, 3 * time.Second}) {
		t.Errorf("usage: %+v", got[0].Usages)
	}
	if got[1].Usages[0] != (ReportedUsage{"a", 0, 0, 5 * time.Second}) {
		t.Errorf("usage of an idle id: %+v", got[1].Usages)
	}
}

func TestStreamEnds(t *testing.T) {
	s := begin(t, ProxyOptions{NoAssignment: deny})
	s.push(Pair("a", 1000, minute)...)
	s.want("before", s.hits(10), 10)
	s.p.EndStream(s.now)
	s.want("after the end", s.hits(7), 7)
	s.p.Hit(s.now, 0, "new")
	s.wait(6 * time.Second)
	s.p.Advance(s.now)
	sent := s.p.Sent()
	if len(sent) != 1 || sent[0].Stream != 2 || sent[0].Usages[0].Allowed != 17 || sent[0].Usages[1] != (ReportedUsage{"new", 0, 0, 4 * time.Second}) {
		t.Errorf("the next stream: %+v", sent)
	}
}

func TestRefusedStreamsLoseUsage(t *testing.T) {
	s := begin(t, ProxyOptions{NoAssignment: deny})
	s.push(Pair("a", 1000, minute)...)
	s.p.Refuse(s.now, true)
	s.want("refused", s.hits(20), 20)
	s.wait(6 * time.Second)
	s.want("refused", s.hits(20), 20)
	s.wait(6 * time.Second)
	s.p.Refuse(s.now, false)
	s.want("accepted again", s.hits(3), 3)
	s.wait(10 * time.Second)
	s.p.Advance(s.now)
	total := uint64(0)
	for _, m := range s.p.Sent() {
		total += m.Usages[0].Allowed
	}
	if total != 3 || s.p.Streams() != 2 {
		t.Errorf("%d reported on %d streams, want 3 on 2", total, s.p.Streams())
	}
}

func TestAbandon(t *testing.T) {
	s := begin(t, ProxyOptions{NoAssignment: deny})
	s.push(Pair("a", 100, minute)...)
	s.want("lease", s.hits(40), 40)
	s.push(Action{ID: "a", Abandon: true})
	s.wait(6 * time.Second)
	s.p.Advance(s.now)
	if sent := s.p.Sent(); len(sent) != 1 || len(sent[0].Usages) != 0 {
		t.Errorf("sent after ABANDON: %+v", sent)
	}
	s.want("the id is new again", s.hits(1), 0)
	if sent := s.p.Sent(); len(sent) != 1 || sent[0].Usages[0] != (ReportedUsage{ID: "a", Denied: 1}) {
		t.Errorf("the first hit: %+v", sent)
	}
	s.push(append([]Action{{ID: "a", Abandon: true}}, Pair("a", 10, minute)...)...)
	s.want("ABANDON and PAIR in one response", s.hits(20), 0)
	s.push(Pair("a", 10, minute)...)
	s.want("PAIR", s.hits(20), 10)
}

func TestUnknownAndUnsupported(t *testing.T) {
	s := begin(t, ProxyOptions{NoAssignment: deny})
	s.push(Action{ID: "unseen", Strategy: allow, TTL: minute})
	if s.p.Hit(s.now, 0, "unseen") {
		t.Error("a response for an id not seen yet had an effect")
	}
	s.push(Action{ID: "a", Strategy: Strategy{Kind: PerUnit, Max: 5}, TTL: minute})
	s.want("requests_per_time_unit", s.hits(20), 0)
	s.push(Action{ID: "a", Strategy: Strategy{TokenBucket, 5, 5, 100 * time.Millisecond}, TTL: minute})
	s.want("5 per 100 ms", s.hits(200), 200)
	s.push(Action{ID: "a", Strategy: deny, TTL: minute}, Action{ID: "a", Strategy: Strategy{TokenBucket, 5, 5, 1500 * time.Millisecond}, TTL: minute})
	admitted := 0
	for range 300 {
		s.wait(10*time.Millisecond - time.Microsecond)
		admitted += s.hits(1)
	}
	s.want("5 per 1.5 s, taken for 5 per 1 s, for 3 s", admitted, 19)
}

func TestTokenBucketWithoutAssignmentCrashes(t *testing.T) {
	s := begin(t, ProxyOptions{NoAssignment: Strategy{TokenBucket, 5, 5, time.Second}})
	if s.p.Crashed() {
		t.Fatal("crashed at the first request")
	}
	s.want("the second request", s.hits(1), 0)
	if !s.p.Crashed() {
		t.Error("the second request did not crash it")
	}
}

// A stopped process ends its leases late: a request that waited may be decided before its worker has the end.
func TestPausedOverTheEnd(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Millisecond} {
		s := begin(t, ProxyOptions{NoAssignment: deny, Delay: func(int) time.Duration { return delay }})
		s.wait(time.Second)
		s.push(Pair("a", 1000, 2*time.Second)...)
		s.wait(100 * time.Millisecond)
		s.p.Pause(s.now)
		s.wait(3 * time.Second)
		s.p.Resume(s.now)
		want := 0
		if delay > 0 {
			want = 64
		}
		s.want("64 requests that waited", s.hits(64), want)
		s.wait(time.Second)
		s.want("later", s.hits(10), 0)
		if sent := s.p.Sent(); len(sent) != 1 || sent[0].Usages[0].Allowed != uint64(want) {
			t.Errorf("sent: %+v", sent)
		}
	}
}

// Requests that several workers decide before they have a new id are all counted.
func TestNewIdIsCountedOnce(t *testing.T) {
	p := NewProxy(ProxyOptions{Workers: 4, Delay: func(w int) time.Duration { return time.Duration(w) * time.Millisecond }})
	now := int64(1e15)
	for i := range 40 {
		p.Hit(now, i%4, "a")
	}
	p.Advance(now + 5e9)
	total := uint64(0)
	for _, m := range p.Sent() {
		total += m.Usages[0].Allowed
	}
	if total != 40 || p.Streams() != 1 {
		t.Errorf("%d reported on %d streams, want 40 on 1", total, p.Streams())
	}
}

// A worker uses publications in their order, however long each takes.
func TestPublicationsKeepTheirOrder(t *testing.T) {
	delay := time.Duration(0)
	s := begin(t, ProxyOptions{NoAssignment: deny, Delay: func(int) time.Duration { return delay }})
	delay = 10 * time.Millisecond
	s.push(Action{ID: "a", Strategy: allow, TTL: minute})
	delay = time.Millisecond
	if used := s.push(Pair("a", 5, minute)...); used != s.now+10e6 {
		t.Errorf("all workers have it after %d ns", used-s.now)
	}
	s.want("at first", s.hits(5), 0)
	s.wait(10 * time.Millisecond)
	s.want("at last", s.hits(10), 5)
}
