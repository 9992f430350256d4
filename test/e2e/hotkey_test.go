package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// hotRules have a limit of 5,000 a second, and one that is never reached.
const hotRules = `domain: app
descriptors:
  - {key: s5000, rate_limit: {unit: second, requests_per_unit: 5000}}
  - {key: plenty, rate_limit: {unit: year, requests_per_unit: 4000000000}}
`

const (
	hotLimit  = 5000
	hotRate   = 8000 // requests a second of the hot key
	fairShare = 400  // requests a second of all other keys of one member
	hotWithin = 2 * time.Second
	coolsIn   = 40 * time.Second
	fewer     = 20   // times fewer requests reach the owner
	cheaper   = 2    // times less of its CPU is spent on the key
	wellUsed  = 0.97 // of the limit
)

// stage counts the hot key's requests in one period.
type stage struct {
	span
	asked   int64         // requests about it
	reached float64       // its owner, from other members
	cpu     time.Duration // of the owner, the other keys' part taken off
}

func (p stage) String() string {
	return fmt.Sprintf("%d asked, %.0f reached the owner, which spent %v on them; %.4f of the limit used in %d windows", p.asked, p.reached,
		p.cpu, p.used(), p.windows)
}

// TestHotKey asks any of three and, with KEYWARD_LONG, of five members about one key, at 20 times a member's fair share, next to
// other keys. It is found hot in time and decided where it is asked: far fewer requests reach its owner than when none is ever
// found hot, and not one hit more or less is admitted. Wherever the clients go, the limit is used.
func TestHotKey(t *testing.T) {
	members := []int{3}
	if long() {
		members = append(members, 5)
	}
	for _, n := range members {
		t.Run(fmt.Sprintf("%d members", n), func(t *testing.T) {
			var plain, leased []stage
			t.Run("no key is found hot", func(t *testing.T) { plain = newHeat(t, n, hotRate, fairShare, "--no-hot").stages() })
			t.Run("found hot", func(t *testing.T) {
				h := newHeat(t, n, hotRate, fairShare)
				h.found()
				leased = h.stages()
				h.exact(leased)
			})
			if len(plain) == 0 || len(leased) == 0 {
				return
			}
			for i := range plain {
				t.Logf("stage %d: without: %v", i+1, plain[i])
				t.Logf("stage %d: with:    %v", i+1, leased[i])
			}
			compare(t, plain, leased)
		})
	}
}

// TestHotKeyCools has a key become hot among few requests, and the requests end: it has one owner again.
func TestHotKeyCools(t *testing.T) {
	h := newHeat(t, 3, 400, 100, "--hot-rate", "50")
	h.found()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "a lease", func(context.Context) error {
		for _, s := range h.f.live[1:] {
			if ls := leases(t, s); len(ls.Keys) != 1 {
				return fmt.Errorf("%s holds %+v", s.Name, ls.Keys)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	h.cools()
}

// compare wants leases to pay.
func compare(t *testing.T, plain, leased []stage) {
	t.Helper()
	each := func(ps []stage, what func(stage) float64) float64 {
		sum, asked := 0.0, 0.0
		for _, p := range ps {
			sum, asked = sum+what(p), asked+float64(p.asked)
		}
		return sum / asked
	}
	reached := func(p stage) float64 { return p.reached }
	if r := each(plain, reached) / each(leased, reached); r < fewer {
		t.Errorf("only %.1f times fewer requests reach the owner", r)
	} else {
		t.Logf("%.1f times fewer requests reach the owner", r)
	}
	// What the owner is asked itself costs the same: the stages count in which others are asked.
	cpu := func(p stage) float64 { return float64(p.cpu) }
	if r := each(plain[1:], cpu) / each(leased[1:], cpu); r < cheaper {
		t.Errorf("the owner spends only %.1f times less on the key", r)
	} else {
		t.Logf("the owner spends %.1f times less on the key", r)
	}
}

// heat is a cluster with a hot key.
type heat struct {
	*testing.T
	f     *fleet
	owner *lab.Sidecar
	key   *account
	aim   *aim
	rest  time.Duration // CPU that the owner spends on a second without the hot key
	crowd *crowd        // the hot key's clients
	began time.Time
	still *still
}

// newHeat asks about one key at a rate, and about others at a rate for each member's.
func newHeat(t *testing.T, n, rate, fair int, args ...string) *heat {
	t.Helper()
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": hotRules}, Expect: n, Args: append([]string{"--decision-timeout", "1s"}, args...)})
	h := &heat{T: t, f: newFleet(t, l, names(n)...), still: watchStill(t)}
	h.owner, h.aim = h.f.live[0], aimAt(*h.f.doors.Load())
	h.key = newAccount("s5000", ownedBy(t, l, names(n), "hot", h.owner.Name), hotLimit, 1, time.Second)
	// The other keys are asked of their owners: what members ask of each other is the hot key's.
	startCrowd(t, others(t, l, h.aim.doors, fair, 20)...)
	steadily(time.Second)
	rest := h.ownersCPU()
	steadily(3 * time.Second)
	h.rest = (h.ownersCPU() - rest) / 3
	h.crowd, h.began = startCrowd(t, stream{h.key, rate, h.aim.pick}), time.Now()
	return h
}

// others are streams about so many keys of each member, each asked at its owner.
func others(t testing.TB, l *lab.Lab, doors []*door, rate, keys int) (all []stream) {
	t.Helper()
	var members []string
	at, left := map[string]*door{}, map[string]int{}
	for _, d := range doors {
		members = append(members, d.name)
		at[d.name], left[d.name] = d, keys
	}
	names := distinctKeys("other", 20*keys*len(doors))
	by := owners(t, l, members, names)
	for _, k := range names {
		if o := by[k]; left[o] > 0 {
			left[o]--
			all = append(all, stream{newAccount("plenty", k, 4_000_000_000, 1, 365*24*time.Hour), rate / keys, only(at[o])})
		}
	}
	if len(all) < keys*len(doors) {
		t.Fatalf("%d keys of %d members", len(all), len(doors))
	}
	return all
}

func (h *heat) ownersCPU() time.Duration {
	h.Helper()
	d, err := h.owner.CPU()
	if err != nil {
		h.Fatal(err)
	}
	return d
}

// found waits until the owner calls the key hot.
func (h *heat) found() {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), 15*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the key to be hot", func(context.Context) error {
		for _, k := range hotKeys(h, h.owner).Keys {
			if k.Hot && k.OwnerString == h.key.value {
				return nil
			}
		}
		return fmt.Errorf("the owner says %+v", hotKeys(h, h.owner).Keys)
	}); err != nil {
		h.Fatal(err)
	}
	took := time.Since(h.began)
	h.Logf("hot %v after its first request", took.Round(10*time.Millisecond))
	if took > hotWithin {
		h.Errorf("hot only after %v", took)
	}
}

