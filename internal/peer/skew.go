package peer

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/ring"
)

const (
	skewSamples = 8
	maxAge      = int64(time.Minute) // of a message
)

// skews estimate how far the clocks of the other members are from this one's.
type skews struct {
	gauge *prometheus.GaugeVec
	mu    sync.Mutex
	m     map[ring.ID]*skew // guarded by mu
}

// skew is one member's last heartbeats. The one that came back soonest tells best: whatever the way there and the way
// back took, half of it bounds the error.
type skew struct {
	samples [skewSamples]skewSample
	n       int
}

type skewSample struct{ trip, offset int64 }

// addSample takes in the answer to a heartbeat that was sent at sent, and arrived at now, from a member whose clock said
// theirs in between.
func (s *skews) addSample(id ring.ID, sent, theirs, now int64) {
	trip := now - sent
	if trip < 0 || trip > int64(10*time.Second) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.m[id]
	if k == nil {
		k = new(skew)
		s.m[id] = k
	}
	k.samples[k.n%skewSamples] = skewSample{trip, theirs - sent - trip/2}
	k.n++
	s.gauge.WithLabelValues(string(id)).Set(time.Duration(k.offset()).Seconds())
}

// offset is the member's clock less this one's.
func (k *skew) offset() int64 {
	best := k.samples[0]
	for _, s := range k.samples[1:min(k.n, skewSamples)] {
		if s.trip < best.trip {
			best = s
		}
	}
	return best.offset
}

// tooOld says whether a message that id sent when its clock said sent has been on its way for too long. Nothing is known
// before the first heartbeat came back.
func (s *skews) tooOld(id ring.ID, sent, now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.m[id]
	return k != nil && now+k.offset()-sent > maxAge
}

// retain forgets all members but those that are linked.
func (s *skews) retain(links map[ring.ID]*link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.m {
		if links[id] == nil {
			delete(s.m, id)
			s.gauge.DeleteLabelValues(string(id))
		}
	}
}

// reset forgets all of them, because this member's clock has jumped.
func (s *skews) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.m)
}
