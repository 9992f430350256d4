package boot

import (
	"context"

	"github.com/keyward/keyward/envoy/settings"
	"github.com/keyward/keyward/envoy/stats"
)

// startStats tells the original's statistics to Prometheus always, and to statsd where the environment asks for it.
func (m *Sidecar) startStats(ctx context.Context) error {
	s := m.settings.Stats
	c, err := stats.NewCollector(m.stats, stats.CollectorOptions{MapperFile: s.MapperFile, Milliseconds: s.Milliseconds, Tags: s.Tags})
	if err != nil {
		return err
	}
	if err := m.reg.Register(c); err != nil {
		return err
	}
	if s.Disabled || !s.Statsd && !s.DogStatsd {
		return nil
	}
	sink, err := stats.StartStatsd(m.stats, stats.StatsdOptions{
		Address: join(s.Host, s.Port), Network: s.Network, Dog: s.DogStatsd, Interval: s.FlushInterval,
		Tags: s.Tags, DogTags: s.DogTags, Mogrifiers: mogrifiers(s.Mogrifiers), Logger: m.log,
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, sink.Close)
	return nil
}

func mogrifiers(ms []settings.Mogrifier) []stats.Mogrifier {
	var out []stats.Mogrifier
	for _, m := range ms {
		out = append(out, stats.Mogrifier{Pattern: m.Pattern, Name: m.Name, Tags: m.Tags})
	}
	return out
}
