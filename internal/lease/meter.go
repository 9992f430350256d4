package lease

import (
	"math"
	"time"
)

// RateMeter measures a rate as an exponentially weighted moving average with a time constant of one second.
type RateMeter struct {
	perSecond float64
	at        int64
}

// Count adds hits at now.
func (m *RateMeter) Count(now int64, hits uint64) {
	if now-m.at >= int64(time.Millisecond) || now < m.at {
		m.perSecond, m.at = m.Rate(now), now
	}
	m.perSecond += float64(hits)
}

// Rate returns the hits per second at now.
func (m *RateMeter) Rate(now int64) float64 {
	if now <= m.at {
		return m.perSecond
	}
	return m.perSecond * math.Exp(-float64(now-m.at)/float64(time.Second))
}
