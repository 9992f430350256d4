package peer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// setNames returns the names of one key of each of three members.
func setNames(ms []*member) (names []string) {
	r := ringOf(ids(ms)...)
	for _, m := range ms {
		names = append(names, ownedBy(r, m.id, 1)[0])
	}
	return names
}

// variant returns q with another counter of the same owner.
func variant(q owner.Request, name string) owner.Request {
	q.Key[0] += ring.Hash(name)
	return q
}

// charged returns what q's owner has counted.
func charged(m *member, q owner.Request) uint64 {
	q.Op, q.Hits, q.Hold, q.Whole = owner.Read, 0, nil, false
	return m.decideOne(patience, q).After
}

// TestSetEqualsTwoRounds requires the results of stop mode over several owners, and what is charged, to equal those of a
// dry run and a second round, for every algorithm.
func TestSetEqualsTwoRounds(t *testing.T) {
	ms := newCluster(t, 3)
	names := setNames(ms)
	for _, a := range []limit.Algorithm{
		limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog, limit.TokenBucket, limit.LeakyBucket, limit.InFlight,
	} {
		t.Run(a.String(), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, uint64(a)))
			for range 60 {
				var reqs [2][]owner.Request
				for i, name := range names {
					q := newRequest(name, 40+uint32(20*i), uint64(rnd.IntN(8)))
					q.Rule.Algorithm, q.Rule.Window = a, 24*time.Hour
					if rnd.IntN(10) == 0 {
						q.Op = owner.Refund
					}
					reqs[0] = append(reqs[0], variant(q, "set "+a.String()))
					reqs[1] = append(reqs[1], variant(q, "rounds "+a.String()))
				}
				var results [2][]owner.Result
				for i := range results {
					results[i] = make([]owner.Result, len(names))
				}
				ms[0].Decide(by(patience), true, reqs[0], results[0])
				s := new(scratch)
				ms[0].decideRounds(s, callArgs{by(patience), reqs[1], results[1], nil})
				compareSets(t, results[0], results[1])
				for i := range names {
					if one, two := charged(ms[1], reqs[0][i]), charged(ms[1], reqs[1][i]); one != two {
						t.Fatalf("%d charged, %d in two rounds", one, two)
					}
				}
			}
		})
	}
}

func compareSets(t *testing.T, one, two []owner.Result) {
	t.Helper()
	for i := range one {
		a, b := one[i], two[i]
		if d := a.Reset - b.Reset; d >= -time.Second && d <= time.Second {
			a.Reset = b.Reset // a second may end in between
		}
		a.ReadRemaining, a.ReadReset = 0, 0
		if a != b {
			t.Fatalf("result %d: %+v, in two rounds %+v", i, a, b)
		}
	}
}

// TestSetsCharge requires that of calls that are whole, from three members at once, each key counts exactly what was
// admitted, and never more than its limit.
func TestSetsCharge(t *testing.T) {
	ms := newCluster(t, 3)
	names := setNames(ms)
	limits := []uint32{400, 300, 350}
	var admitted [3]atomic.Int64
	var wg sync.WaitGroup
	for n, m := range ms {
		for caller := range 4 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(n), uint64(caller)))
				for range 100 {
					var reqs []owner.Request
					var of []int
					for i, name := range names {
						if rnd.IntN(3) > 0 {
							q := newRequest(name, limits[i], 1+uint64(rnd.IntN(3)))
							q.Whole = true
							reqs, of = append(reqs, q), append(of, i)
						}
					}
					results := make([]owner.Result, len(reqs))
					if m.Decide(by(patience), false, reqs, results); owner.Refused(reqs, results) {
						continue
					}
					for j, i := range of {
						admitted[i].Add(int64(reqs[j].Hits))
					}
				}
			})
		}
	}
	wg.Wait()
	full := 0
	for i, name := range names {
		q, want := newRequest(name, limits[i], 0), uint64(admitted[i].Load())
		await(t, "the releases", func() bool { return charged(ms[0], q) == want })
		if want > uint64(limits[i]) {
			t.Errorf("key %d: %d admitted, limit %d", i, want, limits[i])
		}
		if want+2 >= uint64(limits[i]) {
			full++
		}
	}
	if full == 0 {
		t.Error("no key was used up")
	}
}

// TestRefusedSetChargesNothing requires that a member's next request finds nothing charged of the refused call before.
func TestRefusedSetChargesNothing(t *testing.T) {
	ms := newCluster(t, 3)
	names := setNames(ms)
	for round := range 50 {
		var reqs []owner.Request
		for i, name := range names {
			q := newRequest(name, 10, 7)
			if q.Whole = true; i == round%3 {
				q.Hits = 11
			}
			reqs = append(reqs, variant(q, fmt.Sprint("refused ", round)))
		}
		results := make([]owner.Result, len(reqs))
		ms[0].Decide(by(patience), false, reqs, results)
		for i := range reqs {
			if results[i].Over != (i == round%3) || results[i].Path == owner.Fallback {
				t.Fatalf("round %d, result %d: %+v", round, i, results[i])
			}
			if n := charged(ms[0], reqs[i]); n != 0 {
				t.Fatalf("round %d: %d charged to key %d", round, n, i)
			}
		}
	}
}

