// Package cluster discovers the other members by gossip and maintains a membership.View of them.
//
// Memberlist's callbacks store what they observe in a table. One goroutine reads it, passes it to the machine, which is
// passive, announces the new state of this member, and publishes the View. A second goroutine joins addresses forever.
package cluster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// Cluster is the membership of one member in its cluster. It is safe for concurrent use.
type Cluster struct {
	o       Options
	log     *slog.Logger
	metrics *metrics
	table   *table
	machine *machine
	gossip  *gossip // nil when standalone
	joiner  *joiner // nil when standalone
	view    atomic.Pointer[membership.View]

	searched atomic.Bool // see Searched

	fatal   chan error
	drained chan struct{} // see Drained
	cancel  context.CancelFunc
	done    sync.WaitGroup
	stop    sync.Once

	// Used by the run goroutine only.
	announced   string // last announcement
	announcedAt time.Time
	state       membership.MemberState // as last logged
	problem     string
	journals    journalStage // as last logged
	calm        bool         // nothing is in progress or remembered that ends by the passing of time alone

	probing   atomic.Bool // another boot of this member's name is being probed
	repairing atomic.Bool // see repair
}

// Start starts gossip, unless Options.Join is empty. It returns before this member has joined; View.Joined reports
// when it has.
func Start(o Options) (*Cluster, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	now := time.Now()
	if o.BootID == 0 {
		o.BootID = newBootID()
	}
	self := o.member(o.BootID, now)
	c := &Cluster{
		o: o, log: o.Logger, metrics: newMetrics(o.Registerer), table: newTable(self),
		fatal: make(chan error, 1), drained: make(chan struct{}),
	}
	c.machine = &machine{
		capacity: o.Capacity, expect: o.Expect, expectTimeout: o.ExpectTimeout, standalone: len(o.Join) == 0,
		handoff: o.Handoff, streams: o.Streams, data: o.Data, timing: o.Timing, start: now,
		newRing: o.NewRing, nref: nRefMemory{decay: o.NRefDecay}, left: make(map[ring.ID]time.Time),
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	if err := c.open(ctx); err != nil {
		cancel()
		return nil, err
	}
	wake := c.step(ctx, now)
	c.done.Go(func() { c.run(ctx, wake) })
	if c.joiner != nil {
		c.done.Go(func() { c.joiner.run(ctx) })
		c.done.Go(func() { c.watchKeys(ctx) })
	}
	return c, nil
}

// open starts gossip unless this member is standalone.
func (c *Cluster) open(ctx context.Context) (err error) {
	if len(c.o.Join) == 0 {
		c.log.Warn("standalone: no --join, so this member counts alone; do not run a second one")
		return nil
	}
	if c.o.KeyFile == "" {
		c.log.Warn("insecure: gossip is not encrypted; any host that reaches the gossip port can add and remove members")
	}
	if c.joiner, err = newJoiner(c, c.o.Join); err != nil {
		return err
	}
	c.gossip, err = listen(ctx, &c.o, c.table, c.log)
	return err
}

func newBootID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:]) | 1
}

// View returns the current view of the cluster. It is never nil.
func (c *Cluster) View() *membership.View { return c.view.Load() }

// Fatal returns a channel that receives an error when another live member has this member's name. The process should
// stop then. Before that, this member has announced that it withdraws, and the View has the Problem, unless the
// member was already leaving.
func (c *Cluster) Fatal() <-chan error { return c.fatal }

// Gossip returns the advertised gossip address. It is empty in standalone mode.
func (c *Cluster) Gossip() string {
	if c.gossip == nil {
		return ""
	}
	return c.gossip.addr.String()
}

// SetRules announces the version of the rules that this member uses, and the version that it is ready to switch to.
func (c *Cluster) SetRules(inForce, prepared uint64) {
	c.table.update(func(self *membership.Member) { self.InForce, self.Prepared = inForce, prepared })
}

// SetProgress announces how far this member is with the last change of the ring; see Options.Handoff.
func (c *Cluster) SetProgress(p membership.Progress) {
	c.table.updateStatus(func(t *handoffStatus) { t.progress = p })
}

// SetStreams records with which members this one has streams; see Options.Streams.
func (c *Cluster) SetStreams(s Streams) {
	c.table.updateStatus(func(t *handoffStatus) { t.streams = s })
}

