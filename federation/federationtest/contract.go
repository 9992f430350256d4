package federationtest

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

func (s *suite) partialGrant() {
	s.expect("a", request(70), 70, 70, 100)
	s.expect("b", request(70), 30, 100, 100)
	s.expect("c", request(1), 0, 100, 100)
	g := s.grant("d", request(0))
	if want := request(0); g.Key != want.Key || g.Seq != 1 || g.Window != want.Rule.Index(start) || g.Left != window {
		s.Errorf("%+v", g)
	}
}

func (s *suite) nothingWanted() {
	s.expect("a", request(7), 7, 7, 100)
	s.expect("a", at(2, s.holding(7, 0)), 7, 7, 100)
}

// repeated requires that a request which arrives again, or late, counts once.
func (s *suite) repeated() {
	s.expect("a", request(7), 7, 7, 100)
	s.refuse("a", request(7))
	s.expect("a", at(3, s.holding(7, 5)), 12, 12, 100)
	s.refuse("a", at(2, s.holding(3, 50)))
	s.advance(time.Minute)
	s.refuse("a", at(2, s.holding(3, 50)))
	s.expect("a", at(4, s.holding(12, 0)), 12, 12, 100)
}

func (s *suite) lostGrant() {
	s.expect("a", request(7), 7, 7, 100)
	s.expect("a", at(2, request(4)), 4, 4, 100)
	s.expect("a", at(3, s.holding(4, 1)), 5, 5, 100)
}

func (s *suite) returned() {
	s.expect("a", request(100), 100, 100, 100)
	s.expect("a", at(2, s.holding(40, 0)), 40, 40, 100)
	s.refuse("a", at(2, s.holding(40, 0)))
	s.expect("b", request(100), 60, 100, 100)
	s.expect("a", at(3, s.holding(40, 9)), 40, 100, 100)
}

// newBoot requires that the hits of an escrow that is lost stay charged.
func (s *suite) newBoot() {
	s.expect("a", request(30), 30, 30, 100)
	second := at(2, request(10))
	second.Boot = 2
	s.expect("a", second, 10, 40, 100)
	s.refuse("a", at(1, request(10)))
	second = at(3, s.holding(4, 0))
	second.Boot = 2
	s.expect("a", second, 4, 34, 100)
}

// bootWithClockBehind requires that a lower Seq of another boot is accepted once it cannot be an old message.
func (s *suite) bootWithClockBehind() {
	s.expect("a", at(1000, request(30)), 30, 30, 100)
	behind := at(5, request(10))
	behind.Boot = 2
	s.advance(10*time.Second - time.Microsecond)
	s.refuse("a", behind)
	s.advance(time.Microsecond)
	s.expect("a", behind, 10, 40, 100)
}

// lostWrite requires that hits of a region that has more than is recorded are charged.
func (s *suite) lostWrite() {
	s.expect("a", s.holding(60, 10), 70, 70, 100)
	s.expect("b", request(10), 10, 80, 100)
	s.expect("b", at(2, s.holding(35, 10)), 35, 105, 100)
}

func (s *suite) refused() {
	for name, change := range map[string]func(r *federation.PoolRequest){
		"an earlier layout":     func(r *federation.PoolRequest) { r.Epoch-- },
		"a later layout":        func(r *federation.PoolRequest) { r.Epoch++ },
		"more left than it has": func(r *federation.PoolRequest) { r.Left = r.Have + 1 },
		"a window to come":      func(r *federation.PoolRequest) { r.Window++ },
		"a long note":           func(r *federation.PoolRequest) { r.Note = make([]byte, federation.MaxNote+1) },
		"a pool over the limit": func(r *federation.PoolRequest) { r.Pool = uint64(r.Rule.Limit) + 1 },
		"a bucket":              func(r *federation.PoolRequest) { r.Rule.Algorithm = limit.TokenBucket },
		"no window":             func(r *federation.PoolRequest) { r.Rule.Window = 0 },
		"a window of nanoseconds": func(r *federation.PoolRequest) {
			r.Rule.Window = 1500
		},
		"no number":           func(r *federation.PoolRequest) { r.Seq = 0 },
		"a huge balance":      func(r *federation.PoolRequest) { r.Have = 1<<40 + 1 },
		"a huge wish":         func(r *federation.PoolRequest) { r.Tokens = math.MaxUint64 },
		"a huge past balance": func(r *federation.PoolRequest) { r.Past.Have = math.MaxUint64 },
	} {
		r := s.holding(8, 5)
		change(&r)
		if gs := s.lease("a", r); len(gs) != 0 {
			s.Errorf("%s: not refused: %+v", name, gs)
		}
	}
	if g := s.grant("b", request(1)); g.Used != 1 || len(g.Others) != 0 {
		s.Errorf("after refused requests: %+v", g)
	}
}

