package loadtest

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"
)

// tick is the least that is slept: at rates beyond, a few calls begin together and a little late, rather than each with a system call.
const tick = 50 * time.Microsecond

// pace begins calls at even distances. A call begins when it is due, however late this or the server is: a server's slowness must not hide
// behind fewer calls (coordinated omission).
func (l *Load) pace(ctx context.Context, r *round, rate float64) {
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		runtime.LockOSThread() // never unlocked: the thread, whose timers are exact, ends with this goroutine
		exactTimers()
		random := rand.New(rand.NewPCG(2, 2))
		late := make([]bool, len(l.conns)) // has calls that are not written yet
		for n := 0; ctx.Err() == nil; n++ {
			due := r.begin.Add(time.Duration(float64(n) / rate * float64(time.Second)))
			if !due.Before(r.end) {
				break
			}
			if wait := time.Until(due); wait > 0 {
				l.flush(late)
				sleep(max(wait, tick))
			}
			i := n % len(l.conns)
			if l.Placed {
				i = l.placed(random, n)
			}
			r.calls.Add(1)
			l.conns[i].ask(due, false)
			late[i] = true
		}
		l.flush(late)
	}()
	<-begun
}

// placed is a connection to the target of a call taken at random: targets get as many calls as they have keys.
func (l *Load) placed(random *rand.Rand, n int) int {
	each := len(l.conns) / len(l.Targets)
	return n%each*len(l.Targets) + l.Calls[random.IntN(len(l.Calls))].Target
}

func (l *Load) flush(late []bool) {
	for i := range late {
		if late[i] {
			l.conns[i].flush()
			late[i] = false
		}
	}
}
