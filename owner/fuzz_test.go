package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/policy"
)

// FuzzNode runs a script of requests, ticks, pauses and rings on one member. It checks that decisions with full
// authority stay within every limit, and agree with a list of all hits while no table overflows.
func FuzzNode(f *testing.F) {
	f.Add([]byte{0, 1, 2, 0, 1, 2, 60, 0, 0, 1, 3, 0}, uint64(1))
	f.Add([]byte("the quick brown fox jumps over the lazy dog, and again, and again"), uint64(7))
	f.Add([]byte{5, 200, 13, 0, 1, 255, 2, 1, 9, 4, 2, 2, 3, 1, 1}, uint64(1)<<63)
	f.Fuzz(func(t *testing.T, script []byte, seed uint64) {
		n := New(Options{Self: "a", Seed: [2]uint64{seed, 5}, MaxKeys: 12, DomainQuota: 9, DenyCache: int(seed % 4)})
		n.SetMembership(t0, standing("a", "a"))
		now := t0
		admitted := twin{}
		for ; len(script) >= 3; script = script[3:] {
			op, arg, hits := script[0], script[1], uint64(script[2])
			if hits > 250 {
				hits = 1<<64 - 256 + hits
			}
			now += int64(op>>4) * second / 7
			req := ask(int(arg%24), uint32(arg%7), time.Duration(1+arg%3)*time.Second, hits)
			req.Op, req.Degraded, req.Domain = Op(op%4), policy.Degraded(arg%4), uint64(arg%2)
			switch op % 16 {
			case 13:
				n.Tick(now)
				continue
			case 14:
				n.SetMembership(now, standing("a", "a"))
				continue
			case 15:
				m := standing("a", "a", "b")
				m.Joined = arg%4 > 0
				n.SetMembership(now, m)
				continue
			case 12:
				res := n.Degrade(now, &req)
				n.Observe(now, &req, &res)
				continue
			}
			res := n.Decide(now, &req)
			if req.Op == Refund && res.Kind == Decided {
				admitted = twin{} // what may be admitted again is not followed
				n = New(n.options)
				n.SetMembership(now, standing("a", "a"))
				continue
			}
			if req.Op != Take || req.Hits == 0 || res.Kind != Decided || res.Authority != Full && res.Authority != Overflow {
				continue
			}
			if res.Reset < time.Second || res.Over && res.Remaining > 0 || res.Over != (res.After > uint64(req.Rule.Limit)) {
				t.Fatalf("%+v: %+v", req, res)
			}
			if !res.Over {
				if sum := admitted.admit(now, &req); sum > uint64(req.Rule.Limit) {
					t.Fatalf("admitted %d of %d: %+v", sum, req.Rule.Limit, res)
				}
			}
			if keys := n.Stats(now).Keys; keys > 12 {
				t.Fatalf("%d keys", keys)
			}
		}
	})
}
