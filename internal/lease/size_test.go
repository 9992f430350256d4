package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// TestPartsAreMaxMinFair requires that parts stay within the budget and the need. A part below its need is the largest
// for its weight, except for the hit that rounding costs.
func TestPartsAreMaxMinFair(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		n := 1 + rnd.IntN(12)
		need, weight, parts := make([]uint64, n), make([]float64, n), make([]uint64, n)
		for i := range need {
			need[i], weight[i] = rnd.Uint64N(1<<rnd.UintN(20)), 1+rnd.Float64()*float64(uint64(1)<<rnd.UintN(24))
		}
		budget := rnd.Uint64N(1 << rnd.UintN(22))
		maxMinFair(budget, need, weight, parts)
		sum, short := uint64(0), uint64(0)
		for i, p := range parts {
			if sum += p; p > need[i] {
				t.Fatalf("part %d of %d, but %d needed", i, p, need[i])
			}
			if p < need[i] {
				short++
			}
			for j, q := range parts {
				if p < need[i] && float64(p+1)/weight[i] < float64(max(q, 1)-1)/weight[j]*(1-1e-9) {
					t.Fatalf("%d of %d at weight %v, and %d of %d at %v", p, need[i], weight[i], q, need[j], weight[j])
				}
			}
		}
		if sum > budget || short > 0 && sum+short < budget {
			t.Fatalf("%d lent of %d for needs %v, %d of them unmet", sum, budget, need, short)
		}
	}
}

// receiveAndGrant processes a request of a holder and grants what Size returns.
func receiveAndGrant(
	b *Book, now int64, holder ring.ID, r *GrantRequest, window int64, depth uint32, used *uint64,
) (n uint64, last bool) {
	credit, ok := b.Receive(now, Holder{holder, 1}, r, window)
	if !ok {
		return 0, false
	}
	*used -= credit
	n, last = b.Size(now, holder, r, Usage{*used, depth})
	*used += n
	b.Grant(now, holder, window, n)
	return n, last
}

func TestSizes(t *testing.T) {
	perMinute := limit.Rule{Window: time.Minute, Limit: 100_000}
	bucket := func(burst uint32) limit.Rule {
		return limit.Rule{Algorithm: limit.TokenBucket, Window: time.Second, Limit: 1000, Burst: burst}
	}
	for _, c := range []struct {
		name   string
		rule   limit.Rule
		terms  Terms
		demand float64 // hits per second
		used   uint64
		want   uint64
		last   bool
	}{
		{"for the demand of the TTL", perMinute, Terms{}, 30, 0, 300, false},
		{"at least Min", perMinute, Terms{}, 0, 0, 10, false},
		{"at least what the rule says", perMinute, Terms{Min: 77}, 0, 0, 77, false},
		{"at most Max", perMinute, Terms{Max: 1000}, 1e6, 0, 1000, false},
		{"at most 5 % of the limit", perMinute, Terms{}, 1e6, 0, 5000, false},
		{"5 % wins over Min", limit.Rule{Window: time.Minute, Limit: 100}, Terms{}, 100, 0, 5, false},
		{"of what is left, 2 % stay", perMinute, Terms{}, 1e6, 97_000, 1000, false},
		{"the tail is the owner's", perMinute, Terms{}, 1e6, 98_000, 0, true},
		{"used up", perMinute, Terms{}, 1e6, 100_007, 0, true},
		{"too small to lend", limit.Rule{Window: time.Minute, Limit: 19}, Terms{}, 1e6, 0, 0, false},
		{"no limit", limit.Rule{Window: time.Minute}, Terms{}, 1e6, 0, 0, true},
		{"a log", limit.Rule{Algorithm: limit.SlidingLog, Window: time.Minute, Limit: 1000}, Terms{}, 1e6, 0, 0, false},
		{"a bucket lends what refills in a slice", bucket(5000), Terms{}, 1e6, 0, 100, false},
		{"and at most half its depth", bucket(60), Terms{}, 1e6, 0, 30, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b Book
			r := GrantRequest{Rule: c.rule, Terms: c.terms, Seq: 1, Want: true, Demand: uint64(c.demand * 1000)}
			used := c.used
			if n, last := receiveAndGrant(&b, 0, "a", &r, 1, c.rule.Depth(), &used); n != c.want || last != c.last {
				t.Errorf("%d, last %v; want %d, %v", n, last, c.want, c.last)
			}
			if v := b.TakeViolations(); v != (Violations{}) {
				t.Errorf("violations: %v", v)
			}
		})
	}
}

// TestFiftyHolders requires that fifty holders of a limit of 1000 get one hit each at a time, and together never more
// than 5% or the limit.
func TestFiftyHolders(t *testing.T) {
	rule := limit.Rule{Window: time.Minute, Limit: 1000}
	var b Book
	used, spent := uint64(0), uint64(0)
	have := map[ring.ID]uint64{}
	var seq uint64
	for round := range 100 {
		tail := false
		for i := range 50 {
			id := ring.ID(fmt.Sprint("h", i))
			seq++
			r := GrantRequest{Rule: rule, Seq: seq, Window: 1, Have: have[id], Want: true, Demand: 100_000}
			n, last := receiveAndGrant(&b, int64(round), id, &r, 1, rule.Limit, &used)
			if round > 0 && !last && n != 1 {
				t.Fatalf("round %d: %d hits for one of fifty", round, n)
			}
			tail = tail || last
			if out := b.Unspent(0); out > 50 || used > 1000 {
				t.Fatalf("%d unspent, %d used", out, used)
			}
			have[id] += n
			spent += n
		}
		if tail {
			break
		}
	}
	if spent < 950 || spent != used {
		t.Errorf("%d lent before the tail, %d used", spent, used)
	}
}

// TestSharesFollowDemandAndWeight requires that two holders that want more than there is share it by weight x demand.
func TestSharesFollowDemandAndWeight(t *testing.T) {
	rule := limit.Rule{Window: time.Hour, Limit: 1_000_000}
	var b Book
	var used uint64
	ask := func(seq uint64, id ring.ID, perSecond, have uint64, weight uint32) uint64 {
		r := GrantRequest{Rule: rule, Terms: Terms{Weight: weight, Max: 1e6}, Seq: seq, Window: 1, Have: have, Want: true}
		r.Demand = perSecond * 1000
		n, _ := receiveAndGrant(&b, int64(seq), id, &r, 1, rule.Limit, &used)
		return n
	}
	first := ask(1, "a", 10_000, 0, 1)
	if ask(2, "b", 10_000, 0, 3) != 0 {
		t.Error("more than 5% are unspent")
	}
	if n := ask(3, "a", 10_000, first, 1); n != 12_500 { // all spent: a's part is a quarter of 50,000
		t.Errorf("a got %d", n)
	}
	if n := ask(4, "b", 10_000, 0, 3); n != 37_500 {
		t.Errorf("b got %d", n)
	}
}

// TestFiveOfAHundred requires that a new holder's fair part is not lent while another holder still has it.
func TestFiveOfAHundred(t *testing.T) {
	var b Book
	var used uint64
	r := GrantRequest{Rule: perMinute, Terms: Terms{Max: 40}, Seq: 1, Want: true, Demand: 1e6}
	receiveAndGrant(&b, 0, "a", &r, 1, perMinute.Limit, &used)
	r.Terms.Max = 0
	if n, _ := receiveAndGrant(&b, 0, "b", &r, 1, perMinute.Limit, &used); n != 10 {
		t.Errorf("%d in addition to 40 of 50", n)
	}
}
