package federationtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// compared is how many requests Compare sends to both coordinators.
const compared = 6000

// Compare sends the same adversarial requests, generated from seed, to a Coordinator and to the reference, which must
// grant exactly the same: regions that lose replies, return hits and restart; late, repeated and contradictory requests;
// numbers beyond 2^32; and a clock that jumps.
func Compare(t *testing.T, open Open, seed uint64) {
	compare(t, open, newAdversary(seed), seed)
}

// source generates requests, and learns the grants of those that it sent last.
type source interface {
	time(now int64) int64
	requests(now int64) (region string, rs []federation.PoolRequest)
	learn(region string, gs []federation.PoolGrant)
}

func compare(t *testing.T, open Open, a source, seed uint64) {
	t.Helper()
	var now atomic.Int64
	now.Store(start)
	o := Options{Epoch: epoch, Change: change, Since: start + int64(3700*time.Millisecond), Now: now.Load}
	reference, c := Memory(t, o), open(t, o)
	granted := 0
	for sent := 0; sent < compared; {
		now.Store(a.time(now.Load()))
		region, rs := a.requests(now.Load())
		sent += len(rs)
		want, _ := reference.Lease(t.Context(), region, rs)
		got, err := c.Lease(t.Context(), region, rs)
		if err != nil {
			t.Fatal(err)
		}
		if normalize(want); !reflect.DeepEqual(normalize(got), want) {
			t.Fatalf("seed %d, request %d at %d of %s: %+v\ngot  %+v\nwant %+v", seed, sent, now.Load(), region, rs, got, want)
		}
		a.learn(region, want)
		granted += len(want)
	}
	if granted < compared/3 || granted > compared*9/10 {
		t.Errorf("%d of %d requests are granted", granted, compared)
	}
	t.Logf("%d requests, %d of them granted: equal", compared, granted)
}

// change is when windows of the next layout begin.
var change = start + int64(150*time.Second)

// epochAt returns the epoch of the layout of window w.
func epochAt(r *limit.Rule, w int64) uint32 {
	if r.End(w-1) >= change {
		return epoch + 1
	}
	return epoch
}

// normalize gives empty lists one form.
func normalize(gs []federation.PoolGrant) []federation.PoolGrant {
	if len(gs) == 0 {
		return nil
	}
	for i := range gs {
		if len(gs[i].Others) == 0 {
			gs[i].Others = nil
		}
		for j := range gs[i].Others {
			if l := &gs[i].Others[j]; len(l.Note) == 0 {
				l.Note = nil
			}
		}
	}
	return gs
}

// rules are those of the adversary's keys.
var rules = []limit.Rule{
	{Limit: 1000, Window: 60 * time.Second},
	{Limit: 1000, Window: 10 * time.Second, Algorithm: limit.SlidingWindow},
	{Limit: math.MaxUint32, Window: 10 * time.Second, Algorithm: limit.SlidingWindow},
	{Limit: 7, Window: time.Second},
	{Limit: math.MaxUint32, Window: 45 * time.Second, Algorithm: limit.SlidingWindow},
}

const regions = 4

// adversary generates requests.
type adversary struct {
	*rand.Rand
	escrows  [regions][]escrow // by key
	reclaims bool              // some hits can be reclaimed
}

// escrow is the state of a region for a key.
type escrow struct {
	boot, seq  uint64
	window     int64
	have, kept uint64 // hits of window; hits that it has spent of the window before
	sent       []federation.PoolRequest
}

func newAdversary(seed uint64) *adversary {
	a := &adversary{Rand: rand.New(rand.NewPCG(seed, 1))}
	for i := range a.escrows {
		a.escrows[i] = make([]escrow, len(rules))
	}
	return a
}

// time returns the time of the next requests.
func (a *adversary) time(now int64) int64 {
	d := a.Int64N(int64(50 * time.Millisecond))
	switch a.IntN(20) {
	case 0:
		d = a.Int64N(int64(4 * time.Second))
	case 1:
		d = int64(time.Second) - now%int64(time.Second) - int64(time.Microsecond)*a.Int64N(3)
	case 2:
		d = -a.Int64N(int64(300 * time.Millisecond))
	case 3:
		if a.IntN(10) == 0 {
			d = a.Int64N(int64(30 * time.Second))
		}
	}
	return (now + d) / 1000 * 1000
}