// Drain makes this member leave the ring as soon as the ring's last change is complete. It announces that it is
// leaving, the others remove it from their rings, and it forwards the requests that it still receives. A standalone
// member keeps its place.
func (c *Cluster) Drain() {
	now := time.Now()
	c.table.updateStatus(func(t *handoffStatus) {
		if !t.draining {
			t.draining, t.drainingSince = true, now
		}
	})
}

// Drained returns a channel that is closed when all others have removed this member from their rings and the handoff
// is complete.
func (c *Cluster) Drained() <-chan struct{} { return c.drained }

// leaveTimeout limits the time of memberlist's leave message.
const leaveTimeout = 500 * time.Millisecond

// Leave drains, sends memberlist's leave message, and closes. Each part has a time limit, and ctx limits them
// together.
func (c *Cluster) Leave(ctx context.Context) {
	c.Drain()
	rest := leaveTimeout
	if c.gossip != nil {
		bound := c.o.Timing.DrainTimeout - time.Since(c.table.drainingSince())
		if end, ok := ctx.Deadline(); ok {
			bound = min(bound, time.Until(end)-leaveTimeout)
		}
		wait := time.NewTimer(max(0, bound))
		select {
		case <-c.drained:
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
		if end, ok := ctx.Deadline(); ok {
			rest = min(rest, time.Until(end))
		}
		if rest > 0 {
			// Memberlist's leave message does not report a handoff, and may overtake the announcement that does.
			c.gossip.announce(rest / 2)
		}
	}
	c.shutdown(rest)
}

// Close stops at once without a message. To the other members, this one has crashed.
func (c *Cluster) Close() { c.shutdown(0) }

func (c *Cluster) shutdown(bound time.Duration) {
	c.stop.Do(func() {
		if c.gossip != nil && bound > 0 {
			if err := c.gossip.leave(bound); err != nil {
				c.log.Debug("leave message not confirmed", "error", err)
			}
		}
		c.cancel()
		if c.gossip != nil {
			if err := c.gossip.list.Shutdown(); err != nil {
				c.log.Warn("cannot close gossip", "error", err)
			}
		}
	})
	c.done.Wait()
}

// calmTicks is the number of ticks between two steps, 5 s, while nothing changes and nothing waits for a point in
// time. A step copies the state of all members, which would be most of the cost of gossip in a large idle cluster.
const calmTicks = 25

// run steps whenever something has changed, and periodically.
func (c *Cluster) run(ctx context.Context, wake time.Duration) {
	again := time.NewTimer(c.nextWake(wake))
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.table.changed:
		case <-again.C:
		}
		again.Reset(c.nextWake(c.step(ctx, time.Now())))
		if c.o.Timing.MinInterval > 0 {
			sleep(ctx, c.o.Timing.MinInterval)
		}
	}
}

// nextWake returns the time until the next step, which is due after wake unless that is 0.
func (c *Cluster) nextWake(wake time.Duration) time.Duration {
	d := c.o.Timing.Tick
	if c.calm {
		d *= calmTicks
	}
	if wake > 0 {
		d = min(d, wake)
	}
	return d
}

// step processes what was observed, and performs what follows.
func (c *Cluster) step(ctx context.Context, now time.Time) (wake time.Duration) {
	s := c.table.snapshot()
	o := c.machine.step(now, s)
	for _, d := range s.departed {
		c.log.Info("member gone", "member", string(d.id), "address", d.gossip,
			"graceful", d.graceful, "handed_off", d.handedOff)
		if !d.graceful && c.joiner != nil {
			c.joiner.addLost(d.gossip, now)
		}
	}
	c.announce(now, &o)
	c.logChanges(&o)
	c.logJournals(&c.machine.journals)
	if c.gossip != nil {
		c.metrics.health.Set(float64(c.gossip.list.GetHealthScore()))
		c.metrics.refused.Set(float64(c.table.refusedCount()))
	}
	if o.viewChanged {
		c.metrics.update(o.view)
		c.view.Store(o.view)
	}
	c.searched.Store(o.view.Standalone || s.join.rounds > 0)
	if o.viewChanged {
		c.o.OnView(o.view)
	}
	c.checkNameConflict(ctx, o.nameConflict, &s.self) // after the view, which has the problem when Fatal reports it
	if rs, changed := c.table.records.Step(now, s.others); changed {
		c.metrics.routes.Set(float64(len(rs)))
		c.o.OnRoutes(rs)
	}
	c.checkDrained(&o, &s.status)
	c.repair(ctx, now)
	v := o.view
	settled := v.DifferingRings()+v.IncompleteMembers() == 0 && v.NRef == v.Ring.Len() && len(v.Left) == 0
	c.calm = settled && v.Joined && v.Problem == "" && o.self.State == membership.Active && !s.status.draining &&
		c.table.records.Idle()
	return o.wake
}