func (s *suite) tooManyRegions() {
	for i := range 256 {
		s.grant(fmt.Sprintf("region-%d", i), request(0))
	}
	s.refuse("one-more", request(1))
	s.expect("region-255", at(2, request(1)), 1, 1, 100)
}

// fixedWindowEnds requires that hits of a window end with it, and that a clock which is set back does not bring it back.
func (s *suite) fixedWindowEnds() {
	s.expect("a", request(70), 70, 70, 100)
	late := at(2, s.holding(20, 5))
	late.Past = federation.Past{Window: late.Window - 1, Have: 3}
	s.advance(window)
	s.expect("a", late, 5, 5, 100)
	past := at(3, s.holding(5, 0))
	past.Past = federation.Past{Window: past.Window - 1, Have: 0}
	s.expect("a", past, 5, 5, 100)
	s.advance(-time.Microsecond)
	s.refuse("b", request(1))
}

// slidingWindowWeighs requires that the past window weighs with what was spent of it, and that the rest is credited once.
func (s *suite) slidingWindowWeighs() {
	s.expect("a", sliding(request(50)), 50, 50, 100)
	s.expect("b", sliding(request(30)), 30, 80, 100)
	s.advance(window + window/2)
	s.expect("b", sliding(at(2, request(1))), 1, 1, 60)
	report := func(seq, kept uint64) federation.PoolRequest {
		r := sliding(at(seq, request(0)))
		r.Past = federation.Past{Window: r.Rule.Index(s.now.Load()) - 1, Have: kept}
		return r
	}
	s.expect("a", report(2, 11), 0, 1, 79) // 11 + 30 weigh 20.5
	s.refuse("a", report(2, 11))
	s.expect("a", report(3, 11), 0, 1, 79)
	s.expect("a", report(4, 45), 0, 1, 79)
	s.expect("a", report(5, 10), 0, 1, 80)
	s.advance(window / 4)
	s.expect("a", sliding(at(6, request(100))), 89, 90, 90)
}

func (s *suite) slidingWindowForgets() {
	s.expect("a", sliding(request(80)), 80, 80, 100)
	s.advance(2 * window)
	s.expect("a", sliding(at(2, request(100))), 100, 100, 100)
}

// pastOfEarlierBoot requires that what an earlier boot had of the past window stays charged.
func (s *suite) pastOfEarlierBoot() {
	s.expect("a", sliding(request(80)), 80, 80, 100)
	s.advance(window)
	r := sliding(at(2, request(0)))
	r.Boot, r.Past = 2, federation.Past{Window: r.Rule.Index(start), Have: 0}
	s.expect("a", r, 0, 0, 20)
}

func (s *suite) others() {
	c := request(30)
	c.Note = []byte("note of c")
	s.grant("c", c)
	s.advance(1500 * time.Millisecond)
	s.grant("a", s.holding(8, 2))
	s.advance(time.Second)
	want := []federation.RegionLine{
		{Region: "a", Granted: 10, Left: 6, Age: time.Second},
		{Region: "c", Granted: 30, Left: 30, Age: 2500 * time.Millisecond, Note: []byte("note of c")},
	}
	if got := s.grant("b", request(1)).Others; !slices.EqualFunc(got, want, sameLine) {
		s.Errorf("%+v", got)
	}
	s.advance(window)
	if got := s.grant("b", at(2, request(1))).Others; len(got) != 0 {
		s.Errorf("in the next window: %+v", got)
	}
}

func (s *suite) notesOfAnyBytes() {
	for n, note := range [][]byte{{0}, {0, 0, '\n', ' ', 0xff}, make([]byte, federation.MaxNote)} {
		if n == 2 {
			for i := range note {
				note[i] = byte(i)
			}
		}
		r := at(uint64(n+1), request(0))
		r.Note = note
		s.grant("a", r)
		if got := s.grant("b", r).Others; len(got) != 1 || string(got[0].Note) != string(note) {
			s.Errorf("%q became %+v", note, got)
		}
	}
}

// largeNumbers requires that counts and identifiers beyond 2^53 and 2^63 are exact.
func (s *suite) largeNumbers() {
	r := request(math.MaxUint32 - 1)
	r.Rule.Limit, r.Pool = math.MaxUint32, math.MaxUint32
	r.Boot, r.Seq = math.MaxUint64-1, math.MaxUint64-2
	s.expect("a", r, math.MaxUint32-1, math.MaxUint32-1, math.MaxUint32)
	r.Seq++
	r.Window, r.Have, r.Tokens = r.Rule.Index(start), math.MaxUint32-1, 5
	s.expect("a", r, math.MaxUint32, math.MaxUint32, math.MaxUint32)
	s.refuse("a", r)
	r.Boot, r.Seq, r.Have, r.Tokens = math.MaxUint64, math.MaxUint64, 0, 5
	if g := s.grant("a", r); g.Seq != math.MaxUint64 || g.Used != math.MaxUint32 || g.Total != 0 {
		s.Errorf("%+v", g)
	}
}

