// Package cluster finds the other members by gossip and keeps an immutable View of them.
//
// Memberlist's callbacks leave what they see in a table; one goroutine reads it, asks the passive machine what follows,
// announces what self has become, and hands the View to whoever asked for it. A second one joins addresses for ever.
package cluster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// Cluster is this member's part in the cluster.
type Cluster struct {
	o       Options
	log     *slog.Logger
	metrics *metrics
	table   *table
	machine *machine
	gossip  *gossip // nil when standalone
	joiner  *joiner // nil when standalone
	view    atomic.Pointer[membership.View]

	fatal   chan error
	drained chan struct{} // see Drained
	cancel  context.CancelFunc
	done    sync.WaitGroup
	stop    sync.Once

	// Of the run goroutine alone.
	announced   string // last announcement
	announcedAt time.Time
	state       membership.MemberState // as last logged
	problem     string
	calm        bool // nothing is under way that a moment would bring to its end, and nothing remembered that it would end

	probing   atomic.Bool // a rival is being looked into
	repairing atomic.Bool // an exchange with a member that showed another digest is under way
}

// Start makes this member part of the cluster, or of nothing but itself without Options.Join. It does not wait until it
// has joined: the View says when.
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
		capacity: o.Capacity, expect: o.Expect, expectTimeout: o.ExpectTimeout, standalone: len(o.Join) == 0, handoff: o.Handoff, streams: o.Streams, timing: o.Timing, start: now,
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

// open starts gossip, if there is to be any.
func (c *Cluster) open(ctx context.Context) (err error) {
	if len(c.o.Join) == 0 {
		c.log.Warn("standalone: no --join, so this member counts alone; run no second one beside it")
		return nil
	}
	if c.o.KeyFile == "" {
		c.log.Warn("insecure: gossip is in the clear; anyone who reaches the gossip port can add and remove members")
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

// View is the cluster as of now; never nil.
func (c *Cluster) View() *membership.View { return c.view.Load() }

// Fatal yields the error that this member cannot live with: another live member has its name. It should stop then. By
// then the View has the problem, unless this member was leaving anyway, and the others have been told that it withdraws.
func (c *Cluster) Fatal() <-chan error { return c.fatal }

// Gossip is the address told to the others; empty when standalone.
func (c *Cluster) Gossip() string {
	if c.gossip == nil {
		return ""
	}
	return c.gossip.addr.String()
}

// SetRules announces by which rules this member answers, and which it is ready to switch to.
func (c *Cluster) SetRules(inForce, prepared uint64) {
	c.table.update(func(self *membership.Member) { self.InForce, self.Prepared = inForce, prepared })
}

// SetProgress announces how far this member is with the last change of the ring; see Options.Handoff.
func (c *Cluster) SetProgress(p membership.Progress) {
	c.table.updateStatus(func(t *handoffStatus) { t.progress = p })
}

// SetStreams says with which members this one has streams, both ways.
func (c *Cluster) SetStreams(s Streams) {
	c.table.updateStatus(func(t *handoffStatus) { t.streams = s })
}

// Drain has this member leave the ring, as soon as the last change of it is over: it announces that it is leaving, the
// others drop it from their rings, and it forwards what still comes. One that stands alone keeps its place.
func (c *Cluster) Drain() {
	now := time.Now()
	c.table.updateStatus(func(t *handoffStatus) {
		if !t.draining {
			t.draining, t.drainingSince = true, now
		}
	})
}

// Drained is closed when this member has drained: all others have dropped it, and all is handed over.
func (c *Cluster) Drained() <-chan struct{} { return c.drained }

// leaveTimeout is how long the farewell may take.
const leaveTimeout = 500 * time.Millisecond

// Leave drains, says farewell and closes. Each part is bounded, all of them together by ctx, too.
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
			// Memberlist's farewell says nothing of how we went, and may overtake the announcement that does.
			_ = c.gossip.list.UpdateNode(rest / 2)
		}
	}
	c.shutdown(rest)
}

// Close stops at once and says nothing: to the others this member has crashed.
func (c *Cluster) Close() { c.shutdown(0) }

func (c *Cluster) shutdown(bound time.Duration) {
	c.stop.Do(func() {
		if c.gossip != nil && bound > 0 {
			if err := c.gossip.list.Leave(bound); err != nil {
				c.log.Debug("farewell not confirmed", "error", err)
			}
		}
		c.cancel()
		if c.gossip != nil {
			if err := c.gossip.list.Shutdown(); err != nil {
				c.log.Warn("close gossip", "error", err)
			}
		}
	})
	c.done.Wait()
}

// calmTicks is how many ticks long the time between two looks is, 5 s, while nothing is new and nothing waits for a moment to
// come. A look copies what is known of all members, which would be most of what gossip costs a large cluster at rest.
const calmTicks = 25

// run looks whenever something is new, and from time to time.
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

// nextWake is the time until the next look, which is due after wake unless that is 0.
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