// requests returns requests of one region for some keys.
func (a *adversary) requests(now int64) (region string, rs []federation.PoolRequest) {
	i := a.IntN(regions)
	for range 1 + a.IntN(6) {
		k := a.IntN(len(rules))
		e := &a.escrows[i][k]
		if n := len(e.sent); n > 0 && a.IntN(8) == 0 {
			rs = append(rs, e.sent[max(0, n-1-a.IntN(4))])
			continue
		}
		r := a.honest(e, k, now)
		if a.IntN(10) == 0 {
			a.distort(&r)
		}
		rs, e.sent = append(rs, r), append(e.sent, r)
	}
	return fmt.Sprintf("region \x01%d", i), rs
}

// honest returns the next request of an escrow: it may have restarted, lost, spent, or returned hits.
func (a *adversary) honest(e *escrow, key int, now int64) federation.PoolRequest {
	rule := rules[key]
	if e.seq == 0 || a.IntN(40) == 0 {
		*e = escrow{boot: a.Uint64(), seq: e.seq, sent: e.sent}
		if a.IntN(4) == 0 {
			e.seq /= 2
		}
	}
	e.seq++
	if w := rule.Index(now); w > e.window && a.IntN(3) > 0 {
		e.kept = a.amount(e.have)
		e.window, e.have = w, 0
	}
	if a.IntN(6) == 0 {
		e.have = a.amount(e.have)
	}
	pool := uint64(rule.Limit) - uint64(rule.Limit)/20
	r := federation.PoolRequest{
		Key: federation.Key{uint64(key) << 60, math.MaxUint64 - uint64(key)*251}, Rule: rule, Pool: pool, Epoch: epochAt(&rule, rule.Index(now)),
		Boot: e.boot, Seq: e.seq, Window: e.window, Have: e.have, Left: a.amount(e.have), Tokens: a.amount(pool / 3),
	}
	if a.IntN(2) == 0 {
		r.Past = federation.Past{Window: e.window - 1, Have: e.kept}
	}
	if a.IntN(4) == 0 {
		r.Tokens = 0
	}
	if a.reclaims && a.IntN(3) > 0 {
		r.Reclaim = time.Duration(a.IntN(3000)) * time.Millisecond
	}
	if a.IntN(3) == 0 {
		r.Note = make([]byte, a.IntN(40))
		for i := range r.Note {
			r.Note[i] = byte(a.Uint32())
		}
	}
	return r
}

// distort makes r contradict what the coordinator has recorded, or itself.
func (a *adversary) distort(r *federation.PoolRequest) {
	switch a.IntN(12) {
	case 0:
		r.Have = a.Uint64N(1 << 41)
	case 1:
		r.Have += a.Uint64N(50)
	case 2:
		r.Left = r.Have + a.Uint64N(2)
	case 3:
		r.Tokens = a.Uint64N(1 << 41)
	case 4:
		r.Tokens = math.MaxUint64 - a.Uint64N(5)
	case 5:
		r.Window += a.Int64N(5) - 2
	case 6:
		r.Past = federation.Past{Window: r.Window + a.Int64N(5) - 2, Have: a.Uint64N(1 << 41)}
	case 7:
		r.Epoch += a.Uint32N(3) - 1
	case 8:
		r.Seq += a.Uint64N(5)
	case 9:
		r.Pool = a.Uint64N(r.Pool + 1)
	case 10:
		r.Boot ^= 1
	case 11:
		if a.IntN(20) == 0 {
			r.Seq = math.MaxUint64 - a.Uint64N(2)
		}
	}
}

// amount returns a number up to n; the limits of that range are frequent.
func (a *adversary) amount(n uint64) uint64 {
	switch a.IntN(4) {
	case 0:
		return n
	case 1:
		return 0
	}
	return a.Uint64N(n + 1)
}

// learn has a region receive its grants, some of which are lost.
func (a *adversary) learn(region string, gs []federation.PoolGrant) {
	i := region[len(region)-1] - '0'
	for _, g := range gs {
		e := &a.escrows[i][g.Key[0]>>60]
		if a.IntN(5) == 0 || g.Window < e.window || g.Seq != e.seq {
			continue
		}
		if g.Window > e.window {
			e.kept = a.amount(e.have)
		}
		e.window, e.have = g.Window, g.Total
	}
}