// announce stores the new state of this member and makes memberlist spread it. It repeats an announcement that
// memberlist has dropped, which happens while memberlist refutes a suspicion with the previous one.
func (c *Cluster) announce(now time.Time, o *outcome) {
	c.table.mu.Lock()
	self, x := &c.table.self, &o.self
	self.State, self.Ring, self.NRef, self.CompleteRing = x.State, x.Ring, x.NRef, x.CompleteRing
	self.Established, self.AwaitsTurn, self.HandedOff = x.Established, x.AwaitsTurn, x.HandedOff
	self.MetExpected, self.Isolated = x.MetExpected, x.Isolated
	b, announced := string(encode(self)), c.table.announced
	c.table.mu.Unlock()
	if c.gossip == nil || b == announced || b == c.announced && now.Sub(c.announcedAt) < time.Second {
		return
	}
	c.announced, c.announcedAt = b, now
	// It spreads in the background. Waiting for it would delay the processing of other members' announcements.
	c.gossip.announce(time.Nanosecond)
}

// checkDrained closes drained when every other member uses a ring without this one and has all of its counters. If no
// member is on the ring, one that is joining will be, and takes them over.
func (c *Cluster) checkDrained(o *outcome, t *handoffStatus) {
	select {
	case <-c.drained:
		return
	default:
	}
	v := o.view
	dropped := o.self.State == membership.Leaving && v.Ring.Index(v.Self) < 0 && v.DifferingRings() == 0
	// There is nothing to hand off, or no member to wait for.
	nothing := v.Standalone || o.self.Role == membership.RoleObserver || o.nameConflict != nil
	if t.draining && nothing || dropped && (o.self.HandedOff || v.Ring.Len() == 0 && !nextJoins(v)) {
		close(c.drained)
	}
}

// nextJoins reports whether a live member is joining that can take over counters.
func nextJoins(v *membership.View) bool {
	for m := range v.Peers() {
		if m.State == membership.Joining && m.SupportsHandoff() {
			return true
		}
	}
	return false
}

// checkNameConflict probes another boot of this member's name. It may be a boot whose death has not been detected
// yet; then it does not answer and disappears. If it answers, this member is the newcomer and must stop.
func (c *Cluster) checkNameConflict(ctx context.Context, rival, self *membership.Member) {
	if rival == nil || c.gossip == nil || !c.probing.CompareAndSwap(false, true) {
		return
	}
	c.metrics.nameConflicts.Inc()
	c.log.Warn("another live member has this member's name",
		"member", string(self.ID), "address", self.Gossip, "other_address", rival.Gossip)
	who, me := *rival, *self
	c.done.Go(func() {
		if c.probeConflict(ctx, &who) {
			c.fail(conflictError(&who, &me))
			return // the conflict is permanent, so probing remains set
		}
		c.probing.Store(false)
		c.table.signal()
	})
}

// probeConflict probes the other boot until it answers, is gone, or has been silent for too long. It reports whether
// this member must stop, which is so unless the other boot is gone.
func (c *Cluster) probeConflict(ctx context.Context, rival *membership.Member) (mustStop bool) {
	end := time.NewTimer(c.o.Timing.NameConflict)
	defer end.Stop()
	again := time.NewTicker(c.o.Timing.Probe)
	defer again.Stop()
	for !c.gossip.ping(rival) {
		select {
		case <-ctx.Done():
			return false
		case <-end.C:
			return true
		case <-again.C:
		}
		if !c.table.has(rival.Name) {
			return false
		}
	}
	return ctx.Err() == nil
}

func conflictError(rival, me *membership.Member) error {
	if samePlace(rival, me) {
		return fmt.Errorf("a newer boot of %q at %s has replaced this one at %s", me.ID, rival.Gossip, me.Gossip)
	}
	return fmt.Errorf("two live members are called %q: one at %s, and this newer one at %s; give each its own --node",
		me.ID, rival.Gossip, me.Gossip)
}

func (c *Cluster) fail(err error) {
	select {
	case c.fatal <- err:
	default:
	}
}
