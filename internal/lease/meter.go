package lease

import (
	"math"
	"time"
)

// meter measures a rate as an exponentially weighted moving average with a time constant of one second.
type meter struct {
	perSecond float64
	at        int64
}

// count adds hits at now.
func (m *meter) count(now int64, hits uint64) {
	if now-m.at >= int64(time.Millisecond) || now < m.at {
		m.perSecond, m.at = m.rate(now), now
	}
	m.perSecond += float64(hits)
}

// rate returns the hits per second at now.
func (m *meter) rate(now int64) float64 {
	if now <= m.at {
		return m.perSecond
	}
	return m.perSecond * math.Exp(-float64(now-m.at)/float64(time.Second))
}
