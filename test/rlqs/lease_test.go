package rlqs

import (
	"testing"
	"time"

	"github.com/keyward/keyward/test/rlqs/model"
)

// minute is the lifetime of assignments that do not end in a test.
const minute = time.Minute

// rounds returns few, or many when there is time.
func rounds(few, many int) int {
	if long() {
		return many
	}
	return few
}

var pair = shared(listener{name: "pair", assign: denies, upstream: true})

// [DENY_ALL, bucket(n)] in one response admits exactly n requests, and the rest of the assignment before none.
func TestPairIsExact(t *testing.T) {
	pair.each(t, func(s *site) {
		conns := s.dial(16)
		s.want("first request", s.introduce(conns[0], "a"), 429)
		for _, n := range []int{1, 37, 100, 500, 7} {
			s.push(model.Pair("a", uint32(n), minute)...)
			admitted := 0
			s.until("the lease to be spent", func() bool { admitted += s.hits(conns, "a", 50); return admitted >= n })
			s.want("PAIR", admitted+s.hits(conns, "a", 300), n)
		}
		s.fenced(conns, model.Pair("a", 100, minute)...)
		s.want("60 of a PAIR of 100", s.hits(conns, "a", 60), 60)
		s.fenced(conns, model.Pair("a", 100, minute)...)
		s.want("PAIR over a rest of 40", s.hits(conns, "a", 300), 100)
	})
}

var pairs = shared(listener{name: "pairs", assign: denies})

// The same under load all the time: each PAIR comes when the one before is spent.
func TestPairsUnderLoad(t *testing.T) {
	pairs.each(t, func(s *site) {
		conns := s.dial(16)
		s.introduce(conns[0], "a")
		load, stop := crowd(conns, "a")
		defer stop()
		granted := 0
		for i := range rounds(20, 60) {
			granted += 100 + i
			s.push(model.Pair("a", uint32(100+i), minute)...)
			s.until("the lease to be spent", func() bool { return int(load.admitted.Load()) >= granted })
			refused := load.refused.Load()
			s.until("refusals", func() bool { return load.refused.Load() > refused+40 })
			s.want("admitted after a PAIR", int(load.admitted.Load()), granted)
		}
		stop()
		s.want("admitted in all", int(load.admitted.Load()), granted)
	})
}

var replaced = shared(listener{name: "replaced", assign: denies})

// A bucket that replaces another one without DENY_ALL before it starts with the other's fill ratio; the identical bucket goes on; and
// PAIR starts full.
func TestReplacedBucketCopiesTheFillRatio(t *testing.T) {
	replaced.each(t, func(s *site) {
		conns := s.dial(8)
		s.introduce(conns[0], "a")
		for _, c := range []struct {
			what string
			next []model.Action
			want int
		}{
			{"bucket of 50", []model.Action{model.Same("a", 50, minute)}, 20},
			{"bucket of 500", []model.Action{model.Same("a", 500, minute)}, 200},
			{"the identical bucket", []model.Action{model.Same("a", 100, minute)}, 40},
			{"PAIR", model.Pair("a", 100, minute), 100},
			{"other tokens_per_fill", []model.Action{bucket("a", 100, 2, leaseInterval)}, 40},
		} {
			s.fenced(conns, model.Pair("a", 100, minute)...)
			s.want("60 of a PAIR of 100", s.hits(conns, "a", 60), 60)
			s.fenced(conns, c.next...)
			s.want("100, 60 spent, then "+c.what, s.hits(conns, "a", 600), c.want)
		}
	})
}

// leaseInterval is that of model.Lease.
var leaseInterval = model.Lease(1).Every

func bucket(id string, n, perFill uint32, every time.Duration) model.Action {
	return model.Action{ID: id, TTL: minute, Strategy: model.Strategy{Kind: model.TokenBucket, Max: n, PerFill: perFill, Every: every}}
}

var raced = shared(listener{name: "raced", assign: denies})

