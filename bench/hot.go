package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
	"github.com/keyward/keyward/ring"
)

// hotRules add a limit that a hot key reaches to the usual one.
var hotRules = rules + "  - {key: hot, rate_limit: {unit: second, requests_per_unit: 5000}}\n"

// hotHits are the hits a second of the hot key, however few requests carry them: on a machine that is full, other keys
// wait for a processor, whatever it is busy with.
const hotHits = 8000

// aimNeighbours is how many times their p99 other keys of a hot key's owner may take.
const aimNeighbours = 1.2

// site is a cluster of three in which one key of the first member is hot. The other members and the requests for the key
// have the machine's idle time, as if on machines of their own.
type site struct {
	title  string
	args   []string
	aim    bool // its other keys have one
	direct bool // the hot key, too, is asked of its owner alone
	lab    *lab.Lab
	others *loadtest.Load // keys of the first member, asked there
	key    floodLoad      // the hot key, with calls to any member
	apart  floodLoad      // the control: a key of the second member, with calls to the others
	self   string         // path of this program
	rounds []hotRound
}

// hotRound is one round: without a hot key, with one that does not concern the first member, with its own.
type hotRound struct {
	Idle, Control, During float64       // p99 of the other keys, microseconds
	Hot                   float64       // p99 of the hot one
	CPU                   time.Duration // of the owner in a second, above what it spends without the hot key
	Reached               float64       // the owner, of the requests about the hot key, a second
	Asked                 float64       // about it, a second
	Failed                int           // calls without an answer
}

// hot has one key asked for far more often than all others, of all members, and reports what its owner spends on it and
// how its neighbors fare there: when hot keys are leased, when none is found hot, and when Envoys that know no routes of
// ours ask the owner directly. In the latter two the owner carries it.
func hot(ctx context.Context, out io.Writer, o options) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	a, done, err := newArena(o)
	defer done()
	if err != nil {
		return err
	}
	sites := []*site{
		{title: "hot keys are leased", args: []string{"--hot-rate", fmt.Sprint(o.hot / 4)}, aim: true},
		{title: "no key is found hot", args: []string{"--no-hot"}},
		{title: "only the owner is asked", direct: true},
	}
	defer func() {
		for _, s := range sites {
			err = errors.Join(err, s.close())
		}
	}()
	for i, s := range sites {
		if err := s.start(ctx, a, fmt.Sprint("site", i)); err != nil {
			return err
		}
	}
	for round := range o.rounds {
		for i := range sites {
			s := sites[(round+i)%len(sites)]
			r, err := s.round(ctx, o)
			if err != nil {
				return err
			}
			s.rounds = append(s.rounds, r)
			fmt.Fprintf(out, "round %d/%d  %-23s %v\n", round+1, o.rounds, s.title, r)
		}
	}
	for _, s := range sites {
		s.print(out)
	}
	return nil
}

func (r hotRound) String() string {
	return fmt.Sprintf("%.0f asked a second, %.0f reached the owner, %.0f ms CPU a second; p99 of it %.2f ms, of the others %.2f idle, %.2f control, %.2f ms; %d calls failed",
		r.Asked, r.Reached, r.CPU.Seconds()*1000, r.Hot/1000, r.Idle/1000, r.Control/1000, r.During/1000, r.Failed)
}

func (s *site) start(ctx context.Context, a *arena, name string) (err error) {
	members := []string{"a", "b", "c"}
	if s.lab, err = lab.New(lab.Options{
		Dir: filepath.Join(a.dir, name), Bin: a.bin, Expect: len(members), Rules: map[string]string{"bench.yaml": hotRules}, Args: s.args,
	}); err != nil {
		return err
	}
	var all []ring.Member
	var targets []target
	for _, m := range members {
		c, err := s.lab.AddSidecar(m)
		if err != nil {
			return err
		}
		targets = append(targets, target{addr: c.RLS})
		all = append(all, ring.Member{ID: ring.ID(m), Weight: 1})
	}
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.lab.AwaitRing(ready, members...); err != nil {
		return err
	}
	r := ring.New(all)
	if s.others, err = loadOf(ctx, targets[:1], a.conns, r, a.keys, request); err != nil {
		return err
	}
	s.self = a.self
	for _, c := range s.lab.Sidecars[1:] {
		if err := runIdle(c.PID()); err != nil {
			return err
		}
	}
	own, other := floodTargets(targets), floodTargets(targets[1:])
	if s.direct {
		own, other = own[:1], other[:1]
	}
	var err1, err2 error
	s.key, err1 = hotLoad(a, r, "a", own)
	s.apart, err2 = hotLoad(a, r, "b", other)
	return errors.Join(err1, err2)
}

