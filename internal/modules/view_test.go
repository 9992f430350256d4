//go:build linux

package modules

import (
	"fmt"
	"testing"

	"github.com/keyward/keyward/envoy/module/moduletest"
)

// TestStates checks that the description of Envoys has what each was given and has spent, and says how much it leaves out.
func TestStates(t *testing.T) {
	p := newPod(t, fmt.Sprintf(plain, 100_000))
	first := p.dial()
	for i := range 3 {
		if !p.lease(first, "k", fmt.Sprint(i)) {
			t.Fatal("no lease")
		}
	}
	taken := uint64(1) // of k=2, by lease
	for out := moduletest.Taken; out == moduletest.Taken; {
		if out, _ = first.Spend(1, "app", "k", "2"); out == moduletest.Taken {
			taken++
		}
	}
	_ = first.Interest(3, "app", "k", "2")
	second := p.dial()
	var states []ModuleState
	p.eventually("all is described", func() bool {
		var total int
		if states, total = p.lessor.States(10, 10); total != 2 || states[0].Total != 3 || len(states[0].Keys) != 3 {
			return false
		}
		for _, k := range states[0].Keys {
			if k.Entries[0].Value == "2" && k.Taken >= taken && k.Empty+k.NoLease >= 3 {
				return true
			}
		}
		return false
	})
	if s := states[0]; s.Hello.ABI == "" || s.Since.IsZero() || s.Slots != 256 || s.Used != 3 {
		t.Errorf("%+v", s)
	}
	for _, k := range states[0].Keys {
		if k.Domain != "app" || k.Match.Limit.Limit != 100_000 || k.Left > k.Given || k.Entries[0].Key != "k" || k.Rate <= 0 {
			t.Errorf("%+v", k)
		}
	}
	if states, total := p.lessor.States(1, 2); total != 2 || len(states) != 1 || len(states[0].Keys) != 2 || states[0].Total != 3 {
		t.Errorf("%d of %d Envoys: %+v", len(states), total, states)
	} else if states[0].Keys[0].Rate < states[0].Keys[1].Rate {
		t.Error("the keys with the highest rates do not come first")
	}
	second.Close()
	first.Close()
	p.eventually("nothing is described", func() bool { _, total := p.lessor.States(10, 10); return total == 0 })
}
