package owner

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

type (
	// holdCall is one operation of a client on the counter.
	holdCall struct {
		op   Op
		id   uint64
		hits uint64
	}
	// holdReply is the answer that its client gets: of a DryRun the count.
	holdReply struct {
		over  bool
		count uint64
	}
	// modelCount is the state of the model.
	modelCount struct {
		spent uint64
		open  [maxModelHolds]uint8 // hits of each open hold
	}
)

// maxModelHolds is the most holds of a history. Their ids are not used again.
const maxModelHolds = 128

// holdModel is the law of a counter with holds in one window: a reserve is admitted and charged if and only if it fits,
// its first settlement leaves as many hits as were used, and a read returns what is charged.
func holdModel(most uint64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return modelCount{} },
		Step: func(before, input, output any) (bool, any) {
			s, in, out := before.(modelCount), input.(holdCall), output.(holdReply)
			fits := s.spent+in.hits <= most
			switch {
			case in.op == DryRun:
				return out.count == s.spent, s
			case in.op == Take: // charged also if it does not fit
				s.spent += in.hits
				return out.over == !fits, s
			case in.op == Reserve && fits:
				s.spent, s.open[in.id] = s.spent+in.hits, uint8(in.hits)
				fallthrough
			case in.op == Reserve:
				return out.over == !fits, s
			case s.open[in.id] == 0: // settled before
				return true, s
			case in.op == Commit:
				s.spent += in.hits - uint64(s.open[in.id])
			case in.op == Release:
				s.spent -= uint64(s.open[in.id])
			}
			s.open[in.id] = 0
			return true, s
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
}

// holdOp is an operation in progress.
type holdOp struct {
	call holdCall
	q    Request
	by   ring.ID // whose answer it waits for
	from int64
}

// holdHistory records concurrent operations on one counter while members of a cluster are restarted.
type holdHistory struct {
	w       *network
	r       limit.Rule
	next    uint64
	ids     []uint64 // of admitted holds
	waiting []*holdOp
	again   []*holdOp // that no member has decided
	ops     []porcupine.Operation
	clock   int64
	joining ring.ID // clients do not ask it yet: it would decide from its share
}

func (h *holdHistory) some() ring.ID {
	for {
		ids := h.w.ids()
		if id := ids[h.w.rnd.IntN(len(ids))]; id != h.joining {
			return id
		}
	}
}

// start starts an operation at some member.
func (h *holdHistory) start(c holdCall) {
	h.clock++
	p := &holdOp{call: c, q: hold(1, c.id, c.op, h.r, c.hits), from: h.clock}
	if p.q.Strict = true; c.op == DryRun || c.op == Take {
		p.q.Hold = nil
	}
	p.q.Waiter = p
	h.send(p)
}

func (h *holdHistory) send(p *holdOp) {
	p.by = h.some()
	h.follow(p, h.w.nodes[p.by].Decide(h.w.now, &p.q))
}

// follow processes a result.
func (h *holdHistory) follow(p *holdOp, res Result) {
	for hops := 0; res.Kind == Forward && res.Member != "" && h.w.nodes[res.Member] != nil && hops < 3; hops++ {
		p.by = res.Member
		results := make([]Result, 1)
		h.w.nodes[p.by].Serve(h.w.now, false, []Request{p.q}, results)
		res = results[0]
	}
	switch {
	case res.Kind == Pending:
		h.waiting = append(h.waiting, p)
	case res.Kind == Forward:
		h.again = append(h.again, p)
	case res.Authority != Full:
		h.w.t.Fatalf("%+v was decided with authority %d", p.call, res.Authority)
	default:
		h.clock++
		out := holdReply{over: res.Over, count: res.After}
		h.ops = append(h.ops, porcupine.Operation{ClientId: len(h.ops), Input: p.call, Output: out, Call: p.from, Return: h.clock})
		if p.call.op == Reserve && !res.Over {
			h.ids = append(h.ids, p.call.id)
		}
	}
}

