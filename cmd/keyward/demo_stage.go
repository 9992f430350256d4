package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/rulecheck"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// act is an action on the running cluster.
type act struct {
	key  byte
	name string
	what string
	do   func(*stage, context.Context) error
}

// acts returns the actions. They run one at a time, after a key or a click, or by themselves without a terminal.
func acts() []act {
	return []act{
		{'h', "hot", "make a key hot", (*stage).hot},
		{'k', "kill", "kill an owner", (*stage).kill},
		{'r', "roll", "restart all sidecars", (*stage).roll},
		{'a', "all", "kill all at once", (*stage).all},
	}
}

// Parameters of the acts.
const (
	hotFor   = 8 * time.Second // traffic for the hot key
	deadFor  = 5 * time.Second // until a killed sidecar restarts: longer than a takeover
	hotExtra = 300             // additional requests per second for the hot key
	// A crash affects the window in which it happens and those until the takeover.
	crashWindows = 5
)

// stage is a running cluster, its traffic, and the acts on it.
type stage struct {
	lab   *lab.Lab
	envoy *lab.Envoy
	keys  []*demoKey
	viral *demoKey
	month *demoKey
	down  atomic.Bool // all sidecars are killed on purpose
	names []string    // of the sidecars; lab.Sidecars belongs to the goroutine of the acts
	pages []string    // their metrics addresses
	start time.Time
	until time.Duration // 0: until the demo is stopped

	queue  chan act
	ending *ending

	mu    sync.Mutex
	state map[string]string // of members that do not run normally
	notes []string          // oldest first
	now   string            // the running act; empty: none
	bound int64             // largest number of hits above limits that the crashes so far can have admitted
}

func newStage(l *lab.Lab, envoy *lab.Envoy, length time.Duration) *stage {
	s := &stage{lab: l, envoy: envoy, keys: demoKeys(), queue: make(chan act, 1), state: map[string]string{}, until: length}
	for _, c := range l.Sidecars {
		s.names, s.pages = append(s.names, c.Name), append(s.pages, c.Metrics)
	}
	for _, k := range s.keys {
		k.down = &s.down
		switch k.name {
		case viralKey:
			s.viral = k
		case monthKey:
			s.month = k
		}
	}
	return s
}

// ask queues an act. It reports false if another one is queued.
func (s *stage) ask(a act) bool {
	select {
	case s.queue <- a:
		return true
	default:
		return false
	}
}

// act executes queued acts until ctx ends.
func (s *stage) act(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-s.queue:
			s.set(func() { s.now = a.what })
			if err := a.do(s, ctx); err != nil && ctx.Err() == nil {
				s.note("%s failed: %v", a.name, err)
			}
			s.set(func() { s.now = "" })
			pause(ctx, time.Second)
		}
	}
}

func (s *stage) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *stage) note(format string, a ...any) {
	text := fmt.Sprintf("%4.0f s  ", time.Since(s.start).Seconds()) + fmt.Sprintf(format, a...)
	s.set(func() { s.notes = append(s.notes, text) })
}

func (s *stage) mark(name, state string) { s.set(func() { s.state[name] = state }) }

// at returns the ring of the first member that answers, or nil.
func (s *stage) at(ctx context.Context) *ring.Ring {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var members []ring.Member
	for _, page := range s.pages {
		if v, err := lab.Cluster(ctx, page); err == nil && len(v.Ring.Members) > 0 {
			for _, id := range v.Ring.Members {
				members = append(members, ring.Member{ID: ring.ID(id)})
			}
			return ring.New(members)
		}
	}
	return nil
}

func (s *stage) owner(r *ring.Ring, k *demoKey) string {
	if r == nil {
		return "?"
	}
	return string(r.At(r.Owner(ring.Hash(k.name))).ID)
}

