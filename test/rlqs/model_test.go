package rlqs

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/keyward/keyward/test/rlqs/model"
)

var (
	modelDeny  = shared(listener{name: "model-deny", assign: denies})
	modelAllow = shared(listener{name: "model-allow", assign: admits, expired: "expired_assignment_behavior_timeout: 1000s, fallback_rate_limit: {" + denies + "}"})
)

// The model and a real Envoy admit and report the same for the same random responses and hits.
func TestModelEqualsEnvoy(t *testing.T) {
	t.Parallel()
	for l, o := range map[*listener]model.ProxyOptions{
		modelDeny:  {NoAssignment: model.Strategy{Kind: model.DenyAll}},
		modelAllow: {NoAssignment: model.Strategy{Kind: model.AllowAll}, Expired: model.Strategy{Kind: model.DenyAll}, ExpiredFor: 1000 * time.Second},
	} {
		t.Run(l.name, func(t *testing.T) {
			l.each(t, func(s *site) {
				conns := s.dial(4)
				for seed := range rounds(1, 5) {
					d := &duel{site: s, conns: conns, o: o, seed: uint64(seed + 1)}
					if !d.run(rounds(40, 80)) {
						s.Errorf("seed %d: the machine was too slow in 5 runs", d.seed)
					}
				}
			})
		})
	}
}

// duel gives a model and a real Envoy the same script. Requests are sent while no publication is under way.
type duel struct {
	*site
	conns []*conn
	o     model.ProxyOptions
	seed  uint64
	try   int
	rand  *rand.Rand
	proxy *model.Proxy
	begin time.Time
	live  map[string]uint32 // the lease of an id
	lossy map[string]bool   // ids that were abandoned: what is lost of them depends on the time
	slow  bool              // something took so long that times may decide
	did   []string
}

// run runs a script, with other ids when the machine was too slow for one. It reports whether any was fast enough.
func (d *duel) run(steps int) bool {
	d.Helper()
	for d.try = range 5 {
		d.rand = rand.New(rand.NewPCG(d.seed, 7))
		d.proxy, d.begin, d.slow, d.did = model.NewProxy(d.o), time.Now(), false, nil
		d.live, d.lossy = map[string]uint32{}, map[string]bool{}
		for i := 0; i < steps && !d.slow && !d.Failed(); i++ {
			if i == steps/2 {
				d.endStream()
			}
			d.step()
		}
		if !d.slow {
			d.compareReports()
			return true
		}
	}
	return false
}

func (d *duel) now() int64 { return int64(time.Hour + time.Since(d.begin)) }

// step gives one id an assignment, or none, and compares a few hits.
func (d *duel) step() {
	d.Helper()
	which := d.rand.IntN(4)
	id := fmt.Sprintf("%d-%d-%d", d.seed, d.try, which)
	if _, ok := d.live[id]; !ok {
		d.live[id] = 0
		d.compare(id, 1)
	}
	what, as := d.assignments(id, which < 2)
	d.did = append(d.did, id+" "+what)
	pushed := time.Now()
	if len(as) > 0 {
		d.fenced(d.conns, as...)
		d.proxy.Receive(d.now(), as...)
	}
	n := d.rand.IntN(50)
	if what != "short" {
		d.compare(id, n)
		return
	}
	got, want := d.send(id, n)
	if d.slow = time.Since(pushed) > shortTTL*3/4; d.slow {
		return
	}
	d.equal(id, n, got, want)
	time.Sleep(shortTTL - time.Since(pushed) + time.Second)
	for range 2 { // Envoy's main thread may be late
		d.fenced(d.conns)
	}
	d.compare(id, 10)
}

// shortTTL is the lifetime of assignments that end in the script.
const shortTTL = 3 * time.Second

// assignments returns the next response.
func (d *duel) assignments(id string, abandon bool) (string, []model.Action) {
	n := uint32(1 + d.rand.IntN(60))
	one := func(s model.Strategy) []model.Action {
		return []model.Action{{ID: id, Strategy: s, TTL: minute}}
	}
	switch k := d.rand.IntN(20); {
	case k < 5:
		d.live[id] = n
		return fmt.Sprint("PAIR ", n), model.Pair(id, n, minute)
	case k < 8 && d.live[id] > 0:
		return "SAME", []model.Action{model.Same(id, d.live[id], minute)}
	case k < 11:
		d.live[id] = n
		return fmt.Sprint("bucket ", n), []model.Action{model.Same(id, n, minute)}
	case k < 12:
		d.live[id] = 0
		return fmt.Sprint("other rate ", n), []model.Action{bucket(id, n, 2+n%2, leaseInterval)}
	case k < 13:
		d.live[id] = 0
		return "DENY_ALL", one(model.Strategy{Kind: model.DenyAll})
	case k < 14:
		d.live[id] = 0
		return "ALLOW_ALL", one(model.Strategy{Kind: model.AllowAll})
	case k < 15:
		return "requests_per_time_unit", one(model.Strategy{Kind: model.PerUnit, Max: n})
	case k < 16 && abandon:
		d.lossy[id], d.live[id] = true, 0
		return "ABANDON", []model.Action{{ID: id, Abandon: true}}
	case k < 17 && abandon:
		d.lossy[id], d.live[id] = true, 0
		return "ABANDON and PAIR", append([]model.Action{{ID: id, Abandon: true}}, model.Pair(id, n, minute)...)
	case k < 18:
		d.live[id] = 0
		return "short", model.Pair(id, n, shortTTL)
	}
	return "hits", nil
}

// compare sends hits to both and compares what they admit.
func (d *duel) compare(id string, n int) {
	d.Helper()
	got, want := d.send(id, n)
	d.equal(id, n, got, want)
}

// send sends hits to both and returns how many Envoy and the model admitted.
func (d *duel) send(id string, n int) (got, want int) {
	d.Helper()
	got = d.hits(d.conns, id, n)
	for range n {
		if d.proxy.Hit(d.now(), 0, id) {
			want++
		}
	}
	return got, want
}

func (d *duel) equal(id string, n, got, want int) {
	d.Helper()
	d.did = append(d.did, fmt.Sprintf("%s %d hits: %d, model %d", id, n, got, want))
	if got != want {
		d.Errorf("seed %d: %q: Envoy admitted %d of %d, the model %d", d.seed, d.did, got, n, want)
	}
}

// endStream ends the stream of both.
func (d *duel) endStream() {
	d.Helper()
	st := d.server.stream(d, d.domainName())
	close(st.end)
	d.proxy.EndStream(d.now())
	d.await("another stream", func([]report) bool {
		d.server.mu.Lock()
		defer d.server.mu.Unlock()
		next := d.server.streams[d.domainName()]
		return next != nil && next != st
	})
	d.did = append(d.did, "the stream ended")
}

// compareReports compares what was reported in all.
func (d *duel) compareReports() {
	d.Helper()
	d.tick()
	all := d.tick() // after the last hit
	d.proxy.Advance(d.now() + int64(10*time.Second))
	modeled := map[string]model.ReportedUsage{}
	for _, m := range d.proxy.Sent() {
		for _, u := range m.Usages {
			sum := modeled[u.ID]
			modeled[u.ID] = model.ReportedUsage{ID: u.ID, Allowed: sum.Allowed + u.Allowed, Denied: sum.Denied + u.Denied}
		}
	}
	for id := range d.live {
		if got := total(all, id); !d.lossy[id] && got != modeled[id] {
			d.Errorf("seed %d: %q: Envoy reported %+v, the model %+v", d.seed, d.did, got, modeled[id])
		}
	}
}
