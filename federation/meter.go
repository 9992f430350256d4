package federation

import (
	"math"
	"time"
)

// meter measures a rate as an exponentially weighted moving average.
type meter struct {
	perSecond float64
	at        int64
}

// count adds hits at now, averaged over span.
func (m *meter) count(now int64, hits uint64, span time.Duration) {
	if now-m.at >= int64(time.Millisecond) || now < m.at {
		m.perSecond, m.at = m.rate(now, span), now
	}
	m.perSecond += float64(hits) / span.Seconds()
}

// rate returns the hits per second at now, averaged over span.
func (m *meter) rate(now int64, span time.Duration) float64 {
	if now <= m.at {
		return m.perSecond
	}
	return m.perSecond * math.Exp(-float64(now-m.at)/float64(span))
}