// kill kills the owner of the busiest key and restarts it.
func (s *stage) kill(ctx context.Context) error {
	r := s.at(ctx)
	busiest := s.keys[0]
	for _, k := range s.keys {
		if k.rate > busiest.rate {
			busiest = k
		}
	}
	var victim *lab.Sidecar
	for _, c := range s.lab.Sidecars {
		if c.Name == s.owner(r, busiest) {
			victim = c
		}
	}
	if victim == nil {
		return fmt.Errorf("%s has no owner", busiest.name)
	}
	var theirs []string
	for _, k := range s.keys {
		if s.owner(r, k) == victim.Name {
			theirs = append(theirs, k.name)
			s.set(func() { s.bound += crashWindows * crashBound(k, len(s.names)) })
		}
	}
	victim.Kill()
	s.mark(victim.Name, "killed")
	s.note("killed %s, the owner of %s: their successors have replicas and continue", victim.Name, strings.Join(theirs, ", "))
	if !pause(ctx, deadFor) {
		return nil
	}
	if err := s.restart(ctx, victim); err != nil {
		return err
	}
	s.note("%s has restarted and counts again", victim.Name)
	return nil
}

// crashBound returns how many hits a crash of the owner can add to one window of k, as `keyward bounds` prints it.
func crashBound(k *demoKey, members int) int64 {
	r := config.RuleSpec{}
	r.Limit.Limit, r.Limit.Window = uint32(k.limit), k.window()
	b := rulecheck.BoundsOf(&r, rulecheck.Conditions{Members: members, Partition: policy.PartShare})
	return int64(b.Unacked + b.Phi)
}

// restart restarts a member and waits until all members use the same ring.
func (s *stage) restart(ctx context.Context, c *lab.Sidecar) error {
	s.mark(c.Name, "starting")
	if err := s.lab.Restart(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := s.lab.AwaitRing(ctx, s.names...); err != nil {
		return err
	}
	s.mark(c.Name, "")
	return nil
}

// roll restarts all sidecars one after the other, as a rolling update does.
func (s *stage) roll(ctx context.Context) error {
	for _, c := range s.lab.Sidecars {
		s.mark(c.Name, "leaving")
		s.note("stopping %s: it sends its counters to the next owners first", c.Name)
		if err := c.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		select {
		case <-c.Exited():
		case <-ctx.Done():
			return nil
		}
		if err := s.restart(ctx, c); err != nil {
			return err
		}
	}
	s.note("all sidecars were restarted; no count was lost, and no hit admitted twice")
	return nil
}

// hot sends far more requests for one key, and notes how the cluster relieves its owner.
func (s *stage) hot(ctx context.Context) error {
	s.note("%d additional requests per second for %s, which %s counts", hotExtra, s.viral.name, s.owner(s.at(ctx), s.viral))
	s.viral.extra.Store(hotExtra)
	defer s.viral.extra.Store(0)
	said := false
	for end := time.Now().Add(hotFor); time.Now().Before(end); {
		if text := s.heat(ctx); text != "" && !said {
			said = true
			s.note("%s", text)
		}
		if !pause(ctx, 200*time.Millisecond) {
			return nil
		}
	}
	s.note("the additional traffic for %s has ended", s.viral.name)
	return nil
}

// heat describes the route of the hot key, or returns "" without one.
func (s *stage) heat(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, page := range s.pages {
		var h api.HotKeys
		body, err := lab.Get(ctx, "http://"+page+"/v1/hotkeys")
		if err != nil || json.Unmarshal(body, &h) != nil {
			continue
		}
		for _, r := range h.Routes {
			if r.OwnerString != s.viral.name {
				continue
			}
			var by []string
			for _, sub := range r.SubKeys {
				by = append(by, sub.Member)
			}
			return fmt.Sprintf("%s is hot: Envoy spreads it over %s, which share the limit through leases", s.viral.name, strings.Join(by, ", "))
		}
	}
	return ""
}

// pause waits for d. It reports false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
