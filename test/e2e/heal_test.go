package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

const healLimit = 20

// healRules have a year's windows, of which most is gone: what a member that is cut off takes for lost is nearly all of a limit.
const healRules = `domain: app
descriptors:
  - key: fixed_window
    rate_limit: {unit: year, requests_per_unit: 20}
  - key: sliding_window
    rate_limit: {unit: year, requests_per_unit: 20}
    metadata: {keyward: {algorithm: sliding_window}}
  - key: sliding_log
    rate_limit: {unit: year, requests_per_unit: 20}
    metadata: {keyward: {algorithm: sliding_log}}
  - key: token_bucket
    rate_limit: {unit: year, requests_per_unit: 20}
    metadata: {keyward: {algorithm: token_bucket}}
  - key: strict
    rate_limit: {unit: year, requests_per_unit: 20}
    metadata: {keyward: {durability: strict}}
`

var healKinds = []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "strict"}

// cutOf is one cut: the last member is away for so long.
type cutOf struct {
	lasts  time.Duration
	oneWay bool // it receives nothing, and its messages arrive
}

// TestHealedCuts cuts a member off while keys are partly spent, asks both sides, and heals the cut. Afterwards each key admits
// what is left of its limit: nothing stays refused for what one side took for lost, or for what it has refused.
func TestHealedCuts(t *testing.T) {
	needsNamespaces(t)
	policies, sizes, rounds := []string{"share"}, []int{3}, 1
	cuts := []cutOf{{6 * time.Second, false}, {8 * time.Second, true}}
	if long() {
		policies, sizes, rounds = []string{"share", "available", "quorum"}, []int{3, 5}, 20
		cuts = []cutOf{{2 * time.Second, false}, {4 * time.Second, true}, {5 * time.Second, false}, {8 * time.Second, true}, {15 * time.Second, false}, {30 * time.Second, true}}
	}
	for _, policy := range policies {
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s, %d members", policy, n), func(t *testing.T) { healedCuts(t, policy, n, rounds, cuts) })
		}
	}
}

// noticed is how long after a cut both sides have noticed it.
const noticed = 5 * time.Second

// healedCuts cuts a cluster of its own each time: a member that was cut off again and again is kept off the ring for longer and longer.
func healedCuts(t *testing.T, policy string, n, rounds int, cuts []cutOf) {
	for round := range rounds {
		for _, c := range cuts {
			healedCut(t, policy, n, c, fmt.Sprintf("cut of %v, one way: %v, round %d", c.lasts, c.oneWay, round+1))
		}
	}
}

func healedCut(t *testing.T, policy string, n int, c cutOf, what string) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": healRules}, Expect: n, Args: []string{"--partition", policy, "--decision-timeout", "1s"}})
	network, err := lab.NewNetwork()
	if err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		if err := l.StopTogether(); err != nil {
			t.Error(err)
		}
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	members := names(n)
	f := networkFleet(t, l, network, members)
	away, rest := members[n-1:], members[:n-1]
	s := newSpenders(f, 60)
	s.spend(rest[0], 3)
	cut := network.Cut
	if c.oneWay {
		cut = network.Deafen
	}
	if err := cut(away, rest); err != nil {
		t.Fatal(err)
	}
	s.spendDuring(c, away[0], rest[0])
	if err := network.Heal(); err != nil {
		t.Fatal(err)
	}
	f.agree()
	steadily(2 * time.Second)
	s.exhaust(rest[n-2])
	s.judge(what, n)
	end()
}

// spendDuring asks both sides while the cut lasts: a few times before it is noticed, and then, alone, for more than its part of each limit.
func (s *spenders) spendDuring(c cutOf, away, rest string) {
	before, began := slices.Clone(s.admitted), time.Now()
	for time.Since(began) < c.lasts {
		hits := 1
		if time.Since(began) > noticed {
			hits = healLimit
		}
		s.spend(away, hits)
		s.spend(rest, 1)
		steadily(c.lasts / 4)
	}
	s.during = before
	for k := range before {
		s.during[k] = s.admitted[k] - before[k]
	}
}

// spenders spend keys of all kinds, and know what was admitted of each.
type spenders struct {
	f        *fleet
	kinds    []string
	values   []string
	admitted []int
	during   []int // of these, during the cut
}

func newSpenders(f *fleet, n int) *spenders {
	s := &spenders{f: f, admitted: make([]int, n)}
	for i := range n {
		s.kinds, s.values = append(s.kinds, healKinds[i%len(healKinds)]), append(s.values, strconv.Itoa(i))
	}
	return s
}

// spend asks a member for so many hits of each key, one by one, and returns how many are admitted.
func (s *spenders) spend(member string, hits int) (admitted int) {
	s.f.t.Helper()
	r := &rlsv3.RateLimitRequest{Domain: "app", HitsAddend: 1}
	for i := range s.values {
		r.Descriptors = append(r.Descriptors, request("", 1, s.kinds[i], s.values[i]).Descriptors...)
	}
	for range hits {
		ctx, cancel := context.WithTimeout(s.f.t.Context(), 10*time.Second)
		res, err := s.f.door(member).client.ShouldRateLimit(ctx, r)
		cancel()
		if err != nil {
			s.f.t.Fatal(err)
		}
		for i, st := range res.Statuses {
			if st.Code == rlsv3.RateLimitResponse_OK {
				s.admitted[i]++
				admitted++
			}
		}
	}
	return admitted
}

// exhaust asks until nothing is admitted any more.
func (s *spenders) exhaust(member string) {
	for range 3 * healLimit {
		if s.spend(member, 1) == 0 {
			return
		}
	}
}

// judge wants at least the limit admitted of each key, and at most what two parts may. Two calls of each key come when the cut is not
// noticed yet: the owner may charge them, and its answer be lost. What a part of the cluster admits of a bucket drains at the
// part's rate, so that it counts as many times as the limit is divided (bounds.md).
func (s *spenders) judge(what string, members int) {
	s.f.t.Helper()
	short, over := 0, 0
	for i, n := range s.admitted {
		least := healLimit - 2
		if s.kinds[i] == "token_bucket" {
			least -= (members - 1) * s.during[i]
		}
		switch {
		case n < least:
			short++
			s.f.t.Logf("%s %s: %d admitted of %d", s.kinds[i], s.values[i], n, healLimit)
		case n > 2*healLimit+members:
			over++
			s.f.t.Logf("%s %s: %d admitted of %d", s.kinds[i], s.values[i], n, healLimit)
		}
	}
	s.f.t.Logf("%s: %d keys, %d stay refused, %d beyond the bound", what, len(s.values), short, over)
	if short+over > 0 {
		s.f.t.Fail()
	}
}
