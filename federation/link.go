package federation

import "time"

const (
	awayAfter  = 3 // requests in a row without a reply
	probeFirst = time.Second
	probeLast  = 10 * time.Second
	firstRTT   = 100 * time.Millisecond
	longestRTT = 2 * time.Second
)

// CoordinatorLink describes the connection of a member to a coordinator. The caller guards it. The zero CoordinatorLink is one that works.
type CoordinatorLink struct {
	rtt      time.Duration // smoothed; 0: not measured
	failed   int           // requests in a row without a reply
	away     bool
	probeAt  int64
	interval time.Duration
}

// RTT returns the round trip time to the coordinator.
func (l *CoordinatorLink) RTT() time.Duration {
	if l.rtt == 0 {
		return firstRTT
	}
	return l.rtt
}

// Answered records a reply after that time. It returns true if the coordinator was away.
func (l *CoordinatorLink) Answered(took time.Duration) (returned bool) {
	took = min(max(took, 0), longestRTT)
	if l.rtt == 0 {
		l.rtt = max(took, 1)
	}
	l.rtt += (took - l.rtt) / 8
	returned = l.away
	l.failed, l.away, l.interval = 0, false, 0
	return returned
}

// Unanswered records that a request has had no reply in time. It returns true if the coordinator counts as away from now
// on.
func (l *CoordinatorLink) Unanswered(now int64) (left bool) {
	if l.failed++; l.failed < awayAfter {
		return false
	}
	return l.Failed(now)
}

// Failed records an error of the coordinator, which counts as away from now on. It returns true if it did not before.
func (l *CoordinatorLink) Failed(now int64) (left bool) {
	left = !l.away
	l.away = true
	l.interval = min(max(2*l.interval, probeFirst), probeLast)
	l.probeAt = now + int64(l.interval)
	return left
}

// Away reports whether the coordinator counts as away, so that outage policies decide.
func (l *CoordinatorLink) Away() bool { return l.away }

// Usable reports whether a request can be sent: the coordinator is not away, or it is time to probe it. A probe that
// begins now delays the next one.
func (l *CoordinatorLink) Usable(now int64) bool {
	if !l.away {
		return true
	}
	if now < l.probeAt {
		return false
	}
	l.probeAt = now + int64(max(l.interval, probeFirst))
	return true
}
