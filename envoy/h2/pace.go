package h2

import (
	"runtime"
	"sync"
	"time"
)

// What connections cost that bring few calls is estimated, in processor time, and the server goes through so much of it as takes a quarter
// of its processors. Go's scheduler gives each goroutine up to 10 ms: without that, a call of an honest client would wait behind every
// connection of a stranger that always has something to say.
const (
	earnedByCall = 50 * time.Microsecond  // what a call may cost beside its answer
	costOfConn   = 100 * time.Microsecond // to accept a connection, to greet its client and to end it
	costOfTLS    = 500 * time.Microsecond // of a handshake
	earnedMost   = 10 * time.Millisecond
	costOfByte   = 2 * time.Nanosecond
	costOfNoise  = 100 * time.Nanosecond
	costlyBlock  = 2 << 10 // bytes of a header block whose unpacking is measured
	worthAWait   = 100 * time.Microsecond
	muchAtOnce   = 300 * time.Microsecond // after which a connection waits, whatever it has said
	longestPace  = 250 * time.Millisecond // for which a connection is not read
)

// pace is how far the server has got with what nobody has earned.
type pace struct {
	mu    sync.Mutex
	until time.Time // guarded by mu
}

// wait is how long who has spent so much is to wait, now.
func (p *pace) wait(now time.Time, spent time.Duration) time.Duration {
	part := spent * 4 / time.Duration(runtime.GOMAXPROCS(0))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until.Before(now) {
		p.until = now
	}
	p.until = p.until.Add(part)
	if p.until.Sub(now) > longestPace {
		p.until = now.Add(longestPace)
	}
	return p.until.Sub(now)
}

// admit has a new connection wait for what those before it have cost.
func (p *pace) admit(secured bool) {
	cost := costOfConn
	if secured {
		cost += costOfTLS
	}
	time.Sleep(p.wait(time.Now(), cost) - cost)
}

// spending is what a connection has cost since its last pause.
type spending struct {
	spent  time.Duration
	earned time.Duration
}

// earn notes a whole call.
func (s *spending) earn() { s.earned = min(s.earned+earnedByCall, earnedMost) }

// much reports whether it is time to wait.
func (s *spending) much() bool { return s.spent-s.earned > muchAtOnce }

// settleUp returns what was spent that nothing has earned, once it is worth a wait.
func (s *spending) settleUp() time.Duration {
	d := s.spent - s.earned
	if 0 < d && d < worthAWait {
		return 0
	}
	s.earned, s.spent = max(0, -d), 0
	return max(0, d)
}
