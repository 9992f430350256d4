package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/lab"
)

// stream is one key's clients: so many requests a second, each asked of the member that where names.
type stream struct {
	*account
	rate  int
	where func() *door
}

// crowd asks streams at a steady pace.
type crowd struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	asked  atomic.Int64
	failed atomic.Int64 // requests without an answer
}

// startCrowd asks until it is stopped.
func startCrowd(t testing.TB, streams ...stream) *crowd {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &crowd{cancel: cancel}
	for _, s := range streams {
		workers := max(1, min(16, s.rate/50))
		for i := range workers {
			every := time.Second * time.Duration(workers) / time.Duration(s.rate)
			c.done.Go(func() { c.run(ctx, s, every, every*time.Duration(i)/time.Duration(workers)) })
		}
	}
	t.Cleanup(c.stop)
	return c
}

func (c *crowd) stop() {
	c.cancel()
	c.done.Wait()
}

// run asks at a pace. What a busy machine kept from being asked for up to a second is asked later.
func (c *crowd) run(ctx context.Context, s stream, every, after time.Duration) {
	next := time.Now().Add(after)
	for ctx.Err() == nil {
		if wait := time.Until(next); wait > 0 {
			<-time.After(wait)
		} else if wait < -time.Second {
			next = time.Now()
		}
		next = next.Add(every)
		if d := s.where(); d != nil {
			c.ask(s.account, d)
		}
	}
}

func (c *crowd) ask(a *account, d *door) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	sent := time.Now()
	res, err := d.client.ShouldRateLimit(ctx, a.request())
	a.record(sent, time.Now(), res.GetOverallCode(), err != nil)
	c.asked.Add(1)
	if err != nil {
		c.failed.Add(1)
	}
}

// aim says which member a request goes to: any; or nine in ten to a favorite, the rest to all others but the first.
type aim struct {
	doors     []*door
	favourite atomic.Int64 // index in doors; negative: none
}

func aimAt(doors []*door) *aim {
	a := &aim{doors: doors}
	a.favourite.Store(-1)
	return a
}

func (a *aim) pick() *door {
	i, f := rand.IntN(len(a.doors)), int(a.favourite.Load())
	switch {
	case f < 0:
		return a.doors[i]
	case rand.IntN(10) > 0:
		return a.doors[f]
	}
	if i = 1 + rand.IntN(len(a.doors)-2); i >= f {
		i++
	}
	return a.doors[i]
}

// only asks one member.
func only(d *door) func() *door { return func() *door { return d } }

// span sums up an account over the complete windows of a time.
type span struct {
	windows, spent int     // spent: a client was refused
	admitted, due  float64 // in all of them; due: the hits requested, up to the limit
	wrong          []string
}

// since looks at the whole windows from a time until now. In each that is spent as much as the limit was admitted.
func (a *account) since(from time.Time) (s span) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for n, last := a.number(from)+1, a.number(time.Now()); n < last; n++ {
		p := a.page(n)
		s.windows++
		s.admitted += float64(p.admitted) + float64(p.maybeAdmitted)/2 // which is entered in both windows
		s.due += min(float64(a.limit), float64(p.charged)+float64(p.maybeCharged)/2)
		if p.refused {
			s.spent++
		}
		if p.admitted > a.limit || p.refused && p.admitted+p.maybeAdmitted < a.limit {
			s.wrong = append(s.wrong, fmt.Sprintf("window %d: %d admitted, and perhaps %d, of %d", n, p.admitted, p.maybeAdmitted, a.limit))
		}
	}
	return s
}

// used returns the fraction admitted of the hits requested within the limits.
func (s span) used() float64 { return s.admitted / s.due }

// hotKeys returns the report of a member about the hot and leased keys that it owns.
func hotKeys(t testing.TB, s *lab.Sidecar) api.HotKeys {
	t.Helper()
	var h api.HotKeys
	read(t, s, "/v1/hotkeys", &h)
	return h
}

// leases lists the leases that a member holds.
func leases(t testing.TB, s *lab.Sidecar) api.HeldLeases {
	t.Helper()
	var l api.HeldLeases
	read(t, s, "/v1/leases", &l)
	return l
}

func read(t testing.TB, s *lab.Sidecar, path string, into any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	body, err := lab.Get(ctx, "http://"+s.Metrics+path)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ownedBy is the first value of so many that a member owns.
func ownedBy(t testing.TB, l *lab.Lab, members []string, prefix string, owner string) string {
	t.Helper()
	keys := distinctKeys(prefix, 100)
	by := owners(t, l, members, keys)
	for _, k := range keys {
		if by[k] == owner {
			return k
		}
	}
	t.Fatalf("none of 100 keys is %s's", owner)
	return ""
}
