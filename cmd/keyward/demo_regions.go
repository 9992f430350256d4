package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/lab"
)

// Parameters of the demo of regions.
const (
	regionLimit  = 300              // of a window, for all regions together
	regionWindow = 10 * time.Second // of the demo's rule
	regionOneWay = 40 * time.Millisecond
	quietRate    = 6  // requests per second of a region
	busyRate     = 60 // of the one with most of the demand
	cutFor       = 12 * time.Second
)

// regionNames are the regions, in the order in which they are added.
var regionNames = []string{"eu", "us", "ap", "sa", "af"}

func regionRules() string {
	return fmt.Sprintf(`domain: demo
descriptors:
  - key: plan                    # all regions together admit %d requests in %v
    rate_limit: {unit: minute, requests_per_unit: %d}
    metadata: {keyward: {window: %s, federation: {}}}
`, regionLimit, regionWindow, regionLimit, regionWindow)
}

const regionsIntroduction = `Keyward: one limit for several regions.

   %s: a cluster each, %v away from the coordinator
   one limit of %d requests in %v for all of them; 5 %% of it are floors, the rest is lent to where the demand is

`

// runRegions shows one limit that several regions share.
func runRegions(ctx context.Context, out io.Writer, o demoOptions, e *ending) (err error) {
	if o.regions < 2 || o.regions > len(regionNames) {
		return fmt.Errorf("--regions %d: want 2 to %d", o.regions, len(regionNames))
	}
	dir, removeDir, err := o.folder()
	if err != nil {
		return err
	}
	defer removeDir()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	names := regionNames[:o.regions]
	l, err := lab.New(lab.Options{
		Dir: dir, Bin: filepath.Dir(self), Expect: 1, Regions: names, Rules: map[string]string{"demo.yaml": regionRules()},
	})
	if err != nil {
		return err
	}
	defer func() {
		fmt.Fprintln(out, "\r\nstopping the regions and the coordinator ...")
		err = errors.Join(err, l.Stop())
	}()
	fmt.Fprintf(out, regionsIntroduction, strings.Join(names, ", "), regionOneWay, regionLimit, regionWindow)
	s := &regionStage{until: o.length, ending: e, queue: make(chan regionAct, 1)}
	defer s.close()
	if err := s.start(ctx, out, l); err != nil {
		return err
	}
	return s.show(ctx, out)
}

// regionStage is running regions and their traffic.
type regionStage struct {
	regions []*demoRegion
	until   time.Duration // 0: until the demo is stopped
	ending  *ending
	queue   chan regionAct
	began   time.Time

	mu    sync.Mutex
	notes []string // oldest first
}

// regionAct is an action on the regions.
type regionAct struct {
	key  byte
	what string
	do   func(*regionStage, context.Context)
}

func regionActs() []regionAct {
	return []regionAct{
		{'c', "cut the busiest region off the coordinator, or heal it", (*regionStage).cut},
		{'m', "move the demand to the next region", (*regionStage).move},
	}
}

// start starts the coordinator and the regions.
func (s *regionStage) start(ctx context.Context, out io.Writer, l *lab.Lab) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := l.AddCoordinator()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "  started the coordinator")
	weights := make([]uint32, len(l.Regions))
	for i := range weights {
		weights[i] = 1
	}
	for i, name := range l.Regions {
		r := &demoRegion{name: name, budget: federation.Divide(regionLimit, weights, federation.DefaultFloor, i)}
		r.rate.Store(quietRate)
		s.regions = append(s.regions, r)
		if r.wan, err = lab.StartWAN(c.Addr, regionOneWay); err != nil {
			return err
		}
		if r.sidecar, err = l.AddRegion(c, name, r.wan.Addr); err != nil {
			return err
		}
		if err := r.dial(); err != nil {
			return err
		}
	}
	s.regions[0].rate.Store(busyRate)
	for _, r := range s.regions {
		if err := lab.Await(ctx, "the region "+r.name, r.ready); err != nil {
			return err
		}
		fmt.Fprintf(out, "  started the region %s; its admin page: http://%s/\n", r.name, r.sidecar.Metrics)
	}
	return nil
}

