package federation

import (
	"context"
	"sync"
	"time"
)

// Memory is a Coordinator that keeps its accounts in memory, and so forgets them when its process ends. It serves tests,
// and federations whose coordinator may lend only the rest of a window after a restart.
type Memory struct {
	now   func() int64
	terms TermOf
	since int64

	mu       sync.Mutex
	accounts map[Key]*timedAccount // guarded by mu
	sweptAt  int64                 // guarded by mu
}

// timedAccount is the accounts of a key, and the time until which they are needed.
type timedAccount struct {
	PoolAccount
	counts CountAccount
	until  int64
}

// sweepEvery is the time between two searches for accounts whose windows have ended.
const sweepEvery = int64(time.Minute)

// NewMemory returns a Memory for the layouts of terms, with time from now. Of windows that began before since, in Unix
// nanoseconds, it lends only the rest.
func NewMemory(terms TermOf, since int64, now func() int64) *Memory {
	return &Memory{now: now, terms: terms, since: since, accounts: map[Key]*timedAccount{}}
}

// Lease implements Coordinator.
func (m *Memory) Lease(_ context.Context, region string, rs []PoolRequest) (gs []PoolGrant, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.sweep(now)
	for i := range rs {
		if g, ok := m.grant(now, region, &rs[i]); ok {
			gs = append(gs, g)
		}
	}
	return gs, nil
}

// Reconcile implements Coordinator.
func (m *Memory) Reconcile(ctx context.Context, region string, rs []PoolRequest) error {
	_, err := m.Lease(ctx, region, rs)
	return err
}

// Healthy implements Coordinator. It returns no error.
func (m *Memory) Healthy(context.Context) error { return nil }

// Grant implements Grantor. The caller's clock replaces that of m.
func (m *Memory) Grant(now int64, region string, r *PoolRequest) (PoolGrant, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweep(now)
	return m.grant(now, region, r)
}

func (m *Memory) grant(now int64, region string, r *PoolRequest) (g PoolGrant, ok bool) {
	w := r.Window // that of a report, with mechanism approximate
	if !r.Approximate {
		w = r.Rule.Index(now)
	}
	if !r.Valid() || !m.terms.Lends(r, r.Rule.End(w-1)) {
		return g, false
	}
	a := m.accounts[r.Key]
	if a == nil {
		a = &timedAccount{PoolAccount: PoolAccount{Since: m.since}}
	}
	grant := a.Grant
	if r.Approximate {
		grant = a.counts.Grant
	}
	if g, ok = grant(now, region, r); ok {
		a.until = max(a.until, now+int64(g.Left)+int64(r.Rule.Window)+int64(lateReport+keepCounts))
		m.accounts[r.Key] = a
	}
	return g, ok
}

// sweep removes accounts that no window needs any more.
func (m *Memory) sweep(now int64) {
	if now-m.sweptAt < sweepEvery {
		return
	}
	m.sweptAt = now
	for k, a := range m.accounts {
		if a.until <= now {
			delete(m.accounts, k)
		}
	}
}
