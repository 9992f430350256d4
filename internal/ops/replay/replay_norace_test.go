//go:build !race

package replay

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// Every algorithm decides like the state machine of a running member, tick by tick.
func TestAlgorithmsAreThoseOfAMember(t *testing.T) {
	for _, algorithm := range []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			yaml := strings.Replace(perMinute, "    rate_limit", "    metadata: {keyward: {algorithm: "+algorithm+"}}\n    rate_limit", 1)
			s := side(t, yaml, Actions{From: from(t, "api_key", "header:x-api-key")})
			hits := randomHits(3, 1000)
			r := newRun(read(t, lines(hits), s.Templates, LogReader{}), s)
			r.replay(nil)
			want := byMember(s.Rules, hits)
			if slices.Index(want, true) < 0 || slices.Index(want, false) < 0 {
				t.Fatal("the test says nothing")
			}
			for i := range hits {
				if r.refused[i] != want[i] {
					t.Fatalf("hit %d, %v: refused %v, a member says %v", i, hits[i], r.refused[i], want[i])
				}
			}
		})
	}
}

func byMember(rules *config.Rules, hits []hit) []bool {
	now := start.UnixNano()
	n := owner.New(owner.Options{Self: "a", NoHot: true})
	n.Tick(now)
	n.SetMembership(now, &membership.View{
		Self: "a", Ring: ring.New([]ring.Member{{ID: "a"}}), NRef: 1, Joined: true,
	})
	var refused []bool
	for _, h := range hits {
		at := start.Add(h.at).UnixNano()
		for now+int64(100*time.Millisecond) < at {
			now += int64(100 * time.Millisecond)
			n.Tick(now)
		}
		var m config.Match
		rules.Match("edge", []config.Entry{{Key: "api_key", Value: h.key}}, nil, &m)
		a := n.Decide(at, &owner.Request{Key: owner.Key(m.Digest), RingPos: m.Owner, Hits: 1, Rule: m.Limit})
		refused = append(refused, a.Over)
	}
	return refused
}