// countStops requires that the charged hits stop at 2^52 instead of becoming inexact or small again.
func (s *suite) countStops() {
	var rs []federation.PoolRequest
	for i := range uint64(1<<12 + 1) {
		r := at(i+1, s.holding(1<<40, 1))
		r.Boot = i
		rs = append(rs, r)
	}
	gs := s.lease("a", rs...)
	if len(gs) != len(rs) || gs[4094].Used != 1<<52-1<<40 || gs[4095].Used != 1<<52 || gs[4096].Used != 1<<52 {
		s.Errorf("%d grants, the last one %+v", len(gs), gs[len(gs)-1])
	}
}

func (s *suite) manyKeysInOrder() {
	var rs []federation.PoolRequest
	for i := range uint64(40) {
		r := at(i+1, request(i))
		r.Key[0] ^= i * 0x9e3779b97f4a7c15
		r.Key[1] += i
		r.Name = fmt.Sprintf("edge_key_%d_", i)
		if i%10 == 3 {
			r.Epoch++
		}
		rs = append(rs, r)
	}
	gs := s.lease("a", rs...)
	rs = slices.DeleteFunc(rs, func(r federation.PoolRequest) bool { return r.Epoch != epoch })
	same := func(g federation.PoolGrant, r federation.PoolRequest) bool {
		return g.Key == r.Key && g.Seq == r.Seq && g.Total == r.Tokens
	}
	if !slices.EqualFunc(gs, rs, same) {
		s.Errorf("%+v", gs)
	}
	if gs := s.lease("a"); len(gs) != 0 {
		s.Errorf("no requests: %+v", gs)
	}
}

func (s *suite) reconcile() {
	s.expect("a", request(100), 100, 100, 100)
	if err := s.c.Reconcile(s.Context(), "a", []federation.PoolRequest{at(2, s.holding(25, 0))}); err != nil {
		s.Fatal(err)
	}
	s.expect("b", request(100), 75, 100, 100)
}

// chargedBeforeLent has eight regions request until the pool is empty. They must get the whole pool, and no hit more.
func (s *suite) chargedBeforeLent() {
	const regions, pool = 8, 1000
	totals := make([]uint64, regions)
	var all sync.WaitGroup
	for i := range totals {
		all.Go(func() {
			ctx, cancel := bounded(s.T)
			defer cancel()
			for seq := uint64(1); ; seq++ {
				r := at(seq, s.holding(totals[i], uint64(3+i)))
				r.Rule.Limit, r.Pool = pool, pool
				gs, err := s.c.Lease(ctx, fmt.Sprintf("region-%d", i), []federation.PoolRequest{r})
				if err != nil || len(gs) != 1 {
					s.Errorf("%v %v", gs, err)
					return
				}
				if gs[0].Total == totals[i] {
					return
				}
				totals[i] = gs[0].Total
			}
		})
	}
	all.Wait()
	sum := uint64(0)
	for _, n := range totals {
		sum += n
	}
	if sum != pool {
		s.Errorf("%v: %d hits of a pool of %d", totals, sum, pool)
	}
}

// restOfWindow requires that a Coordinator lends only the rest of a window that began before its memory, and nothing of
// one that ended before it.
func restOfWindow(t *testing.T, open Open) {
	s := newSuite(t, open, start+int64(window)*7/4)
	s.expect("a", request(100), 0, 0, 0)
	s.advance(window * 7 / 4)
	s.expect("a", at(2, request(100)), 25, 25, 25)
	s.advance(window / 4)
	s.expect("a", at(3, request(100)), 100, 100, 100)
}

func sameLine(a, b federation.RegionLine) bool {
	return a.Region == b.Region && a.Granted == b.Granted && a.Left == b.Left && a.Age == b.Age && string(a.Note) == string(b.Note)
}

// layoutOfWindow requires that a window is lent by the layout of its begin, and that requests of the other one change nothing.
func (s *suite) layoutOfWindow() {
	later := func(seq uint64, r federation.PoolRequest) federation.PoolRequest {
		r.Epoch++
		return at(seq, r)
	}
	s.advance(lastWindows*window - time.Microsecond)
	s.refuse("a", later(1, request(10)))
	s.expect("b", request(30), 30, 30, 100)
	s.advance(time.Microsecond)
	s.refuse("b", at(2, request(10)))
	s.expect("a", later(2, request(20)), 20, 20, 100)
	s.refuse("b", at(3, request(10)))
	s.expect("b", later(4, request(5)), 5, 25, 100)
}
