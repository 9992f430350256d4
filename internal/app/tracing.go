package app

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/trace"
)

// lastSpans is how long a stopping member waits for the collector to accept the remaining spans.
const lastSpans = 2 * time.Second

// startTracing starts to export traces if the environment configures it.
func (m *sidecar) startTracing() error {
	t := m.Settings.Tracing
	if !t.Enabled {
		return nil
	}
	tracer, err := trace.Start(context.Background(), trace.Options{
		Service: t.Service, Namespace: t.Namespace, Instance: cmp.Or(t.Instance, m.Flags.Node), Protocol: t.Protocol, Rate: t.Rate,
		Path:      func(s *rls.DecisionSample) string { return pathName(s.Path) },
		Authority: func(s *rls.DecisionSample) string { return admin.AuthorityName(s.Authority) },
		Owner:     func(s *rls.DecisionSample) string { return string(m.ownerOf(s.Owner)) },
		Log:       m.Log,
	})
	if err != nil {
		return err
	}
	m.tracer = tracer
	m.Log.Info("tracing started", "service", t.Service, "protocol", t.Protocol, "rate", t.Rate)
	return nil
}

func (m *sidecar) stopTracing() {
	if m.tracer == nil {
		return
	}
	bounded, cancel := context.WithTimeout(context.Background(), lastSpans)
	defer cancel()
	if err := m.tracer.Stop(bounded); err != nil {
		m.Log.Warn("traces were lost at stop", "error", err)
	}
}

// logDenial writes one of the refusals to the log, without anything that a caller sent.
func (m *sidecar) logDenial(d rls.DecisionSample, suppressed uint64) {
	m.Log.Info("over limit", "domain", d.Domain, "rule", d.Rule, "limit", d.Limit, "key", fmt.Sprintf("%016x", d.Owner),
		"owner", m.ownerOf(d.Owner), "path", pathName(d.Path), "authority", admin.AuthorityName(d.Authority), "not_logged", suppressed)
}