// The fill ratio is copied while workers still spend the old bucket: a lease that is replaced under load by equal ones admits more than
// was granted. The identical bucket, and PAIR, do not.
func TestReplacedUnderLoadAdmitsTooMuch(t *testing.T) {
	const lease = 3000
	raced.each(t, func(s *site) {
		conns := s.dial(16)
		s.introduce(conns[0], "a")
		run := func(next func(i int) []model.Action) (over int) {
			s.fenced(conns, model.Pair("a", lease, minute)...)
			load, stop := crowd(conns, "a")
			defer stop()
			granted := lease
			for i := 0; i < 250 && load.admitted.Load() < lease-100; i++ {
				as := next(i)
				if as[0].Strategy.Kind == model.DenyAll {
					granted += int(as[1].Strategy.Max)
				}
				s.push(as...)
				time.Sleep(2 * time.Millisecond) // the pace of the replacements, not a wait for anything
			}
			refused := load.refused.Load()
			s.until("the lease to be spent", func() bool { return load.refused.Load() > refused+200 })
			stop()
			return int(load.admitted.Load()) - granted
		}
		for range rounds(1, 8) {
			s.want("SAME: admitted beyond the lease", run(func(int) []model.Action { return []model.Action{model.Same("a", lease, minute)} }), 0)
		}
		over := 0
		for i := 0; i < 8 && (over == 0 || long()); i++ {
			over += max(0, run(func(i int) []model.Action {
				return []model.Action{bucket("a", lease, uint32(1+i%2), leaseInterval)}
			}))
		}
		s.Logf("changed tokens_per_fill without DENY_ALL: %d admitted beyond the leases", over)
		if over == 0 {
			s.Error("a changed bucket without DENY_ALL before it admitted no more than the lease in 8 runs: has Envoy been mended?")
		}
		if over := run(func(int) []model.Action { return model.Pair("a", 50, minute) }); over > 0 {
			s.Errorf("PAIR: %d admitted beyond the leases", over)
		}
	})
}

var odd = shared(listener{name: "odd", assign: denies})

// What is no lease: strategies that Envoy does not implement, and intervals that it cuts to whole seconds.
func TestOddStrategies(t *testing.T) {
	odd.each(t, func(s *site) {
		conns := s.dial(4)
		s.introduce(conns[0], "a")
		s.fenced(conns, model.Action{ID: "a", TTL: minute, Strategy: model.Strategy{Kind: model.PerUnit, Max: 5}})
		s.want("requests_per_time_unit has no effect", s.hits(conns, "a", 20), 0)
		s.logged("RequestsPerTimeUnit rate limit strategies are not yet supported")
		s.fenced(conns, bucket("a", 5, 5, 100*time.Millisecond))
		s.want("an interval of 100 ms is none", s.hits(conns, "a", 200), 200)

		// The bucket gets 5 tokens each second, where the message says 3.3.
		s.fenced(conns, model.Pair("a", 0, minute)...)
		before := time.Now()
		s.fenced(conns, bucket("a", 100, 5, 1500*time.Millisecond))
		since := time.Now()
		admitted := s.hits(conns, "a", 120)
		time.Sleep(5 * time.Second)
		least := 100 + 5*time.Since(since).Seconds() - 1
		admitted += s.hits(conns, "a", 120)
		most := 100 + 5*time.Since(before).Seconds() + 1
		if n := float64(admitted); n < least || n > most {
			s.Errorf("5 for each 1.5 s: %d admitted, want %.0f to %.0f, as for 5 each second", admitted, least, most)
		}
		s.fenced(conns, model.Pair("a", 10, minute)...)
		s.hits(conns, "a", 100)
		s.fenced(conns, bucket("a", 10, 1, time.Second))
		time.Sleep(2 * time.Second)
		s.want("other seconds in the interval are no change", s.hits(conns, "a", 100), 0)
	})
}

var unseen = shared(listener{name: "unseen", assign: denies})

// A response for an id that Envoy has not seen is dropped.
func TestUnseenIds(t *testing.T) {
	unseen.each(t, func(s *site) {
		conns := s.dial(2)
		s.fenced(conns, model.Action{ID: "later", TTL: minute, Strategy: model.Strategy{Kind: model.AllowAll}})
		s.want("first request", s.introduce(conns[0], "later"), 429)
		s.want("next requests", s.hits(conns, "later", 10), 0)
		s.logged("unexpected bucket")
	})
}
