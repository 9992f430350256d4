package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/rulecheck"
	"github.com/keyward/keyward/internal/policy"
)

// dataWindow is the default --data-window of the sidecars.
const dataWindow = time.Hour

// demoData returns the directory of the sidecars' journals.
func demoData(dir string) string { return filepath.Join(dir, "data") }

// all kills all sidecars at once and restarts them: the quota of the month continues from their journals.
func (s *stage) all(ctx context.Context) error {
	before, err := s.used(ctx)
	if err != nil {
		return err
	}
	for _, k := range s.keys {
		s.set(func() { s.bound += totalBound(k, len(s.names)) })
	}
	s.down.Store(true)
	defer s.down.Store(false)
	for _, c := range s.lab.Sidecars {
		c.Kill()
		s.mark(c.Name, "killed")
	}
	s.note("killed all sidecars at once; %s had used %s of the month, which is in their journals", s.month.name, before)
	if !pause(ctx, deadFor) {
		return nil
	}
	if err := s.restartAll(ctx); err != nil {
		return err
	}
	after, err := s.used(ctx)
	if err != nil {
		return err
	}
	s.note("all sidecars are back: %s continues at %s of the month", s.month.name, after)
	return nil
}

// restartAll restarts all sidecars and waits until they use one ring and Envoy calls them.
func (s *stage) restartAll(ctx context.Context) error {
	for _, c := range s.lab.Sidecars {
		s.mark(c.Name, "starting")
		if err := s.lab.Restart(c); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.lab.AwaitRing(ctx, s.names...); err != nil {
		return err
	}
	for _, name := range s.names {
		s.mark(name, "")
	}
	return s.envoy.Await(ctx, "keyward", len(s.names))
}

// used returns what its owner has counted of the month's quota, as in "12 / 200".
func (s *stage) used(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := lab.CounterOf(ctx, s.pages[0], "demo", "api_key", s.month.name)
	if err != nil {
		return "", fmt.Errorf("count of %s: %w", s.month.name, err)
	}
	return fmt.Sprintf("%d / %d", min(c.Count, c.Limit), c.Limit), nil
}

// totalBound returns how many hits a crash of all members can add to the windows of k, as `keyward bounds --data` prints
// it for one window: those of a quota that is in the journal, or a new limit and local shares until the members have
// found each other.
func totalBound(k *demoKey, members int) int64 {
	r := config.RuleSpec{}
	r.Limit.Limit, r.Limit.Window = uint32(k.limit), k.window()
	c := rulecheck.Conditions{Members: members, Partition: policy.PartShare, Rate: float64(k.rate), DataWindow: dataWindow}
	b := rulecheck.BoundsOf(&r, c)
	if b.NotInJournal != "" {
		return int64(b.Limit) + crashWindows*int64(b.Phi)
	}
	for _, x := range b.Bounds {
		if x.Event == rulecheck.AllKilled {
			return int64(x.Over)
		}
	}
	return 0
}