// poll processes the results that have come.
func (h *holdHistory) poll() {
	for _, p := range slices.Clone(h.waiting) {
		if res, ok := h.w.done[p.by][p]; ok {
			delete(h.w.done[p.by], p)
			h.waiting = slices.DeleteFunc(h.waiting, func(o *holdOp) bool { return o == p })
			h.follow(p, res)
		}
	}
	again := h.again
	h.again = nil
	for _, p := range again {
		h.send(p)
	}
}

// step starts a random operation, and lets the members work.
func (h *holdHistory) step() {
	switch n := h.w.rnd.IntN(10); {
	case len(h.waiting)+len(h.again) > 4:
	case n < 4 && h.next < maxModelHolds:
		h.next++
		h.start(holdCall{Reserve, h.next - 1, 1 + h.w.rnd.Uint64N(9)})
	case n < 7 && len(h.ids) > 0:
		id := h.ids[h.w.rnd.IntN(len(h.ids))] // perhaps a settled one
		c := holdCall{[]Op{Commit, Commit, Release, Keep}[h.w.rnd.IntN(4)], id, 0}
		if c.op == Commit {
			c.hits = h.w.rnd.Uint64N(9)
		}
		h.start(c)
	case n == 7:
		h.start(holdCall{Take, 0, 1})
	default:
		h.start(holdCall{op: DryRun})
	}
	h.w.step(true)
	if h.w.rnd.IntN(4) == 0 {
		h.w.run(2 * time.Millisecond)
	}
	h.poll()
}

func (h *holdHistory) load(n int) {
	for range n {
		h.step()
	}
}

// end waits for all operations.
func (h *holdHistory) end() {
	for range 1000 {
		if len(h.waiting)+len(h.again) == 0 {
			return
		}
		h.w.run(10 * time.Millisecond)
		h.poll()
	}
	h.w.t.Fatalf("%d operations are not decided", len(h.waiting)+len(h.again))
}

// restart restarts the owner of the key in good order.
func (h *holdHistory) restart(t *testing.T) {
	q := hold(1, 0, Reserve, h.r, 0)
	owner := h.w.ownerOf(&q)
	h.w.leave(t, owner, func(n int) { h.load(n / 6) })
	h.end()
	h.load(10)
	h.joining = owner
	h.w.boot(owner, membership.Active)
	h.w.left, h.w.nref = nil, len(h.w.nodes)
	for _, id := range h.w.ids() {
		h.w.adoptAt(id, h.w.ring())
		h.load(6)
	}
	h.w.run(2 * time.Second)
	h.joining = ""
	h.load(20)
}

// TestHoldsAreLinearizable requires that what clients see of a counter with holds, while its owners are restarted, equals the
// answers of one counter to one client after the other.
func TestHoldsAreLinearizable(t *testing.T) {
	for seed := range seeds(12) {
		h := &holdHistory{w: newNetwork(t, seed, Options{}, "a", "b", "c"), r: limit.Rule{Window: time.Hour, Limit: 60}}
		if seed%3 == 1 {
			h.r.Algorithm = limit.SlidingWindow
		}
		h.load(40)
		h.restart(t)
		h.restart(t)
		h.end()
		model := holdModel(uint64(h.r.Limit))
		if res := porcupine.CheckOperationsTimeout(model, h.ops, time.Minute); res != porcupine.Ok {
			t.Fatalf("seed %d: %d operations: %v", seed, len(h.ops), res)
		}
		i := slices.IndexFunc(h.ops, func(o porcupine.Operation) bool { return o.Input.(holdCall).op == DryRun })
		if i >= 0 {
			h.ops[i].Output = holdReply{count: 61 + 1000}
			if porcupine.CheckOperationsTimeout(model, h.ops, time.Minute) != porcupine.Illegal {
				t.Errorf("seed %d: a wrong count is not noticed", seed)
			}
		}
		t.Logf("seed %d: %d operations, %d holds", seed, len(h.ops), h.next)
	}
}
