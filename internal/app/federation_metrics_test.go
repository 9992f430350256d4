package app

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/limit"
)

// TestClockOffset requires that the metric shows only the part of a difference of clocks that the duration of a call cannot
// explain.
func TestClockOffset(t *testing.T) {
	began, took := time.Unix(1_000_000, 0), 150*time.Millisecond
	for at, want := range map[time.Duration]time.Duration{
		0: 0, took: 0, 75 * time.Millisecond: 0,
		400 * time.Millisecond: 250 * time.Millisecond, -time.Second: -time.Second,
	} {
		c := poolCaller{offset: prometheus.NewGauge(prometheus.GaugeOpts{})}
		rule := limit.Rule{Window: time.Minute, Limit: 10}
		now := began.Add(at).UnixNano()
		m := federation.NewMemory(federation.Always(0), 0, func() int64 { return now })
		rs := []federation.PoolRequest{{Rule: rule, Pool: 10, Seq: 1, Tokens: 1}}
		gs, err := m.Lease(t.Context(), "a", rs)
		if err != nil || len(gs) != 1 {
			t.Fatal(gs, err)
		}
		c.measureOffset(rs, gs, began, took)
		if got := testutil.ToFloat64(c.offset); got != want.Seconds() {
			t.Errorf("a clock that shows %v: %v, want %v", at, got, want)
		}
	}
}

type repairing struct {
	federation.Coordinator
	hits uint64
}

func (r *repairing) Repaired() uint64 { return r.hits }

// TestRepairedHits requires that only stores that can lose records have the metric.
func TestRepairedHits(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	exportRepaired(reg, "a_total", nil, federation.NewMemory(federation.Always(1), 0, nil))
	if n, err := testutil.GatherAndCount(reg); n != 0 || err != nil {
		t.Errorf("%d metrics of a memory, %v", n, err)
	}
	store := &repairing{hits: 3}
	exportRepaired(reg, "a_total", nil, store)
	store.hits = 5
	all, err := reg.Gather()
	if err != nil || len(all) != 1 || all[0].GetMetric()[0].GetCounter().GetValue() != 5 {
		t.Errorf("%v, %v", all, err)
	}
}

// TestUp requires that a coordinator that answers without grants, so that it counts as away, is not shown as up.
func TestUp(t *testing.T) {
	for _, away := range []bool{true, false} {
		m := newFederationMetrics(prometheus.NewRegistry())
		a := &authority{"home", federation.NewMemory(federation.Always(1), 0, func() int64 { return 1 })}
		c := m.caller(a, "a", nil, func(uint32, time.Duration, []federation.PoolGrant, bool) bool { return away })
		c.call(t.Context(), []federation.PoolRequest{{Epoch: 2}})
		if up := testutil.ToFloat64(c.up); (up == 1) == away {
			t.Errorf("away %v: up %v", away, up)
		}
	}
}
