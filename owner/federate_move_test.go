package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/handoff"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
)

// relay is a region whose key gets another owner twice, in a window that ends a second earlier by the coordinator's clock.
// The messages with the escrow take a while, and the members' clocks differ.
type relay struct {
	*regions
	q      Request
	clocks [3]int64
	asked  int
}

// owner returns the member that is the i-th owner of the key, which knows nothing of it.
func (w *relay) owner(i int) *Node {
	return member(Options{Self: "a", BootID: uint64(4001 + 2*i), Federation: placeOf(0, 1)}, t0, "a")
}

// take asks owner i for a hit, and reports whether it admits that from its escrow.
func (w *relay) take(n *Node, i int) bool {
	w.asked++
	w.q.Waiter = w.asked
	res := take(n, w.now+w.clocks[i], w.q)
	return res.Kind == Decided && res.Authority == Escrow && !res.Over
}

// pass lets owner i pass its escrow on, and returns the message.
func (w *relay) pass(n *Node, i int) (fx Ready) {
	s, _ := n.shard(w.q.Key)
	if x := s.escrows.keys[w.q.Key]; x != nil {
		n.passOn(s, w.q.Key, x, w.now+w.clocks[i], handoff.Ownership{State: handoff.OwnedElsewhere, Member: "b"}, &fx)
		n.dropEscrow(s, w.q.Key)
	}
	return fx
}

// arrive delivers the message of pass to owner i, delay later.
func (w *relay) arrive(n *Node, i int, fx Ready, delay time.Duration) {
	w.now += int64(delay)
	s, _ := n.shard(w.q.Key)
	for _, d := range fx.Leases {
		for j := range d.Batch.Notices {
			if x := &d.Batch.Notices[j]; x.Kind == lease.Move {
				n.acceptMove(s, w.now+w.clocks[i], x)
			}
		}
	}
}

// run moves the escrow, with messages that take delay each. It returns whether the second owner spent a hit of it, and when
// the third one spent the last, from the end of the window by the coordinator's clock.
func (w *relay) run(delay time.Duration) (second bool, last time.Duration) {
	end := w.q.Rule.End(w.q.Rule.Index(w.now+w.ahead)) - w.ahead // by the first owner's clock, as now
	for w.now = end - int64(5*time.Second); w.now < end-int64(2*time.Second); w.wait(10) {
		w.q.Waiter = w.now
		take(w.nodes[0], w.now, w.q)
	}
	w.now, end = w.now-w.clocks[0], end-w.clocks[0] // from here on, by the true time
	two, three := w.owner(1), w.owner(2)
	w.arrive(two, 1, w.pass(w.nodes[0], 0), delay)
	second = w.take(two, 1)
	w.arrive(three, 2, w.pass(two, 1), delay)
	w.now = max(w.now, end-int64(450*time.Millisecond))
	for last = -time.Hour; w.now < end+int64(2*time.Second); w.now += int64(50 * time.Millisecond) {
		if w.take(three, 2) {
			last = time.Duration(w.now - end)
		}
	}
	return second, last
}

// Nothing of a moved escrow is spent later than 250 ms after the end of its window by the coordinator's clock, however long
// the messages are on their way, if the members' clocks differ by at most that; and in any case if the messages take less.
func TestMovedHitsEndWithTheirWindow(t *testing.T) {
	const off = int64(limit.ClockTolerance)
	for _, clocks := range [][3]int64{{}, {off, 0, 0}, {off, off, 0}, {off, 0, off}, {0, off, 0}, {0, 0, off}, {8 * off, 0, 0}} {
		for _, delay := range []time.Duration{0, 100, 400, 900, 1300} {
			delay *= time.Millisecond
			if clocks[0] > off && 2*delay > limit.ClockTolerance {
				continue
			}
			w := &relay{regions: newRegions(t, 1), clocks: clocks}
			w.ahead, w.terms.Floor, w.terms.Batch = int64(time.Second), 0, time.Second
			w.q = w.ask(1000, 10*time.Second)
			second, last := w.run(delay)
			if last >= limit.ClockTolerance {
				t.Errorf("clocks %v, delay %v: spent %v after the end", clocks, delay, last)
			}
			if delay < 500*time.Millisecond && (!second || last < -450*time.Millisecond) {
				t.Errorf("clocks %v, delay %v: second owner %v, third one until %v", clocks, delay, second, last)
			}
		}
	}
}

// The hits of an escrow that has moved are spent once, also if the message with them comes again when their key has moved on
// and come back.
func TestMovedHitsArriveOnce(t *testing.T) {
	w := &relay{regions: newRegions(t, 1)}
	w.terms.Floor, w.terms.Batch = 0, time.Second
	w.q = w.ask(1000, 10*time.Second)
	for first := w.nodes[0]; w.now < t0+int64(time.Second); w.wait(10) {
		w.q.Waiter = w.now
		take(first, w.now, w.q)
	}
	two, message := w.owner(1), w.pass(w.nodes[0], 0)
	w.arrive(two, 1, message, time.Millisecond)
	if !w.take(two, 1) {
		t.Fatal("what was moved is not there")
	}
	w.pass(two, 1)
	w.arrive(two, 1, message, time.Millisecond)
	if w.take(two, 1) {
		t.Error("what was moved is spent where it was before, too")
	}
}
