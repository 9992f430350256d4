package rls

import (
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// pings counts what a connection was asked for.
type pings struct{ n int }

func (p *pings) Ping() { p.n++ }

// callerRig is the callers of two members, and the callers that they have reported.
type callerRig struct {
	t        *testing.T
	a, b     *callers
	reported []uint64
	start    time.Time
}

func newCallerRig(t *testing.T) *callerRig {
	r := &callerRig{t: t, start: time.Now().Add(-time.Hour)}
	one := func(self ring.ID) *callers {
		return &callers{self: self, gone: func(caller uint64, _ time.Duration) { r.reported = append(r.reported, caller) }}
	}
	r.a, r.b = one("a"), one("b")
	return r
}

// open opens a connection of caller 7 to c, that many minutes after the start.
func (r *callerRig) open(c *callers, minute int) *callerConn {
	x := &callerConn{of: c, caller: owner.CallerOf(7, ""), opened: r.at(minute), pinger: &pings{}}
	if !c.add(x) {
		r.t.Fatal("not added")
	}
	return x
}

func (r *callerRig) at(minute int) time.Time { return r.start.Add(time.Duration(minute) * time.Minute) }

// expect requires that caller 7 was reported that often.
func (r *callerRig) expect(what string, n int) {
	r.t.Helper()
	for _, c := range r.reported {
		if c != 7 {
			r.t.Errorf("%s: caller %d was reported", what, c)
		}
	}
	if len(r.reported) != n {
		r.t.Errorf("%s: reported %d times, want %d", what, len(r.reported), n)
	}
}

// TestOlderConnectionsVouch requires that only the end of a caller's last connection that is not newer is reported, here
// and at another member.
func TestOlderConnectionsVouch(t *testing.T) {
	r := newCallerRig(t)
	first, second := r.open(r.a, 0), r.open(r.a, 1)
	there := r.open(r.b, 2)
	first.hold()
	if p := second.pinger.(*pings); p.n != 1 || there.pinger.(*pings).n != 0 {
		t.Errorf("pinged: %d, %d", p.n, there.pinger.(*pings).n)
	}
	first.Ended(r.at(10), true)
	r.expect("an older connection is left", 0)
	second.Ended(r.at(10), true)
	r.expect("none is left", 1)
	if !r.b.hasOlder(7, r.at(10)) || there.pinger.(*pings).n != 1 {
		t.Error("the connection to the other member does not vouch, or is not watched")
	}
	there.Ended(r.at(10), true) // it has made no hold itself
	r.expect("nor there", 2)
	if r.b.hasOlder(7, r.at(11)) || len(r.a.m)+len(r.b.m) != 0 {
		t.Error("a caller without connections vouches, or is remembered")
	}
}

// TestRestartedCallerDoesNotVouch requires that connections of a caller's next life do not vouch for its past.
func TestRestartedCallerDoesNotVouch(t *testing.T) {
	r := newCallerRig(t)
	old := r.open(r.a, 0)
	old.hold()
	here := r.open(r.a, 11)
	r.open(r.b, 11)
	old.Ended(r.at(10), true) // it was silent, and its end is noticed after the restart
	r.expect("restarted", 1)
	if r.b.hasOlder(7, r.at(10)) {
		t.Error("the restarted caller vouches at the other member")
	}
	if here.pinger.(*pings).n != 1 {
		t.Error("the new connection is not watched")
	}
	here.Ended(r.at(20), true)
	r.expect("dead again", 2)
}

// TestOwnEndProvesNothing requires that a connection that this member ends is not reported, but that the caller's later
// death is.
func TestOwnEndProvesNothing(t *testing.T) {
	r := newCallerRig(t)
	old := r.open(r.a, 0)
	old.hold()
	old.Ended(r.at(10), false)
	r.expect("ended here", 0)
	next := r.open(r.a, 11) // it makes no hold
	next.Ended(r.at(20), true)
	r.expect("dead", 1)
	idle := r.open(r.b, 0)
	idle.Ended(r.at(1), true)
	r.expect("a caller without slots", 1)
}

func TestCallerNumbers(t *testing.T) {
	a, b := &callers{self: "a"}, &callers{self: "b"}
	near, far := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 1}
	mapped := &net.TCPAddr{IP: net.ParseIP("::ffff:10.1.2.3"), Port: 2}
	unix := &net.UnixAddr{Name: "/s", Net: "unix"}
	switch {
	case a.number("", far) != b.number("", mapped):
		t.Error("an address has two numbers")
	case a.number("", near) == b.number("", near), owner.Who(a.number("", near)) == owner.Who(b.number("", near)):
		t.Error("callers over loopback of two members are one")
	case a.number("", near) != a.number("", unix):
		t.Error("a member's own Envoy has two numbers")
	case a.number("x", near) == a.number("x", far), owner.Who(a.number("x", near)) != owner.Who(b.number("x", far)):
		t.Error("the header must name the caller, and loopback the member")
	case a.number("x", near)&^owner.Who(^uint64(0)) != owner.MemberCallers("a"):
		t.Error("the member is not in the number")
	}
}