// TestRefusedHoldsAreNotOpen requires that a call with several holds, of which one owner refuses one, leaves none.
func TestRefusedHoldsAreNotOpen(t *testing.T) {
	ms := newCluster(t, 3)
	var reqs []owner.Request
	for i, name := range setNames(ms) {
		q := newRequest(name, 10, 1)
		q.Rule.Algorithm, q.Rule.Window, q.Op = limit.InFlight, time.Hour, owner.Reserve
		q.Hold = &owner.Hold{ID: claim.Ident{7, uint64(i)}, TTL: time.Minute, Max: 100, Flags: claim.InFlight}
		reqs = append(reqs, q)
	}
	results := make([]owner.Result, len(reqs))
	open := func() (n uint64) {
		for i, m := range ms {
			holds, _ := m.node.HeldHits(reqs[i].Key)
			n += holds + charged(m, reqs[i])
		}
		return n
	}
	if ms[0].Decide(by(patience), false, reqs, results); owner.Refused(reqs, results) || open() != 6 {
		t.Fatalf("admitted: %d of 6 open and charged, %+v", open(), results)
	}
	for i := range reqs {
		h := *reqs[i].Hold
		h.ID[0]++
		reqs[i].Hold = &h
	}
	reqs[2].Hits = 10
	ms[0].Decide(by(patience), false, reqs, results)
	if results[0].Over || results[1].Over || !results[2].Over {
		t.Fatalf("%+v", results)
	}
	await(t, "the holds of the refused call to be released", func() bool { return open() == 6 })
}

// TestSetWithoutAnOwner requires that the degraded policy decides in place of an owner that is gone, and that nothing is
// charged if the call is refused.
func TestSetWithoutAnOwner(t *testing.T) {
	ms := newCluster(t, 3)
	names := setNames(ms)
	ms[2].Close()
	for _, over := range []bool{false, true} {
		var reqs []owner.Request
		for i, name := range names {
			q := newRequest(name, 30, 1)
			if i == 1 && over {
				q.Hits = 31
			}
			reqs = append(reqs, variant(q, fmt.Sprint("gone ", over)))
		}
		results := make([]owner.Result, len(reqs))
		ms[0].Decide(by(500*time.Millisecond), true, reqs, results)
		if results[2].Path != owner.Fallback || results[2].Over || results[1].Over != over {
			t.Errorf("over %v: %+v", over, results)
		}
		want := uint64(1)
		if over {
			want = 0
		}
		if n := charged(ms[0], reqs[0]); n != want {
			t.Errorf("over %v: %d charged to this member's key, want %d", over, n, want)
		}
		// The share is 10 of 30 hits, so the rest counts as charged.
		if results[2].Before != 19+want || results[2].After != 20+want {
			t.Errorf("over %v: the local share: %+v", over, results[2])
		}
	}
}

// TestWholeInTwoRounds requires that a call that cannot be a set is refused without a charge.
func TestWholeInTwoRounds(t *testing.T) {
	ms := newCluster(t, 3)
	var reqs []owner.Request
	for i, name := range setNames(ms) {
		q := newRequest(name, 10, 3)
		if q.Whole = true; i == 2 {
			q.Hits = 11
		}
		reqs = append(reqs, q)
	}
	results := make([]owner.Result, len(reqs))
	for _, want := range []uint64{0, 3} {
		ms[0].decideRounds(new(scratch), callArgs{by(patience), reqs, results, nil})
		if owner.Refused(reqs, results) != (want == 0) {
			t.Errorf("%+v", results)
		}
		for i := range reqs {
			if n := charged(ms[0], reqs[i]); n != want {
				t.Errorf("%d charged, want %d", n, want)
			}
		}
		reqs[2].Hits = 3
	}
}

// BenchmarkStopMode measures stop mode over three owners, of which this member is one, in turn as a set and in two
// rounds: the median and the 99th percentile of their latency.
func BenchmarkStopMode(b *testing.B) {
	for _, refused := range []bool{false, true} {
		b.Run(fmt.Sprintf("refused=%v", refused), func(b *testing.B) { benchmarkStopMode(b, refused) })
	}
}

func benchmarkStopMode(b *testing.B, refused bool) {
	ms := newCluster(b, 3)
	var reqs []owner.Request
	for _, name := range setNames(ms) {
		reqs = append(reqs, newRequest(name, math.MaxUint32, 1))
	}
	if refused {
		reqs[2].Rule.Limit = 0
	}
	results, s := make([]owner.Result, len(reqs)), new(scratch)
	var took [2][]time.Duration
	b.ResetTimer()
	for i := range 2 * b.N {
		start := time.Now()
		if i%2 == 0 {
			ms[0].Decide(by(patience), true, reqs, results)
		} else {
			ms[0].decideRounds(s, callArgs{by(patience), reqs, results, nil})
		}
		if results[2].Path == owner.Forwarded { // otherwise the machine was too busy
			took[i%2] = append(took[i%2], time.Since(start))
		}
	}
	b.StopTimer()
	for i, name := range []string{"set", "rounds"} {
		slices.Sort(took[i])
		for _, percent := range []int{50, 99} {
			d := took[i][len(took[i])*percent/100]
			b.ReportMetric(float64(d.Nanoseconds()), fmt.Sprintf("%s-p%d-ns", name, percent))
		}
	}
}

// TestSetResultOnTheWire requires that only results of sets contain what a Read would show.
func TestSetResultOnTheWire(t *testing.T) {
	for _, want := range []owner.Result{
		{Path: owner.Forwarded, Decision: limit.Decision{Before: 1, After: 3, Reset: time.Second, Remaining: 7}},
		{
			Path: owner.Forwarded, Decision: limit.Decision{Before: 1, After: 3, Reset: time.Minute, Remaining: 7},
			ReadReset: time.Second, ReadRemaining: 9,
		},
	} {
		b := appendResult(nil, &want)
		size := recordHead + resultSize
		if want.ReadReset > 0 {
			size += setResultSize
		}
		r := wire.NewReader(b)
		var got owner.Result
		if err := parseResult(nextRecord(&r), &got); err != nil || got != want || len(b) != size {
			t.Errorf("%+v in %d bytes, %v; want %+v in %d", got, len(b), err, want, size)
		}
	}
}