func (s *regionStage) close() {
	for _, r := range s.regions {
		r.close()
	}
}

// show sends traffic and draws it until the demo ends.
func (s *regionStage) show(ctx context.Context, out io.Writer) error {
	if !pause(ctx, time.Until(time.Now().Truncate(regionWindow).Add(regionWindow))) { // the first window is complete
		return ctx.Err()
	}
	s.began = time.Now()
	sending, cancel := context.WithCancel(ctx)
	var acting sync.WaitGroup
	defer acting.Wait()
	defer cancel()
	if s.until > 0 {
		defer time.AfterFunc(s.until, cancel).Stop()
	}
	every, newline := 5*time.Second, "\n"
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) && term.IsTerminal(int(os.Stdin.Fd())) {
		restore, err := keyboard(s.ending, s.press)
		if err != nil {
			return err
		}
		defer restore()
		every, newline = 500*time.Millisecond, "\r\n"
	} else {
		acting.Go(func() { s.script(sending) })
	}
	acting.Go(func() { s.act(sending) })
	for _, r := range s.regions {
		acting.Go(func() { r.send(sending) })
	}
	draw := redrawn(out, s.draw, newline)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			draw()
		case <-sending.Done():
			acting.Wait()
			draw()
			return s.verdict(out)
		}
	}
}

// redrawn returns a function that writes what draw draws, on a terminal in place of the last drawing.
func redrawn(out io.Writer, draw func(io.Writer), newline string) func() {
	lines := 0
	return func() {
		var b strings.Builder
		draw(&b)
		if newline != "\n" && lines > 0 {
			fmt.Fprintf(out, "\x1b[%dA\x1b[J", lines)
		}
		lines = strings.Count(b.String(), "\n")
		_, _ = io.WriteString(out, strings.ReplaceAll(b.String(), "\n", newline))
	}
}

func (s *regionStage) press(key byte) {
	switch key {
	case 'q', 'Q', 3, 4, 27: // Ctrl-C, Ctrl-D, Escape
		s.ending.ask()
	}
	for _, a := range regionActs() {
		if a.key == key {
			select {
			case s.queue <- a:
			default: // one is queued
			}
		}
	}
}

// act executes queued acts until ctx ends.
func (s *regionStage) act(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-s.queue:
			a.do(s, ctx)
		}
	}
}

// script executes the acts by themselves, for a demo without a terminal: a cut, its end, and a move of the demand.
func (s *regionStage) script(ctx context.Context) {
	acts := regionActs()
	for _, a := range []regionAct{acts[0], acts[0], acts[1]} {
		if !pause(ctx, cutFor) {
			return
		}
		s.queue <- a
	}
}

func (s *regionStage) note(format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, fmt.Sprintf("%4.0f s  ", time.Since(s.began).Seconds())+fmt.Sprintf(format, a...))
}

// busiest returns the region with most of the demand.
func (s *regionStage) busiest() int {
	best := 0
	for i, r := range s.regions {
		if r.rate.Load() > s.regions[best].rate.Load() {
			best = i
		}
	}
	return best
}

// cut cuts the busiest region off the coordinator, or heals all regions if one is cut off.
func (s *regionStage) cut(context.Context) {
	for _, r := range s.regions {
		if r.cut.Swap(false) {
			r.wan.Cut(false)
			s.note("%s reaches the coordinator again, after its next try: at most 10 s", r.name)
			return
		}
	}
	r := s.regions[s.busiest()]
	r.cut.Store(true)
	r.wan.Cut(true)
	s.note("%s is cut off: it has its floor of %d and what it was lent; the others share the rest", r.name, r.budget.Floor)
}

// move gives the next region the largest demand.
func (s *regionStage) move(context.Context) {
	i := s.busiest()
	next := (i + 1) % len(s.regions)
	s.regions[i].rate.Store(quietRate)
	s.regions[next].rate.Store(busyRate)
	s.note("the demand moves from %s to %s", s.regions[i].name, s.regions[next].name)
}