func floodTargets(all []target) (targets []loadtest.Target) {
	for _, t := range all {
		targets = append(targets, loadtest.Target{Addr: t.addr})
	}
	return targets
}

// hotLoad returns the requests for one key of a member.
func hotLoad(a *arena, r *ring.Ring, owner ring.ID, targets []loadtest.Target) (floodLoad, error) {
	i := 0
	for r.At(r.Owner(ring.Hash(keyName(i)))).ID != owner {
		i++
	}
	m, err := proto.Marshal(&pb.RateLimitRequest{
		Domain: "bench", HitsAddend: uint32(max(1, hotHits/a.hot)), Descriptors: []*ratelimitv3.RateLimitDescriptor{{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "hot", Value: keyName(i)}},
		}},
	})
	return floodLoad{Message: m, Targets: targets, Conns: a.conns, Rate: a.hot, Seconds: a.seconds}, err
}

func (s *site) close() error {
	if s.others != nil {
		s.others.Close()
	}
	if s.lab == nil {
		return nil
	}
	return s.lab.Stop()
}

// round measures once.
func (s *site) round(ctx context.Context, o options) (r hotRound, err error) {
	if _, err := runOnly(ctx, s.others, o.rate, time.Second); err != nil { // warm up
		return r, err
	}
	idle, err1 := s.watch(ctx, time.Duration(o.seconds*float64(time.Second)), o.rate)
	control, _, err2 := s.under(ctx, o, s.apart)
	during, hot, err3 := s.under(ctx, o, s.key)
	return hotRound{
		Idle: idle.p99, Control: control.p99, During: during.p99, Hot: hot.P99,
		Failed: idle.failed + control.failed + during.failed + hot.Failed,
		CPU:    during.cpu - control.cpu, Reached: during.reached, Asked: hot.Sent,
	}, errors.Join(err1, err2, err3)
}

// under measures the other keys while members get the requests of l.
func (s *site) under(ctx context.Context, o options, l floodLoad) (g glance, r floodResult, err error) {
	r, err = l.during(ctx, s.self, s.others, o.rate, func(length time.Duration) (err error) {
		g, err = s.watch(ctx, length, o.rate)
		return err
	})
	return g, r, err
}

// glance is the owner and its other keys over a time.
type glance struct {
	p99     float64       // of the other keys, microseconds
	cpu     time.Duration // in a second
	reached float64       // requests of members, a second
	failed  int           // calls
}

func (s *site) watch(ctx context.Context, length time.Duration, rate float64) (glance, error) {
	owner := s.lab.Sidecars[0]
	cpu1, err1 := owner.CPU()
	reached1, err2 := reached(ctx, owner)
	m, err5 := runOnly(ctx, s.others, rate, length)
	cpu2, err3 := owner.CPU()
	reached2, err4 := reached(ctx, owner)
	err := errors.Join(err1, err2, err3, err4, err5)
	took := m.Elapsed.Seconds()
	return glance{microseconds(m.Latency.Quantile(0.99)), time.Duration(float64(cpu2-cpu1) / took), (reached2 - reached1) / took, m.Errors}, err
}

// reached is how many requests members have asked a member.
func reached(ctx context.Context, s *lab.Sidecar) (float64, error) {
	body, err := lab.Get(ctx, "http://"+s.Metrics+"/metrics")
	return series(body, "keyward_owner_requests_total "), err
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// print reports the medians of the rounds.
func (s *site) print(out io.Writer) {
	of := func(what func(r hotRound) float64) float64 { return medianOf(s.rounds, what) }
	ratio := of(func(r hotRound) float64 { return r.During / r.Control })
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s, medians: %.0f requests a second about the hot key, %.0f of them reach the owner, which spends %.0f ms CPU a second on it; its p99 %.2f ms\n", s.title,
		of(func(r hotRound) float64 { return r.Asked }), of(func(r hotRound) float64 { return r.Reached }),
		of(func(r hotRound) float64 { return r.CPU.Seconds() * 1000 }), of(func(r hotRound) float64 { return r.Hot / 1000 }))
	fmt.Fprintf(&b, "p99 of the owner's other keys: %.2f ms on the idle machine, %.2f ms while another member's key is hot, %.2f ms with its own: %.2f x",
		of(func(r hotRound) float64 { return r.Idle / 1000 }), of(func(r hotRound) float64 { return r.Control / 1000 }),
		of(func(r hotRound) float64 { return r.During / 1000 }), ratio)
	if s.aim {
		fmt.Fprintf(&b, " (aim: at most %.1f x), %s", aimNeighbours, met(ratio, aimNeighbours))
	}
	fmt.Fprintln(out, b.String())
}