// TestCallersOverSockets requires that the end of a client's connections is reported, with the caller that it has named,
// and as having lived until then.
func TestCallersOverSockets(t *testing.T) {
	type report struct {
		caller uint64
		ago    time.Duration
	}
	reports := make(chan report, 9)
	c := &callers{self: "a", gone: func(caller uint64, ago time.Duration) { reports <- report{caller, ago} }}
	c.on.Store(true)
	numbers := make(chan uint64, 9)
	serve := h2Handler(func(k *h2.Stream) {
		x := c.track(k, k.Header(0))
		x.hold()
		numbers <- x.number()
		k.Reply(noBytes{})
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := h2.NewInlineServer(h2.Options{
		Methods: map[string]h2.Handler{"/a/b": serve}, Headers: []h2.KeptHeader{{Name: "x-keyward-caller", Max: 99}},
	})
	served := make(chan error)
	go func() { served <- s.Serve(l) }()
	call := func(conn *grpc.ClientConn, caller string) uint64 {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-keyward-caller", caller)
		if err := conn.Invoke(ctx, "/a/b", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
			t.Fatal(err)
		}
		return <-numbers
	}
	one, two := dial(t, l.Addr().String(), nil), dial(t, l.Addr().String(), nil)
	x, y := call(one, "x"), call(one, "y")
	if x2 := call(two, "x"); x2 != x || x == y || x&^owner.Who(x) != owner.MemberCallers("a") {
		t.Errorf("%x, %x, %x", x, x2, y)
	}
	one.Close()
	if r := <-reports; r.caller != owner.Who(y) || r.ago > time.Minute || !c.hasOlder(owner.Who(x), time.Now()) {
		t.Errorf("%x is reported, %v ago", r.caller, r.ago)
	}
	two.Close()
	if r := <-reports; r.caller != owner.Who(x) {
		t.Errorf("%x is reported", r.caller)
	}
	s.Shutdown(t.Context())
	if err := <-served; err != nil || len(reports) != 0 {
		t.Error(err, len(reports))
	}
}

type h2Handler func(*h2.Stream)

func (f h2Handler) Serve(k *h2.Stream) { f(k) }

type noBytes struct{}

func (noBytes) Append(b []byte) []byte { return b }

// TestManyCallers requires that the callers that are known are bounded, and that those without connections go first.
func TestManyCallers(t *testing.T) {
	r := newCallerRig(t)
	open := func(id uint64) *callerConn {
		x := &callerConn{of: r.a, caller: owner.CallerOf(id, ""), opened: r.start, pinger: &pings{}}
		if !r.a.add(x) {
			return nil
		}
		return x
	}
	first := open(1)
	first.hold()
	first.Ended(r.at(1), false)
	for id := range uint64(maxCallers) {
		if open(2+id) == nil {
			t.Fatalf("caller %d has no room", id)
		}
	}
	if open(maxCallers+9) != nil {
		t.Error("there is no bound")
	}
}