// step takes one step: what was seen, what follows, what is told to whom.
func (c *Cluster) step(ctx context.Context, now time.Time) (wake time.Duration) {
	s := c.table.snapshot()
	o := c.machine.step(now, s)
	for _, f := range s.departed {
		c.log.Info("member gone", "member", string(f.id), "address", f.gossip, "graceful", f.graceful, "handed_over", f.handedOff)
		if !f.graceful && c.joiner != nil {
			c.joiner.addLost(f.gossip, now)
		}
	}
	c.announce(now, &o)
	c.logChanges(&o)
	if c.gossip != nil {
		c.metrics.health.Set(float64(c.gossip.list.GetHealthScore()))
		c.metrics.refused.Set(float64(c.table.refusedCount()))
	}
	if o.viewChanged {
		c.metrics.update(o.view)
		c.view.Store(o.view)
		c.o.OnView(o.view)
	}
	c.checkNameConflict(ctx, o.nameConflict, &s.self) // after the view: whoever hears of Fatal finds the problem there
	if rs, changed := c.table.records.Step(now, s.others); changed {
		c.metrics.routes.Set(float64(len(rs)))
		c.o.OnRoutes(rs)
	}
	c.checkDrained(&o, &s.status)
	c.repair(ctx, now)
	v := o.view
	c.calm = v.Joined && v.Problem == "" && o.self.State == membership.Active && !s.status.draining && v.DifferingRings()+v.IncompleteMembers() == 0 &&
		v.NRef == v.Ring.Len() && len(v.Left) == 0 && c.table.records.Idle()
	return o.wake
}

// logChanges logs what a person needs to follow a change of the ring from one member to the next.
func (c *Cluster) logChanges(o *outcome) {
	if o.ringChanged {
		c.metrics.ringChanges.Inc()
		c.metrics.deaths.Add(float64(o.ringChange.crashed))
		r := o.view.Ring
		c.log.Info("ring adopted", "ring", fmt.Sprintf("%016x", r.Fingerprint()), "members", r.Len(), "n_ref", o.view.NRef,
			"joined", joinIDs(o.ringChange.joined), "left", joinIDs(o.ringChange.left), "died", joinIDs(o.ringChange.died), "renewed", joinIDs(o.ringChange.replaced))
	}
	if o.self.State != c.state {
		c.state = o.self.State
		c.log.Info("this member is "+c.state.String(), "ring", fmt.Sprintf("%016x", o.self.Ring))
	}
	if o.view.Problem != c.problem {
		if c.problem = o.view.Problem; c.problem != "" {
			c.log.Error("this member stays off the ring", "reason", c.problem)
		}
	}
}

// joinIDs lists members in a log line.
func joinIDs(ids []ring.ID) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(string(id))
	}
	return b.String()
}

// announce writes down what self has become, and has memberlist spread it. An announcement that memberlist dropped,
// because it was just answering an accusation with the old one, is repeated.
func (c *Cluster) announce(now time.Time, o *outcome) {
	c.table.mu.Lock()
	self := &c.table.self
	self.State, self.Ring, self.NRef, self.CompleteRing = o.self.State, o.self.Ring, o.self.NRef, o.self.CompleteRing
	self.Established, self.AwaitsTurn, self.HandedOff, self.MetExpected, self.Isolated = o.self.Established, o.self.AwaitsTurn, o.self.HandedOff, o.self.MetExpected, o.self.Isolated
	b, announced := string(encode(self)), c.table.announced
	c.table.mu.Unlock()
	if c.gossip == nil || b == announced || b == c.announced && now.Sub(c.announcedAt) < time.Second {
		return
	}
	c.announced, c.announcedAt = b, now
	// It spreads in the background; waiting for that would keep us from hearing others.
	_ = c.gossip.list.UpdateNode(time.Nanosecond)
}

// checkDrained notes when every other member on the ring goes by the same ring as a leaving self, and has all of its counters.
func (c *Cluster) checkDrained(o *outcome, t *handoffStatus) {
	select {
	case <-c.drained:
		return
	default:
	}
	v := o.view
	dropped := o.self.State == membership.Leaving && v.Ring.Index(v.Self) < 0 && v.DifferingRings() == 0
	nothing := v.Standalone || o.self.Role == membership.RoleObserver || o.nameConflict != nil // to hand over, or nobody who would wait for it
	if t.draining && nothing || dropped && (o.self.HandedOff || v.Ring.Len() == 0) {
		close(c.drained)
	}
}

// checkNameConflict looks into another boot of self's name. It may be one whose death is not yet known: then it falls silent and
// goes away. If it answers, this one, being the newcomer, has to stop.
func (c *Cluster) checkNameConflict(ctx context.Context, rival, self *membership.Member) {
	if rival == nil || c.gossip == nil || !c.probing.CompareAndSwap(false, true) {
		return
	}
	c.metrics.nameConflicts.Inc()
	c.log.Warn("another member has this one's name", "member", string(self.ID), "other", rival.Gossip, "this", self.Gossip)
	who, me := *rival, *self
	c.done.Go(func() {
		if c.probeConflict(ctx, &who) {
			c.fail(conflictError(&who, &me))
			return // and stays lost: the flag is not lowered
		}
		c.probing.Store(false)
		c.table.signal()
	})
}

// probeConflict asks the rival until it answers or was silent for too long, which loses, or is gone, which wins.
func (c *Cluster) probeConflict(ctx context.Context, rival *membership.Member) (isLost bool) {
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
		return fmt.Errorf("a newer boot of %q, at %s, has replaced this one, at %s", me.ID, rival.Gossip, me.Gossip)
	}
	return fmt.Errorf("two live members are called %q: one at %s, and this one, the newcomer, at %s; give each its own --node",
		me.ID, rival.Gossip, me.Gossip)
}

func (c *Cluster) fail(err error) {
	select {
	case c.fatal <- err:
	default:
	}
}
