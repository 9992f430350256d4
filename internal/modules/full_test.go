//go:build linux

package modules

import (
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/module/moduletest"
)

// TestFullMemory has more keys than the memory has room for. The others go on by calls, which is counted, and a busy key
// takes the place of a slow one.
func TestFullMemory(t *testing.T) {
	p := newPod(t, fmt.Sprintf(plain, 1_000_000))
	c := p.dial()
	p.eventually("the memory is full", func() bool {
		for i := range 1000 {
			_ = c.Interest(5, "app", "k", fmt.Sprint("slow ", i))
			if i%100 == 0 {
				time.Sleep(2 * time.Millisecond) // the socket has room for fewer messages
			}
		}
		return p.metric("keyward_module_full_total") > 100
	})
	p.eventually("a busy key has a lease", func() bool {
		for i := range 20 {
			key := fmt.Sprint("busy ", i)
			if out, _ := c.Spend(1, "app", "k", key); out == moduletest.Taken {
				continue
			}
			_ = c.Interest(5000, "app", "k", key)
			return false
		}
		return true
	})
	if states, _ := p.lessor.States(1, 1); len(states) != 1 || states[0].Used > states[0].Slots {
		t.Errorf("%+v", states)
	}
}
