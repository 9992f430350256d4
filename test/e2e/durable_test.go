package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// durableRules have a window that is in the journal, and a limit of which durableU is U.
const durableRules = `domain: app
descriptors:
  - key: async
    rate_limit: {unit: month, requests_per_unit: 400}
    metadata: {keyward: {degraded: fail_closed}}
  - key: strict
    rate_limit: {unit: month, requests_per_unit: 400}
    metadata: {keyward: {degraded: fail_closed, durability: strict}}
`

const (
	durableLimit = 400
	durableU     = durableLimit / 100
	durableKeys  = 12                     // of each rule
	unwritten    = 200 * time.Millisecond // hits of this time before a kill may be lost of async rules
)

// quota is one key, and what clients have seen of it.
type quota struct {
	rule, key string

	mu         sync.Mutex
	admitted   []time.Time // when each hit was admitted
	unanswered int         // hits without an answer, which may have been charged
	refused    bool        // a hit was over the limit since the last restart
}

// quotas is a load on keys of durableRules.
type quotas struct {
	t    testing.TB
	list []*quota
}

// newQuotas returns quotas of keys that begin with prefix.
func newQuotas(t testing.TB, prefix string) *quotas {
	q := &quotas{t: t}
	for i := range durableKeys {
		for _, rule := range []string{"async", "strict"} {
			q.list = append(q.list, &quota{rule: rule, key: fmt.Sprintf("%s-%d", prefix, i)})
		}
	}
	return q
}

// hit sends one hit of q.
func (q *quota) hit(ctx context.Context, c rlsv3.RateLimitServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	res, err := c.ShouldRateLimit(ctx, request("app", 1, q.rule, q.key))
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case err != nil:
		q.unanswered++
	case res.OverallCode == rlsv3.RateLimitResponse_OK:
		q.admitted = append(q.admitted, time.Now())
	default:
		q.refused = true
	}
	return err
}

// spend sends hits to all keys through clients, from several goroutines, until stop is closed or every key has refused one.
func (q *quotas) spend(clients []rlsv3.RateLimitServiceClient, stop <-chan struct{}) {
	const workers = 8
	for _, x := range q.list {
		x.refused = false
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i, spent := w, 0; spent <= len(q.list); i++ {
				select {
				case <-stop:
					return
				default:
				}
				x := q.list[i%len(q.list)]
				x.mu.Lock()
				refused := x.refused
				x.mu.Unlock()
				if spent++; refused {
					continue
				}
				spent = 0
				if x.hit(q.t.Context(), clients[i/len(q.list)%len(clients)]) != nil {
					return
				}
			}
		})
	}
	wg.Wait()
}

// awaitHalf waits until half of each quota is spent.
func (q *quotas) awaitHalf() {
	for _, x := range q.list {
		if err := lab.Await(q.t.Context(), "half of "+x.key, func(context.Context) error {
			x.mu.Lock()
			defer x.mu.Unlock()
			if n := len(x.admitted); n < durableLimit/2 {
				return fmt.Errorf("%d hits", n)
			}
			return nil
		}); err != nil {
			q.t.Fatal(err)
		}
	}
}

// faults returns how the quotas were exceeded or not used up, after all members were killed so many times, the last time at
// the given one, and so many volumes were lost.
func (q *quotas) faults(killed time.Time, kills, volumes int) (out []string) {
	for _, x := range q.list {
		late := 0
		for _, at := range x.admitted {
			if at.After(killed.Add(-unwritten)) && at.Before(killed.Add(unwritten)) {
				late++
			}
		}
		n, most, least := len(x.admitted), durableLimit, durableLimit-x.unanswered
		if x.rule == "strict" {
			least -= kills * durableU
			if volumes > 0 { // of the successor's disk, no request waits
				most += volumes*durableU + late
			}
		} else {
			most += (1+volumes)*durableU + late
		}
		if n < least || n > most {
			out = append(out, fmt.Sprintf("%s %s: %d admitted, want %d to %d", x.rule, x.key, n, least, most))
		}
	}
	return out
}

// durableCluster is a cluster whose members have a volume each.
type durableCluster struct {
	*lab.Lab
	t testing.TB
}

func newDurableCluster(t testing.TB, members ...string) *durableCluster {
	c := &durableCluster{newLab(t, lab.Options{Rules: map[string]string{"app.yaml": durableRules}}), t}
	c.boot(members, members)
	return c
}

// volume returns the directory of a volume.
func (c *durableCluster) volume(name string) string { return filepath.Join(c.Dir, "data", name) }

