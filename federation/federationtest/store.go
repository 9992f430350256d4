package federationtest

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// RunStore checks that Coordinators that support mechanism approximate and reclaim fulfill that part of the contract.
func RunStore(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		run  func(*suite)
	}{
		{"CountsOnce", (*suite).countsOnce},
		{"ReservesWhatIsLeft", (*suite).reservesWhatIsLeft},
		{"NextLifeAdds", (*suite).nextLifeAdds},
		{"WindowsOfHolders", (*suite).windowsOfHolders},
		{"CountsOfSlidingWindow", (*suite).countsOfSlidingWindow},
		{"CountsApartFromLeases", (*suite).countsApartFromLeases},
		{"SilentHolder", (*suite).silentHolder},
		{"HolderReturns", (*suite).holderReturns},
		{"NextLifeReplaces", (*suite).nextLifeReplaces},
		{"NeverReclaimed", (*suite).neverReclaimed},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(newSuite(t, open, 0)) })
	}
}

// CompareStore is Compare with requests of mechanism approximate, and with hits that can be reclaimed.
func CompareStore(t *testing.T, open Open, seed uint64) {
	a := newAdversary(seed)
	a.reclaims = true
	compare(t, open, a, seed)
	compare(t, open, newCounters(seed), seed)
}

// counted returns a report of hits in the present window, and of a wish to admit more.
func (s *suite) counted(have, tokens uint64) federation.PoolRequest {
	r := request(tokens)
	r.Approximate, r.Pool, r.Have = true, uint64(r.Rule.Limit), have
	r.Window = r.Rule.Index(s.now.Load())
	return r
}

func (s *suite) countsOnce() {
	s.expect("a", s.counted(10, 0), 10, 10, 120)
	s.expect("b", s.counted(5, 0), 5, 15, 120)
	s.expect("a", s.counted(10, 0), 10, 15, 120)
	s.expect("a", s.counted(7, 0), 10, 15, 120) // late
	s.expect("a", s.counted(30, 0), 30, 35, 120)
	s.expect("a", s.counted(500, 0), 500, 505, 120) // what was admitted is counted
}

func (s *suite) reservesWhatIsLeft() {
	s.expect("a", s.counted(10, 100), 110, 110, 120)
	s.expect("a", s.counted(10, 100), 110, 110, 120) // repeated
	s.expect("b", s.counted(0, 15), 10, 120, 120)
	s.expect("b", s.counted(3, 15), 10, 120, 120)
	s.expect("c", s.counted(4, 1), 4, 124, 120)
}

func (s *suite) nextLifeAdds() {
	s.expect("a", s.counted(10, 0), 10, 10, 120)
	r := s.counted(4, 0)
	r.Boot = 2
	s.expect("a", r, 4, 14, 120)
}

// windowsOfHolders requires that hits are counted in the window that the holder names, unless its clock is wrong by more
// than 10 s.
func (s *suite) windowsOfHolders() {
	s.advance(window - 5*time.Second)
	r := s.counted(10, 0)
	r.Window++
	s.expect("a", r, 10, 10, 120)
	s.expect("a", s.counted(20, 0), 20, 20, 120)
	late := s.counted(30, 0)
	s.advance(10 * time.Second)
	s.expect("b", s.counted(1, 0), 1, 11, 120)
	s.expect("a", late, 30, 30, 120)
	s.advance(5 * time.Second)
	s.refuse("a", late)
	s.advance(window - 21*time.Second)
	r.Window++
	s.refuse("a", r)
}

func (s *suite) countsOfSlidingWindow() {
	s.expect("a", sliding(s.counted(50, 0)), 50, 50, 120)
	s.expect("b", sliding(s.counted(30, 0)), 30, 80, 120)
	s.advance(window + window/2)
	s.expect("b", sliding(s.counted(1, 0)), 1, 1, 80)
	r := sliding(s.counted(2, 200))
	r.Past = federation.Past{Window: r.Window - 1, Have: 71}
	if g := s.grant("a", r); g.Total != 68 || g.Used != 69 || g.Usable != 69 || g.Past != 101 {
		s.Errorf("%+v", g)
	}
}

func (s *suite) countsApartFromLeases() {
	s.expect("a", request(100), 100, 100, 100)
	s.expect("a", s.counted(7, 0), 7, 7, 120)
	r := at(2, s.holding(100, 0))
	s.expect("a", r, 100, 100, 100)
}

