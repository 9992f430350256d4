package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
)

// FuzzStepLease sends arbitrary messages about leases. It requires that nothing panics, that the count of a limit does
// not fall below the hits charged directly, and that no more hits are returned than were lent.
func FuzzStepLease(f *testing.F) {
	f.Add([]byte{1, 0, 5, 3, 0, 1, 1, 9, 1, 0, 6, 3, 4, 2, 1, 9, 2, 7, 7, 1})
	f.Add([]byte{1, 3, 200, 3, 0, 255, 255, 9, 3, 0, 6, 3, 4, 2, 1, 9, 2, 7, 7, 1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		n := alone(Options{})
		meet(n, "b", 1)
		now, taken := t0, uint64(0)
		next := func() byte {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return b
		}
		for len(data) > 0 {
			now += int64(next()) * milli
			i := next() % 5
			req := ask(int(i), 1000, time.Hour, uint64(next()))
			req.Rule.Algorithm = limit.Algorithm(i) // a key has one algorithm
			req.Mechanism = policy.Mechanism(next() % 3)
			switch next() % 4 {
			case 0:
				res := take(n, now, req)
				if req.Rule.Algorithm == limit.FixedWindow && req.Key == key(0) && !res.Over {
					taken += req.Hits
				}
			case 1:
				r := lease.GrantRequest{Key: req.Key, RingPos: req.RingPos, Rule: req.Rule, Seq: uint64(next()), Window: req.Rule.Index(now) - int64(next()%2), Have: uint64(next()), Left: uint64(next()), Want: next()&1 == 0, Always: true, Demand: uint64(next()) << 10}
				if next()&1 == 0 {
					r.Terms.Slack = 100
					r.State.Slots = []limit.Slot{{Writer: uint64(next()) % 8, At: r.Window, Charged: uint64(next())}}
				}
				n.StepLease(now, "b", uint64(next()%2), &lease.Batch{Kind: lease.BatchKind(next() % 4), Requests: []lease.GrantRequest{r}})
			case 2:
				g := lease.Grant{Key: req.Key, Seq: uint64(next()), Window: int64(next()), Total: uint64(next()), Left: time.Duration(next()) * time.Second, Flags: lease.GrantFlags(next())}
				n.StepLease(now, "b", 1, &lease.Batch{Kind: lease.Lend, Grants: []lease.Grant{g}})
			default:
				n.StepLease(now, "b", 1, &lease.Batch{Kind: lease.Notify, Notices: []lease.Notice{{Key: req.Key, Kind: lease.NoticeKind(next() % 6)}}})
				n.Tick(now)
			}
		}
		req := ask(0, 1000, time.Hour, 0)
		if used := take(n, now, withOp(req, Read)).After; used < taken {
			t.Errorf("%d stand against the limit after %d were taken", used, taken)
		}
		if l := n.Stats(now).Lease; l.Credited > l.Lent {
			t.Errorf("%d came back of %d", l.Credited, l.Lent)
		}
	})
}
