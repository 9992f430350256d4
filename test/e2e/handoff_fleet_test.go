package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// drainTime is how long a member may take to handoff and to end.
const drainTime = 40 * time.Second

// fleet is a cluster whose members come and go as a rolling update lets them: a member is asked from the moment it says
// that it is ready until it reports that it no longer is. Its methods are for one goroutine, pick for all.
type fleet struct {
	t    testing.TB
	l    *lab.Lab
	live []*lab.Sidecar // running, in the order of their start

	doors atomic.Pointer[[]*door] // the members that are asked; replaced whole
}

// door is one boot of a member, as its clients know it.
type door struct {
	name, page string // page is the metrics address
	client     rlsv3.RateLimitServiceClient
	shaky      atomic.Bool // a fault is being done to it: an error of its own is no fault of the cluster's
}

func newFleet(t testing.TB, l *lab.Lab, members ...string) *fleet {
	t.Helper()
	return newFleetOf(t, l, nil, members...)
}

// newFleetOf starts members with flags of their own, by name.
func newFleetOf(t testing.TB, l *lab.Lab, flags map[string][]string, members ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, l: l}
	f.doors.Store(&[]*door{})
	for _, n := range members {
		f.launch(n, flags[n]...)
	}
	awaitRing(t, l, members...)
	for _, s := range f.live {
		f.admit(s)
	}
	return f
}

// pick is a random member that is asked now; nil when there is none.
func (f *fleet) pick() *door {
	doors := *f.doors.Load()
	if len(doors) == 0 {
		return nil
	}
	return doors[rand.IntN(len(doors))]
}

func (f *fleet) names() []string {
	var all []string
	for _, s := range f.live {
		all = append(all, s.Name)
	}
	slices.Sort(all)
	return all
}

// agree waits until all members and xDS servers hold the ring of those that run.
func (f *fleet) agree() {
	f.t.Helper()
	awaitRing(f.t, f.l, f.names()...)
}

func (f *fleet) launch(name string, flags ...string) *lab.Sidecar {
	f.t.Helper()
	s, err := f.l.AddSidecar(name, flags...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.live = append(f.live, s)
	return s
}

// add starts a new member and waits until it is ready.
func (f *fleet) add(name string) *lab.Sidecar {
	f.t.Helper()
	s := f.launch(name)
	f.admit(s)
	return s
}

// admit sends a member requests once it reports that it is ready.
func (f *fleet) admit(s *lab.Sidecar) *door {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 60*time.Second)
	defer cancel()
	if err := lab.Await(ctx, s.Name+" to be ready", func(ctx context.Context) error {
		if !s.Running() {
			return fmt.Errorf("it has ended: %s", s.Tail(2000))
		}
		_, err := lab.Get(ctx, "http://"+s.Metrics+"/readyz")
		return err
	}); err != nil {
		f.t.Fatal(err)
	}
	f.settled(ctx, s)
	d := &door{name: s.Name, page: s.Metrics, client: dial(f.t, s.RLS, nil)}
	doors := append(slices.Clone(*f.doors.Load()), d)
	f.doors.Store(&doors)
	return d
}

// settled requires that a member that reports to be ready has its keys, so that requests do not wait for them.
func (f *fleet) settled(ctx context.Context, s *lab.Sidecar) {
	f.t.Helper()
	body, err := lab.Get(ctx, "http://"+s.Metrics+"/cluster")
	if err != nil {
		f.t.Fatal(err)
	}
	var page struct{ Ring struct{ Members []string } }
	if err := json.Unmarshal(body, &page); err != nil {
		f.t.Fatal(err)
	}
	if !slices.Contains(page.Ring.Members, s.Name) {
		f.t.Errorf("%s is ready without a place: %v", s.Name, page.Ring.Members)
	}
	log := s.Tail(1 << 20) // the page's figures come from gossip and may be a moment old
	if now := log[max(strings.LastIndex(log, "msg=\"member started\" member="), 0):]; !strings.Contains(now, `msg="ring complete"`) {
		f.t.Errorf("%s is ready without its keys:\n%s", s.Name, now)
	}
}

// withdraw has a member asked no more.
func (f *fleet) withdraw(name string) {
	doors := slices.DeleteFunc(slices.Clone(*f.doors.Load()), func(d *door) bool { return d.name == name })
	f.doors.Store(&doors)
}

func (f *fleet) door(name string) *door {
	for _, d := range *f.doors.Load() {
		if d.name == name {
			return d
		}
	}
	f.t.Fatalf("%s is not asked", name)
	return nil
}

// retire ends a member as a rolling update does: SIGTERM, and no new requests once it reports that it is not ready.
func (f *fleet) retire(s *lab.Sidecar) {
	f.t.Helper()
	if err := s.Signal(syscall.SIGTERM); err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), 5*time.Second)
	defer cancel()
	if err := lab.Await(ctx, s.Name+" to say that it is not ready", func(ctx context.Context) error {
		if !s.Running() {
			return nil
		}
		if _, err := lab.Get(ctx, "http://"+s.Metrics+"/readyz"); err == nil {
			return errors.New("it is ready")
		}
		return nil
	}); err != nil {
		f.t.Error(err)
	}
	f.withdraw(s.Name)
	select {
	case <-s.Exited():
		if c := s.ExitCode(); c != 0 {
			f.t.Errorf("%s ended with exit code %d: %s", s.Name, c, s.Tail(2000))
		}
	case <-time.After(drainTime):
		f.t.Errorf("%s did not end within %s of SIGTERM", s.Name, drainTime)
		s.Kill()
	}
	f.forget(s)
}

func (f *fleet) forget(s *lab.Sidecar) {
	f.live = slices.DeleteFunc(f.live, func(x *lab.Sidecar) bool { return x == s })
}

// restart ends a member gracefully and starts it again under its name and addresses, as a StatefulSet does.
func (f *fleet) restart(s *lab.Sidecar) {
	f.t.Helper()
	f.retire(s)
	f.revive(s)
	f.admit(s)
}

// revive starts a member again that has ended. It gets no requests yet.
func (f *fleet) revive(s *lab.Sidecar) {
	f.t.Helper()
	if err := f.l.Restart(s); err != nil {
		f.t.Fatal(err)
	}
	f.live = append(f.live, s)
}

// replace starts a member under a new name, then ends an old one, as a Deployment does.
func (f *fleet) replace(old *lab.Sidecar, name string) {
	f.t.Helper()
	f.add(name)
	f.retire(old)
}

// kill ends a member as a crash does.
func (f *fleet) kill(s *lab.Sidecar) {
	f.t.Helper()
	f.door(s.Name).shaky.Store(true)
	s.Kill()
	f.withdraw(s.Name)
	f.forget(s)
}

// sum adds up a metric over the running members.
func (f *fleet) sum(name string, labels ...string) float64 { return sum(f.t, f.l, name, labels...) }