// stages has all members asked alike, then nine in ten requests go to one that is not the owner, then to another;
// the owner is asked by members only.
func (h *heat) stages() (ps []stage) {
	h.Helper()
	for _, favourite := range []int64{-1, 1, 2} {
		h.aim.favourite.Store(favourite)
		steadily(time.Second) // holders notice
		from, asked, reached, cpu := time.Now(), h.crowd.asked.Load(), h.reached(), h.ownersCPU()
		steadily(3 * time.Second)
		cpu = h.ownersCPU() - cpu - time.Duration(float64(h.rest)*time.Since(from).Seconds())
		p := stage{span: h.key.since(from), asked: h.crowd.asked.Load() - asked, reached: h.reached() - reached, cpu: cpu}
		ps = append(ps, p)
	}
	return ps
}

// reached is how many requests the owner was asked by other members.
func (h *heat) reached() float64 {
	h.Helper()
	return value(metrics(h, h.owner.Metrics), "keyward_owner_requests_total")
}

// exact wants as much admitted as the limit where all are asked alike, and never more; the limit is used wherever they go.
func (h *heat) exact(ps []stage) {
	h.Helper()
	if n := h.crowd.failed.Load(); n > 0 {
		h.Errorf("%d requests had no answer", n)
	}
	if d := h.f.sum("keyward_degraded_total"); d > 0 && !h.still.forLong(h) {
		h.Errorf("%v answers were degraded", d)
	}
	for _, w := range ps[0].wrong {
		h.Error(w)
	}
	_, _, over := h.key.audit(nothing, false)
	for _, w := range over {
		h.Error(w)
	}
	for i, p := range ps {
		if p.spent == 0 || p.due < 0.9*hotLimit*float64(p.windows) {
			h.Errorf("stage %d: %d requests in 3 s are too few, the machine is too slow for this test", i+1, p.asked)
			continue
		}
		if u := p.used(); u < wellUsed || u > 1.001 {
			h.Errorf("stage %d: %.4f of the limit was used", i+1, u)
		}
	}
}

// cools ends the requests, and waits until the key has one owner again.
func (h *heat) cools() {
	h.Helper()
	h.crowd.stop()
	began := time.Now()
	ctx, cancel := context.WithTimeout(h.Context(), coolsIn)
	defer cancel()
	if err := lab.Await(ctx, "the key to cool", func(context.Context) error {
		for _, s := range h.f.live {
			keys := hotKeys(h, s)
			if len(keys.Routes) > 0 || s == h.owner && len(keys.Keys) > 0 && keys.Keys[0].Hot {
				return fmt.Errorf("%s still says %+v", s.Name, keys)
			}
			if l := leases(h, s); len(l.Keys) > 0 {
				return fmt.Errorf("%s still holds %+v", s.Name, l.Keys)
			}
		}
		return nil
	}); err != nil {
		h.Fatal(err)
	}
	h.Logf("one owner again %v after the last request", time.Since(began).Round(100*time.Millisecond))
	before, local := h.reached(), h.f.sum("keyward_decisions_total", "path", "lease")
	for range 100 {
		ask(h, h.aim.doors[1].client, h.key.request())
	}
	if n := h.reached() - before; n != 100 {
		h.Errorf("%v of 100 requests reached the owner", n)
	}
	if n := h.f.sum("keyward_decisions_total", "path", "lease") - local; n != 0 {
		h.Errorf("%v were decided from a lease", n)
	}
}
