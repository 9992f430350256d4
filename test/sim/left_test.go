package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
)

// farewell is a world of three members: one that decides, its successor, and one that is joining.
type farewell struct {
	w                         *world
	decider, successor, third *member
	requests                  uint64
}

func newFarewell() *farewell {
	o := options{
		Seed: 1, Members: 3, Slots: 3, Keys: 1, Length: time.Second, Deadline: time.Second, Decay: time.Minute,
		Serial: true, Algorithms: []limit.Algorithm{limit.InFlight}, Policy: policy.PartAvailable, Full: true,
	}
	o.Holds.On = true
	w := newRunner(false).newWorld(o, noBug)
	w.rules[0][0].limit = limit.Rule{Algorithm: limit.InFlight, Limit: 4, Window: time.Minute}
	f := &farewell{w: w, third: w.slots[2].now}
	r := w.ringOf([]int{1, 1, 0})
	i := r.Owner(w.rules[0][0].owner)
	f.decider, f.successor = w.slots[slotOf(r.At(i).ID)].now, w.slots[1-slotOf(r.At(i).ID)].now
	f.decider.view = &membership.View{Ring: r}
	f.third.view = &membership.View{Ring: w.ringOf([]int{0, 0, 0})}
	return f
}

// ask makes m admit a request, sent so many times, that counts so many requests in flight before it.
func (f *farewell) ask(m *member, before uint64, sent int) {
	f.requests++
	r := &f.w.rules[0][0]
	q := &request{id: f.requests, from: m, req: owner.Request{Key: r.digest, RingPos: r.owner, Rule: r.limit, Hits: 1, Op: owner.Reserve}}
	q.hold = &hold{w: f.w, id: claim.Ident{1, q.id}, hits: 1, ttl: time.Minute, sent: sent}
	v := decision{by: m, earliest: m.clock(), latest: m.clock(), result: owner.Result{Kind: owner.Decided, Authority: owner.Full}}
	v.result.Before, v.result.After = before, before+1
	f.w.oracle.decided(q, &v)
	f.w.oracle.answered(q, &v)
}

// leave makes the decider leave with a ring of these boots.
func (f *farewell) leave(boots ...int) {
	f.decider.view = &membership.View{Ring: f.w.ringOf(boots)}
	f.w.oracle.left(f.decider)
	f.end(f.decider)
}

func (f *farewell) end(m *member) { m.gone, f.w.slots[m.slot].now = true, nil }

// start puts the joining member on the ring, alone.
func (f *farewell) start() { f.third.view = &membership.View{Ring: f.w.ringOf([]int{0, 0, 1})} }

// If the last member that knows the requests in flight leaves and no member can take them over, the next one does not count
// them. It counts all others.
func TestForgottenRequestsInFlight(t *testing.T) {
	const crashed, runs = true, false
	for _, c := range []struct {
		name      string
		successor bool  // has crashed
		ring      []int // of the member that leaves
		counts    []uint64
		fails     string
	}{
		{"no other member knows them", crashed, []int{0, 0, 0}, []uint64{0, 1, 2, 3}, ""},
		{"a later one is missing", crashed, []int{0, 0, 0}, []uint64{0, 1, 1}, "H1"},
		{"all later ones are missing", crashed, []int{0, 0, 0}, []uint64{0, 0}, "H1"},
		{"they were handed over", crashed, []int{0, 0, 1}, []uint64{0}, "H1"},
		{"they were handed over and counted", crashed, []int{0, 0, 1}, []uint64{3}, ""},
		{"the successor knows them", runs, []int{0, 0, 0}, []uint64{0}, "H1"},
	} {
		for _, known := range []bool{false, true} { // the joining member knows a ring, all of whose members have crashed
			t.Run(fmt.Sprint(c.name, ", ring known ", known), func(t *testing.T) {
				f := newFarewell()
				for i := range uint64(3) {
					f.ask(f.decider, i, 1)
				}
				if c.successor == crashed {
					f.end(f.successor)
				} else {
					f.successor.view = f.decider.view
				}
				if known {
					f.third.view = &membership.View{Ring: f.w.ringOf([]int{1, 1, 0})}
				} else {
					f.third.table[f.third.slot].state = joining
				}
				f.leave(c.ring...)
				f.start()
				for _, n := range c.counts {
					f.ask(f.third, n, 1)
				}
				if s := f.w.failure; (s == "") != (c.fails == "") || !strings.HasPrefix(s, c.fails) {
					t.Errorf("failure %q, want %q", s, c.fails)
				}
			})
		}
	}
}

// The slots of forgotten requests are free, and no others are.
func TestForgottenRequestsFreeTheirSlots(t *testing.T) {
	f := newFarewell()
	for i := range uint64(2) {
		f.ask(f.decider, i, 1)
	}
	f.end(f.successor)
	f.leave(0, 0, 0)
	f.start()
	for i := range uint64(4) {
		f.ask(f.third, i, 1)
	}
	if f.w.failure != "" {
		t.Fatal(f.w.failure)
	}
	f.ask(f.third, 4, 2) // a repeated request may be admitted beyond the limit only if it was before
	if !strings.HasPrefix(f.w.failure, "H2") {
		t.Errorf("failure %q, want H2", f.w.failure)
	}
}
