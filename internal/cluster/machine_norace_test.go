//go:build !race

package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// N_ref always includes every member that may answer.
func TestNRefNeverBelowTheLiveRing(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		b := newBed(r.IntN(4))
		next := uint64(100)
		for range 60 {
			switch r.IntN(4) {
			case 0:
				m := boot(ring.ID(fmt.Sprint("m", next)), next)
				m.State, next = membership.MemberState(r.IntN(3)), next+1
				b.others = append(b.others, m)
			case 1:
				if len(b.others) > 0 {
					b.lose(r.IntN(len(b.others)), r.IntN(2) == 0)
				}
			case 2:
				if len(b.others) > 0 {
					b.others[r.IntN(len(b.others))].State = membership.MemberState(r.IntN(3))
				}
			default:
				b.agree()
			}
			v := b.look(time.Duration(r.IntN(20)) * time.Second).view
			if v.NRef < v.Ring.Len() || v.NRef < 1 {
				t.Fatalf("N_ref %d for a ring of %d", v.NRef, v.Ring.Len())
			}
			if !slices.IsSortedFunc(v.Members, func(a, b membership.Member) int { return strings.Compare(string(a.ID), string(b.ID)) }) {
				t.Fatalf("members out of order: %v", v.Members)
			}
		}
	}
}
