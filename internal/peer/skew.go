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

// skews estimates the offsets of the other members' clocks.
type skews struct {
	gauge *prometheus.GaugeVec
	mu    sync.Mutex
	m     map[ring.ID]*skew // guarded by mu
}

// skew has the samples of one member's last heartbeats. The one with the shortest round trip is the best: its error is
// at most half of the trip.
type skew struct {
	samples [skewSamples]skewSample
	n       int
}

type skewSample struct{ trip, offset int64 }

// addSample adds the reply to a heartbeat that was sent at sent and arrived at now. theirs is the member's clock when
// it replied.
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

// offset returns the difference of the member's clock to this one.
func (k *skew) offset() int64 {
	best := k.samples[0]
	for _, s := range k.samples[1:min(k.n, skewSamples)] {
		if s.trip < best.trip {
			best = s
		}
	}
	return best.offset
}

// tooOld reports whether a message that id sent at sent, by its clock, has been on its way for too long. It returns
// false before the first sample.
func (s *skews) tooOld(id ring.ID, sent, now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.m[id]
	return k != nil && now+k.offset()-sent > maxAge
}

// of returns how far the clock of id is ahead of this one; 0 before the first sample.
func (s *skews) of(id ring.ID) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.m[id]; k != nil {
		return time.Duration(k.offset())
	}
	return 0
}

// retain removes all members that have no link.
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

// reset removes all samples, because this member's clock has jumped.
func (s *skews) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.m)
}

// ClockOffsets returns how far each member's clock is ahead of this member's, as the metric keyward_peer_skew_seconds.
// It may be called concurrently.
func (p *Peer) ClockOffsets() map[ring.ID]time.Duration {
	p.skews.mu.Lock()
	defer p.skews.mu.Unlock()
	ahead := make(map[ring.ID]time.Duration, len(p.skews.m))
	for id, k := range p.skews.m {
		ahead[id] = time.Duration(k.offset())
	}
	return ahead
}
