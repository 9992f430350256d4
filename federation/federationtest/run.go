// Package federationtest tests implementations of federation.Coordinator: Run checks what the contract promises, and
// Compare checks that an implementation grants the same as the reference, federation.Memory.
package federationtest

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// Options describe the Coordinator that a test needs. It must be empty.
type Options struct {
	Epoch uint32 // of the layout of windows that begin before Change
	// Change is when the windows of the next epoch begin, in Unix nanoseconds: in whole seconds.
	Change int64
	Since  int64        // when the memory of the Coordinator began, in Unix nanoseconds; 0: it lends whole windows
	Now    func() int64 // the Coordinator's clock: Unix nanoseconds in whole microseconds; safe for concurrent use
}

// Terms returns the terms of the two layouts.
func (o Options) Terms() federation.TermOf {
	return func(epoch uint32) (federation.LayoutTerm, bool) {
		if epoch == o.Epoch {
			return federation.LayoutTerm{From: math.MinInt64, Until: o.Change, Opens: math.MinInt64}, true
		}
		return federation.LayoutTerm{From: o.Change, Until: math.MaxInt64, Opens: o.Change}, epoch == o.Epoch+1
	}
}

// Open returns an empty Coordinator. Whatever it starts has to end with the test.
type Open func(t *testing.T, o Options) federation.Coordinator

// start is the time at which tests begin: a boundary of all windows in use, and far in the future, so that a server whose
// entries expire by its own clock keeps them.
var start = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()

const epoch = 7

// Run checks that Coordinators fulfill the contract, apart from the points in except, by the names of their tests.
func Run(t *testing.T, open Open, except ...string) {
	for _, c := range []struct {
		name string
		run  func(*suite)
	}{
		{"PartialGrant", (*suite).partialGrant},
		{"NothingWanted", (*suite).nothingWanted},
		{"Repeated", (*suite).repeated},
		{"LostGrant", (*suite).lostGrant},
		{"Returned", (*suite).returned},
		{"NewBoot", (*suite).newBoot},
		{"BootWithClockBehind", (*suite).bootWithClockBehind},
		{"LostWrite", (*suite).lostWrite},
		{"Refused", (*suite).refused},
		{"TooManyRegions", (*suite).tooManyRegions},
		{"FixedWindowEnds", (*suite).fixedWindowEnds},
		{"SlidingWindowWeighs", (*suite).slidingWindowWeighs},
		{"SlidingWindowForgets", (*suite).slidingWindowForgets},
		{"PastOfEarlierBoot", (*suite).pastOfEarlierBoot},
		{"Others", (*suite).others},
		{"NotesOfAnyBytes", (*suite).notesOfAnyBytes},
		{"LargeNumbers", (*suite).largeNumbers},
		{"CountStops", (*suite).countStops},
		{"ManyKeysInOrder", (*suite).manyKeysInOrder},
		{"Reconcile", (*suite).reconcile},
		{"ChargedBeforeLent", (*suite).chargedBeforeLent},
		{"LayoutOfWindow", (*suite).layoutOfWindow},
	} {
		if !slices.Contains(except, c.name) {
			t.Run(c.name, func(t *testing.T) { c.run(newSuite(t, open, 0)) })
		}
	}
	if !slices.Contains(except, "RestOfWindow") {
		t.Run("RestOfWindow", func(t *testing.T) { restOfWindow(t, open) })
	}
}

// suite is an empty Coordinator with a clock that the test sets.
type suite struct {
	*testing.T
	c   federation.Coordinator
	now atomic.Int64
}

func newSuite(t *testing.T, open Open, since int64) *suite {
	s := &suite{T: t}
	s.now.Store(start)
	s.c = open(t, Options{Epoch: epoch, Change: start + int64(lastWindows*window), Since: since, Now: s.now.Load})
	if err := s.c.Healthy(s.Context()); err != nil {
		t.Fatalf("unhealthy: %v", err)
	}
	return s
}

// window is the length of the windows of tests.
const window = 100 * time.Second

// lastWindows is after how many windows the layout changes.
const lastWindows = 12

// request returns a request for tokens of a pool of 100 hits per window. It is the first one of its boot.
func request(tokens uint64) federation.PoolRequest {
	return federation.PoolRequest{
		Key: federation.Key{0xfedcba9876543210, 0x8000000000000001}, Rule: limit.Rule{Limit: 120, Window: window},
		Name: "edge_key_value_", Pool: 100, Epoch: epoch, Boot: 1, Seq: 1, Tokens: tokens,
	}
}

// holding returns a request for tokens of a region that has hits of the present window, half of them unspent.
func (s *suite) holding(have, tokens uint64) federation.PoolRequest {
	r := request(tokens)
	r.Window, r.Have, r.Left = r.Rule.Index(s.now.Load()), have, have/2
	return r
}

// at returns r with another Seq.
func at(seq uint64, r federation.PoolRequest) federation.PoolRequest {
	r.Seq = seq
	return r
}

// sliding returns r with a rule of a sliding window.
func sliding(r federation.PoolRequest) federation.PoolRequest {
	r.Rule.Algorithm = limit.SlidingWindow
	return r
}

func (s *suite) lease(region string, rs ...federation.PoolRequest) []federation.PoolGrant {
	s.Helper()
	gs, err := s.c.Lease(s.Context(), region, rs)
	if err != nil {
		s.Fatal(err)
	}
	return gs
}

// grant sends one request, which must be granted.
func (s *suite) grant(region string, r federation.PoolRequest) federation.PoolGrant {
	s.Helper()
	gs := s.lease(region, r)
	if len(gs) != 1 {
		s.Fatalf("%d grants", len(gs))
	}
	return gs[0]
}

// expect sends one request and checks the amounts of the grant.
func (s *suite) expect(region string, r federation.PoolRequest, total, used, usable uint64) {
	s.Helper()
	if g := s.grant(region, r); g.Total != total || g.Used != used || g.Usable != usable {
		s.Errorf("total %d, used %d, usable %d, not %d, %d, %d", g.Total, g.Used, g.Usable, total, used, usable)
	}
}

// refuse sends one request, which must be refused.
func (s *suite) refuse(region string, r federation.PoolRequest) {
	s.Helper()
	if gs := s.lease(region, r); len(gs) != 0 {
		s.Errorf("not refused: %+v", gs)
	}
}

// advance moves the clock.
func (s *suite) advance(d time.Duration) { s.now.Add(int64(d)) }

// Memory opens the reference.
func Memory(_ *testing.T, o Options) federation.Coordinator {
	return federation.NewMemory(o.Terms(), o.Since, o.Now)
}

// bounded returns a context for calls that must not hang.
func bounded(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), 10*time.Second)
}