// boot starts new members with the given volumes, "" for none, and waits until they have a ring.
func (c *durableCluster) boot(members, volumes []string) {
	c.t.Helper()
	for i, m := range members {
		args := []string{"--expect", fmt.Sprint(len(members))}
		if volumes[i] != "" {
			args = append(args, "--data", c.volume(volumes[i]))
		}
		if _, err := c.AddSidecar(m, args...); err != nil {
			c.t.Fatal(err)
		}
	}
	awaitRing(c.t, c.Lab, members...)
}

// live returns the running members.
func (c *durableCluster) live() (out []*lab.Sidecar) {
	for _, s := range c.Sidecars {
		if s.Running() {
			out = append(out, s)
		}
	}
	return out
}

// clients connects to all running members.
func (c *durableCluster) clients() (out []rlsv3.RateLimitServiceClient) {
	for _, s := range c.live() {
		out = append(out, dial(c.t, s.RLS, nil))
	}
	return out
}

// killAll ends all members at once, as the loss of a node pool does, and returns when.
func (c *durableCluster) killAll() time.Time {
	at := time.Now()
	var wg sync.WaitGroup
	for _, s := range c.live() {
		wg.Go(s.Kill)
	}
	wg.Wait()
	c.Sidecars = nil
	return at
}

// killUnderLoad spends a part of q, kills all members meanwhile, and returns when.
func (c *durableCluster) killUnderLoad(q *quotas, after time.Duration) (killed time.Time) {
	return c.killWhen(q, func() { steadily(after) }) // the time of the kill varies, and nothing waits for it
}

// killWhen is killUnderLoad at the time at which ready returns.
func (c *durableCluster) killWhen(q *quotas, ready func()) (killed time.Time) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { q.spend(c.clients(), stop); close(done) }()
	ready()
	killed = c.killAll()
	close(stop)
	<-done
	return killed
}

// TestKillAllRounds kills all members under load, and starts them again, several times. No quota is exceeded by more than
// what journals may lack. Without journals, every quota starts again.
func TestKillAllRounds(t *testing.T) {
	rounds := 3
	if long() {
		rounds = 20
	}
	members := names(3)
	c := newDurableCluster(t, members...)
	for round := range rounds {
		q := newQuotas(t, fmt.Sprint("round-", round))
		killed := c.killUnderLoad(q, 150*time.Millisecond+time.Duration(round%7)*50*time.Millisecond)
		c.boot(members, members)
		q.spend(c.clients(), nil)
		for _, f := range q.faults(killed, 1, 0) {
			t.Errorf("round %d: %s", round, f)
		}
		if n := value(metrics(t, c.Sidecars[0].Metrics), "keyward_overadmission_bound_by_cause", "cause", "restart"); n != durableU {
			t.Errorf("round %d: the bound of the restart is %v", round, n)
		}
	}
	q := newQuotas(t, "without")
	c.killAll()
	none := []string{"", "", ""}
	c.boot(members, none)
	killed := c.killWhen(q, func() {
		q.awaitHalf()
		steadily(unwritten) // what was admitted just before the kill is not counted
	})
	c.boot(members, none)
	q.spend(c.clients(), nil)
	if n := len(q.faults(killed, 1, 0)); n < len(q.list)*3/4 {
		t.Errorf("only %d of %d quotas are exceeded without --data: the test shows nothing", n, len(q.list))
	}
}

// TestRestartOtherMembers kills all members under load, and starts other ones: with other names, more, fewer, and without
// some of the volumes. Every quota stays within the rows of keyward bounds --data.
func TestRestartOtherMembers(t *testing.T) {
	five := names(5)
	type change struct {
		before, after, volumes []string
		lost                   int
	}
	changes := map[string]change{
		"other names": {five[:3], []string{"x", "y", "z"}, []string{five[2], five[0], five[1]}, 0},
		"3 to 5":      {five[:3], five, five, 0},
		"5 to 3":      {five, five[:3], five[:3], 2},
		"one lost":    {five[:3], five[:3], []string{five[0], "new", five[2]}, 1},
	}
	if long() { // "5 to 3" loses two volumes, too, and each such change waits for 35 s
		changes["two of 3 lost"] = change{five[:3], five[:3], []string{"new-0", "new-1", five[2]}, 2}
	}
	for name, x := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newDurableCluster(t, x.before...)
			q := newQuotas(t, "k")
			owner := owners(t, c.Lab, x.before, quotaKeys(q))
			killed := c.killUnderLoad(q, 400*time.Millisecond)
			c.boot(x.after, x.volumes)
			q.spend(c.clients(), nil)
			if missing := value(metrics(t, c.Sidecars[0].Metrics), "keyward_journal_missing"); int(missing) != x.lost {
				t.Errorf("%v journals are missing, want %d", missing, x.lost)
			}
			if x.lost < 2 {
				for _, f := range q.faults(killed, 1, x.lost) {
					t.Error(f)
				}
				return
			}
			// Of keys whose owner and successor have lost their volumes, the whole limit may be admitted again, and no more.
			kept := 0
			for _, z := range q.list {
				one := &quotas{t: t, list: []*quota{z}}
				switch faults := one.faults(killed, 1, 1); {
				case len(z.admitted) > 2*durableLimit:
					t.Errorf("%s %s: %d admitted", z.rule, z.key, len(z.admitted))
				case slices.Contains(x.volumes, owner[z.key]) && len(faults) > 0:
					t.Error("its owner's volume is there: ", faults[0])
				case len(faults) == 0:
					kept++
				}
			}
			if kept < len(q.list)/4 {
				t.Errorf("%d of %d keys keep their counts", kept, len(q.list))
			}
		})
	}
}

