package rls

import (
	"fmt"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// late is a Decider that returns results on its own goroutine, after Begin has returned or before.
type late struct {
	*lone
	early bool
	todo  chan pendingRequests
}

// pendingRequests is one call of such a Decider.
type pendingRequests struct {
	stop bool
	qs   []owner.Request
	as   []owner.Result
	done interface{ Decided() }
}

func newLate(t testing.TB, of *lone) *late {
	l := &late{lone: of, todo: make(chan pendingRequests, 16)}
	t.Cleanup(func() { close(l.todo) })
	go func() {
		for q := range l.todo {
			l.answer(q)
		}
	}()
	return l
}

func (l *late) answer(q pendingRequests) {
	l.lone.Decide(policy.Deadline{}, q.stop, q.qs, q.as)
	q.done.Decided()
}

func (l *late) Begin(_ policy.Deadline, stop bool, qs []owner.Request, as []owner.Result, done interface{ Decided() }) bool {
	q := pendingRequests{stop, qs, as, done}
	if l.early {
		l.answer(q)
	} else {
		l.todo <- q
	}
	return false
}

// catch receives the call that Begin has left pending.
type catch chan *Call

func (k catch) Answered(c *Call) { k <- c }

// beginMessage answers a message as a server does that does not block.
func (r *rig) beginMessage(t testing.TB, message []byte) (answer string, at bool) {
	t.Helper()
	c, done := r.NewCall(), make(catch, 1)
	if err := r.Decode(c, message); err != nil {
		return err.Error(), true
	}
	if at = r.begin(c, Caller{Key: "foo"}, done); !at {
		if got := <-done; got != c {
			t.Fatal("another call was answered")
		}
	}
	defer r.Release(c)
	if c.Err != nil {
		return c.Err.Error(), at
	}
	resp := new(pb.RateLimitResponse)
	if err := proto.Unmarshal(c.Response.Append(nil), resp); err != nil {
		t.Fatal(err)
	}
	return brief(resp), at
}

// Responses do not depend on when and on which goroutine results arrive. Calls without a decision are never late.
func TestBegin(t *testing.T) {
	messages := [][]byte{
		encodeRequest(t, request("basic", descriptor("one", "a"))), encodeRequest(t, request("basic", descriptor("one", "a"))),
		encodeRequest(t, request("basic", descriptor("key1", "b"), descriptor("free", ""), descriptor("one", "a"))),
		encodeRequest(t, request("basic", override(descriptor("key1", "u"), 1, 0), descriptor("key1", "u"))),
		encodeRequest(t, request("basic", descriptor("nothing", ""))), encodeRequest(t, request("other", descriptor("k", "v"))),
		encodeRequest(t, request("", descriptor("k", "v"))), encodeRequest(t, request("basic")),
	}
	decided := 4 // of them need a decision
	for _, early := range []bool{false, true} {
		var l *late
		r := newRig(t, basic, func(o *Options, _ *Switches) {
			l = newLate(t, o.Decider.(*lone))
			l.early = early
			o.Decider = l
		})
		plain := newRig(t, basic)
		for i, m := range messages {
			got, at := r.beginMessage(t, m)
			want, _ := plain.beginMessage(t, m)
			if got != want || at != (i >= decided) {
				t.Errorf("early %v, message %d: %q at once %v, want %q", early, i, got, at, want)
			}
		}
		for _, key := range []string{"basic.one", "basic.key1"} {
			if got, want := fmt.Sprint(r.counts(key)), fmt.Sprint(plain.counts(key)); got != want {
				t.Errorf("early %v: statistics of %s %s, want %s", early, key, got, want)
			}
		}
		for _, name := range []string{"keyward_direct_total", "keyward_decision_duration_seconds"} {
			if got, want := r.metric(t, name), plain.metric(t, name); got != want {
				t.Errorf("early %v: %s %v, want %v", early, name, got, want)
			}
		}
	}
}