// expiring returns r with hits that can be reclaimed after 2 s of silence.
func expiring(r federation.PoolRequest) federation.PoolRequest {
	r.Reclaim = 2 * time.Second
	return r
}

func (s *suite) silentHolder() {
	s.expect("a", expiring(request(60)), 60, 60, 100)
	s.expect("a", expiring(at(2, s.holding(60, 0))), 60, 60, 100) // 30 are unspent
	s.advance(3*time.Second - time.Microsecond)
	s.expect("b", expiring(request(50)), 40, 100, 100)
	s.advance(time.Microsecond)
	s.expect("b", expiring(at(2, s.holding(40, 50))), 70, 100, 100)
	s.expect("b", expiring(at(3, s.holding(70, 50))), 70, 100, 100) // once
}

// holderReturns requires that a holder that was only silent has what it spent charged.
func (s *suite) holderReturns() {
	s.expect("a", expiring(request(60)), 60, 60, 100)
	s.advance(3 * time.Second)
	s.expect("b", expiring(request(10)), 10, 10, 100)
	r := expiring(at(2, s.holding(25, 0)))
	r.Left = 0
	s.expect("a", r, 25, 35, 100)
}

func (s *suite) nextLifeReplaces() {
	s.expect("a", expiring(request(60)), 60, 60, 100)
	s.expect("a", expiring(at(2, s.holding(60, 0))), 60, 60, 100)
	r := expiring(at(3, request(0)))
	r.Boot = 2
	s.expect("a", r, 0, 30, 100)
}

func (s *suite) neverReclaimed() {
	s.expect("a", request(60), 60, 60, 100)
	s.advance(50 * time.Second)
	s.expect("b", expiring(request(50)), 40, 100, 100)
	r := at(2, request(0))
	r.Boot = 2
	s.expect("a", r, 0, 100, 100)
}

// counters generates requests of mechanism approximate.
type counters struct {
	*adversary
	tallies [regions][]tally // by key
}

// tally is the state of a holder for a key.
type tally struct {
	boot   uint64
	window int64
	have   uint64
	past   federation.Past
	sent   []federation.PoolRequest
}

func newCounters(seed uint64) *counters {
	c := &counters{adversary: newAdversary(seed)}
	for i := range c.tallies {
		c.tallies[i] = make([]tally, len(rules))
	}
	return c
}

func (c *counters) requests(now int64) (holder string, rs []federation.PoolRequest) {
	i := c.IntN(regions)
	for range 1 + c.IntN(6) {
		k := c.IntN(len(rules))
		t := &c.tallies[i][k]
		r := c.report(t, k, now)
		switch n := len(t.sent); {
		case n > 0 && c.IntN(8) == 0:
			r = t.sent[max(0, n-1-c.IntN(4))]
		case c.IntN(3) == 0:
			c.distort(&r)
		}
		rs, t.sent = append(rs, r), append(t.sent, r)
	}
	return fmt.Sprintf("holder \x01%d", i), rs
}

// report returns the next request of a tally: it may have restarted, admitted hits, or begun the next window.
func (c *counters) report(t *tally, key int, now int64) federation.PoolRequest {
	rule := rules[key]
	if t.boot == 0 || c.IntN(40) == 0 {
		*t = tally{boot: c.Uint64(), sent: t.sent}
	}
	if w := rule.Index(now); w > t.window && c.IntN(3) > 0 {
		t.past = federation.Past{Window: t.window, Have: t.have}
		t.window, t.have = w, 0
	}
	t.have += c.amount(uint64(rule.Limit) / 20)
	r := federation.PoolRequest{
		Key: federation.Key{uint64(key) << 60, math.MaxUint64 - uint64(key)*251}, Rule: rule, Pool: uint64(rule.Limit), Epoch: epochAt(&rule, t.window),
		Boot: t.boot, Seq: 1 + c.Uint64N(9), Window: t.window, Have: t.have, Approximate: true,
	}
	if c.IntN(3) == 0 {
		r.Tokens = c.amount(uint64(rule.Limit) / 10)
	}
	if rule.Algorithm == limit.SlidingWindow && c.IntN(2) == 0 {
		r.Past = t.past
	}
	return r
}

// learn has a holder receive its grants, some of which are lost. It admits what is reserved for it.
func (c *counters) learn(holder string, gs []federation.PoolGrant) {
	i := holder[len(holder)-1] - '0'
	for _, g := range gs {
		if t := &c.tallies[i][g.Key[0]>>60]; c.IntN(2) == 0 && g.Window == t.window {
			t.have = max(t.have, g.Total)
		}
	}
}