// quotaKeys returns the keys of q.
func quotaKeys(q *quotas) (keys []string) {
	for _, x := range q.list {
		keys = append(keys, x.key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// counts reads the counter of every key from its owner.
func (c *durableCluster) counts(q *quotas) map[string]uint64 {
	c.t.Helper()
	out := map[string]uint64{}
	for _, x := range q.list {
		n, err := lab.CounterOf(c.t.Context(), c.live()[0].Metrics, "app", x.rule, x.key)
		if err != nil {
			c.t.Fatal(err)
		}
		out[x.rule+"="+x.key] = n.Count
	}
	return out
}

// TestStopAll stops all members in good order, in the middle of their quotas and beyond them. Every count is the same
// afterwards.
func TestStopAll(t *testing.T) {
	members := names(3)
	c := newDurableCluster(t, members...)
	q := newQuotas(t, "k")
	clients := c.clients()
	for i, x := range q.list {
		for range 5 + 30*i { // the last ones are refused
			if err := x.hit(t.Context(), clients[i%len(clients)]); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := c.counts(q)
	var wg sync.WaitGroup
	for _, s := range c.live() {
		wg.Go(func() {
			if err := s.Stop(30 * time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	c.Sidecars = nil
	c.boot(members, members)
	for k, n := range c.counts(q) {
		if n != before[k] || n == 0 {
			t.Errorf("%s: %d before, %d after", k, before[k], n)
		}
	}
}

// TestStopAllUnderLoad stops all members in good order while clients send hits. What they admit until they end, and after
// they have started again, exceeds no limit by more than the shares of all but one.
func TestStopAllUnderLoad(t *testing.T) {
	members := names(3)
	c := newDurableCluster(t, members...)
	q := newQuotas(t, "k")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				q.spend(c.clients(), stop)
			}
		}
	}()
	steadily(200 * time.Millisecond)
	var wg sync.WaitGroup
	for _, s := range c.live() {
		wg.Go(func() {
			if err := s.Stop(30 * time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(stop)
	<-done
	c.Sidecars = nil
	c.boot(members, members)
	q.spend(c.clients(), nil)
	for _, x := range q.list {
		if n, most := len(x.admitted), durableLimit+durableLimit*2/3+durableU; n > most {
			t.Errorf("%s %s: %d admitted, want at most %d", x.rule, x.key, n, most)
		}
	}
}

// TestStandaloneData requires that a member alone keeps its counts through kills, and answers nothing before it has loaded
// them.
func TestStandaloneData(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": durableRules}, Insecure: true})
	args := []string{"--join", "", "--data", filepath.Join(l.Dir, "data")}
	s, err := l.AddSidecar("alone", args...)
	if err != nil {
		t.Fatal(err)
	}
	q := newQuotas(t, "k")
	for round := range 3 {
		awaitAlone(t, l)
		client := []rlsv3.RateLimitServiceClient{dial(t, s.RLS, nil)}
		for _, x := range q.list {
			for range 100 {
				if err := x.hit(t.Context(), client[0]); err != nil {
					t.Fatal(err)
				}
			}
		}
		steadily(unwritten) // hits of async rules of the last moment may be lost
		killed := time.Now()
		if s.Kill(); round == 1 {
			if files, err := os.ReadDir(filepath.Join(l.Dir, "data")); err != nil || len(files) != 1 {
				t.Errorf("%d directories, %v", len(files), err)
			}
		}
		if err := l.Restart(s, args...); err != nil {
			t.Fatal(err)
		}
		if round < 2 {
			continue
		}
		awaitAlone(t, l)
		q.spend([]rlsv3.RateLimitServiceClient{dial(t, s.RLS, nil)}, nil)
		for _, f := range q.faults(killed, 3, 0) {
			t.Error(f)
		}
	}
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
