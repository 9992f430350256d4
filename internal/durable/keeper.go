// Package durable keeps a member's counters of long windows in a journal: it loads what former boots have written, and
// writes what an owner.Node has due.
//
// A Keeper is passive: the time is a parameter, and only the journal's file system has effects. A Loop drives it, and
// watches that no operation on the disk takes too long.
package durable

import (
	"cmp"
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/owner"
)

const (
	retryAfter   = int64(10 * time.Second)       // after a failure, until the next generation is tried
	lockedRetry  = int64(200 * time.Millisecond) // the same, if another member reads this boot's directory, which takes it a moment
	longestRetry = int64(10 * time.Minute)       // the same, after several failures because the journal was full
	// leastGrowth is how many bytes a generation grows at least after it is complete, before a new one replaces it.
	leastGrowth = 16 << 20
	// walkCalls is how many parts of the walk over all counters one round makes.
	walkCalls = 16
	// counterBytes is the usual size of a counter in a journal.
	counterBytes = 80
)

// Options configures a Keeper. Node and Journal are required.
type Options struct {
	Node    *owner.Node
	Journal journal.Options // its FS is also used to load what former boots have written
	// Apply performs what the Node requires. It must not call methods of the Keeper.
	Apply func(owner.Ready)
	// Ring returns the last ring that was complete; nil: there is none.
	Ring func() *CompleteRing
	// OnChange is called after each change of the journal's state; nil: it is not. It must not block or call methods of the
	// Keeper other than Status, and may run concurrently with them.
	OnChange func(Change)
	// Clock returns a time from which durations are measured, in nanoseconds.
	Clock      func() int64
	Logger     *slog.Logger          // nil: none
	Registerer prometheus.Registerer // of the metrics; nil: none
}

// Keeper keeps a journal for a Node. One goroutine may call its methods; Status is safe for concurrent use.
type Keeper struct {
	o       Options
	log     *slog.Logger
	metrics *metrics
	journal *journal.Journal
	batch   owner.JournalBatch
	buf     []byte
	writers counterwire.Writers

	state   keeperState
	cursor  owner.JournalCursor // of the walk
	live    int64               // bytes of the last complete generation when it was complete
	retryAt int64               // when a new generation is tried after a failure
	cause   string              // of the last failure, as logged
	ring    uint64              // ID of the ring that the generation names
	dirty   bool                // blocks were appended and not synced
	loads   int                 // loaded.loads when the generation began
	full    int                 // failures in a row because the journal has reached its size
	loaded  loaded              // what former boots have left
}

// keeperState is the state of a Keeper.
type keeperState uint8

const (
	empty    keeperState = iota // nothing was written yet
	walking                     // a generation is not complete
	complete                    // the generation contains everything
	failed                      // nothing is written until retryAt
	stopped
)

// New returns a Keeper. It makes no I/O.
func New(o Options) *Keeper {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Apply == nil {
		o.Apply = func(owner.Ready) {}
	}
	if o.Ring == nil {
		o.Ring = func() *CompleteRing { return nil }
	}
	if o.Clock == nil {
		o.Clock = func() int64 { return 0 }
	}
	if o.Journal.FS == nil {
		o.Journal.FS = journal.OS()
	}
	return &Keeper{o: o, log: o.Logger, metrics: newMetrics(o.Registerer), journal: journal.New(o.Journal)}
}

// Start records that loading is over, so that requests may wait for the journal from now on.
func (k *Keeper) Start() { k.report(true) }

// Round writes what is due at now, and a part of what a new generation needs. It returns after how many nanoseconds it
// has to be called again, in addition to the time that Node.JournalIn returns; 0 is at once, and a negative number is
// never.
func (k *Keeper) Round(now int64) (again int64) {
	if k.state == stopped {
		return -1
	}
	if k.state == failed && now < k.retryAt {
		return k.retryAt - now
	}
	err := k.round(now)
	k.metrics.bytes.Set(float64(k.journal.Status().Bytes))
	switch {
	case err != nil:
		k.fail(now, err)
		return k.retryAt - now
	case k.state == walking:
		return 0
	case len(k.loaded.boots) > 0:
		return retryAfter
	}
	return -1
}

func (k *Keeper) round(now int64) error {
	missed := k.o.Node.BeginRound()
	if err := k.prepare(now, missed); err != nil {
		return err
	}
	due, err := k.writeDue(now)
	if err != nil {
		return err
	}
	if k.state == walking {
		if err := k.walk(now); err != nil {
			return err
		}
	}
	if due {
		if err := k.sync(now); err != nil {
			return err
		}
	}
	k.retire(now)
	return nil
}

// prepare begins a generation if one is needed: after a failure, to replace what former boots have left, or because the
// present one has grown.
func (k *Keeper) prepare(now int64, missed bool) error {
	switch k.state {
	case failed:
		if k.full > 0 {
			k.journal.Discard()
		}
		return k.begin(now)
	case empty:
		if missed || k.loaded.live || k.o.Ring() != nil { // a ring's members wait for each other's journals
			return k.begin(now)
		}
	case complete:
		unwritten := k.loaded.live && !k.loaded.written
		if grown := k.journal.Status().Current - k.live; missed || unwritten || grown >= max(leastGrowth, k.live) && k.hasRoom() {
			return k.begin(now)
		}
	}
	return nil
}

// hasRoom reports whether another generation probably fits into the journal's size.
func (k *Keeper) hasRoom() bool {
	need := min(k.live, int64(k.o.Node.Counters())*counterBytes) + leastGrowth
	return k.journal.Status().Bytes+need <= k.maxBytes()
}

// maxBytes returns the most bytes of the journal.
func (k *Keeper) maxBytes() int64 { return cmp.Or(k.o.Journal.MaxBytes, journal.DefaultMaxBytes) }

// begin begins a generation.
func (k *Keeper) begin(now int64) error {
	var members []journal.RingMember
	if r := k.lastRing(); r != nil {
		members = r.Members
	}
	if err := k.journal.Begin(time.Unix(0, now), members); err != nil {
		return err
	}
	wasDown := k.state == empty || k.state == failed
	k.state, k.cursor, k.ring, k.dirty, k.loads = walking, owner.JournalCursor{}, 0, true, k.loaded.loads
	if err := k.recordRing(); err != nil {
		return err
	}
	if wasDown {
		k.report(true)
		k.log.Info("journal begun", "dir", k.journal.Dir())
		k.changed(Change{Kind: Up})
	}
	return nil
}

// recordRing appends the last complete ring if the generation does not name it yet.
func (k *Keeper) recordRing() error {
	r := k.lastRing()
	if r == nil || r.ID() == k.ring {
		return nil
	}
	return k.appendRing(r)
}

// lastRing returns the last complete ring: this boot's own, or until there is one, the newest that former journals name.
func (k *Keeper) lastRing() *CompleteRing {
	if r := k.o.Ring(); r != nil {
		return r
	}
	return k.loaded.ring
}

// recordIncluded appends, as long as this boot has no ring, the ring of the former boots whose journals it replaces, and
// which of them the generation includes. Otherwise they would be missed after another crash.
func (k *Keeper) recordIncluded() error {
	if k.o.Ring() != nil || k.loaded.ring == nil {
		return nil
	}
	r := *k.loaded.ring
	r.Included = nil
	for _, m := range r.Members {
		if k.loaded.boot[m.Boot] {
			r.Included = append(r.Included, m.Boot)
		}
	}
	return k.appendRing(&r)
}

func (k *Keeper) appendRing(r *CompleteRing) error {
	k.buf = appendRing(wire.Writer(k.buf[:0]), r)
	if err := k.journal.Append(k.buf); err != nil {
		return err
	}
	k.ring, k.dirty = r.ID(), true
	return nil
}

// writeDue appends the counters that are due. It reports whether there were any.
func (k *Keeper) writeDue(now int64) (due bool, err error) {
	for more := true; more; {
		k.batch.Reset()
		more = k.o.Node.Due(now, &k.batch)
		if len(k.batch.Counters) == 0 {
			continue
		}
		if k.state == empty {
			if err := k.begin(now); err != nil {
				return due, err
			}
		}
		due = true
		if err := k.append(); err != nil {
			return due, err
		}
	}
	if k.state == walking || k.state == complete {
		before := k.ring
		if err := k.recordRing(); err != nil {
			return due, err
		}
		due = due || k.ring != before
	}
	return due, nil
}

// append appends the counters of the batch. A complete generation does not fill the journal: when most counters have
// ended, there must be room for one that replaces it.
func (k *Keeper) append() error {
	segment := cmp.Or(k.o.Journal.SegmentBytes, journal.DefaultSegmentBytes)
	if most := k.maxBytes(); k.state == complete && k.journal.Status().Bytes+segment > most-most/8 {
		return journal.ErrFull
	}
	k.buf = appendCounters(wire.Writer(k.buf[:0]), &k.batch, &k.writers)
	if err := k.journal.Append(k.buf); err != nil {
		return err
	}
	k.dirty = true
	k.metrics.records.Add(float64(len(k.batch.Counters)))
	return nil
}

// walk appends the next part of all counters, and completes the generation after the last one.
func (k *Keeper) walk(now int64) error {
	for range walkCalls {
		k.batch.Reset()
		more := k.o.Node.Walk(now, &k.cursor, &k.batch)
		if len(k.batch.Counters) > 0 {
			if err := k.append(); err != nil {
				return err
			}
		}
		if !more {
			return k.complete(now)
		}
	}
	return nil
}

// complete makes the generation complete, so that it replaces the ones before.
func (k *Keeper) complete(now int64) error {
	if err := k.recordIncluded(); err != nil {
		return err
	}
	if err := k.timed(k.journal.Complete); err != nil {
		return err
	}
	k.state, k.dirty, k.live, k.full = complete, false, k.journal.Status().Current, 0
	k.o.Apply(k.o.Node.Written(now, &k.batch))
	k.o.Node.AllWritten()
	k.loaded.written = k.loads == k.loaded.loads
	return nil
}

// sync makes what was appended durable.
func (k *Keeper) sync(now int64) error {
	if !k.dirty {
		return nil
	}
	if err := k.timed(k.journal.Sync); err != nil {
		return err
	}
	k.dirty = false
	k.o.Apply(k.o.Node.Written(now, &k.batch))
	return nil
}

// timed measures a call that waits for the disk.
func (k *Keeper) timed(f func() error) error {
	start := k.o.Clock()
	err := f()
	k.metrics.sync.Observe(float64(k.o.Clock()-start) / 1e9)
	return err
}

// fail ends the generation. A new one is tried later; until then no request waits for the journal.
func (k *Keeper) fail(now int64, err error) {
	k.batch.Forget()
	k.batch.Reset()
	k.state, k.retryAt, k.dirty = failed, now+k.retryDelay(err), false
	k.report(false)
	if cause := causeOf(err); cause != k.cause {
		k.cause = cause
		k.log.Error("journal failed; counters are only in memory until it can be written again", "dir", k.journal.Dir(), "error", err)
		k.changed(Change{Kind: Down, Err: err})
	}
}

// retryDelay returns after how many nanoseconds a new generation is tried, after err. A journal that was full will often
// be full again, which costs as much as writing all of it.
func (k *Keeper) retryDelay(err error) int64 {
	if !errors.Is(err, journal.ErrFull) {
		if k.full = 0; errors.Is(err, journal.ErrLocked) {
			return lockedRetry
		}
		return retryAfter
	}
	k.full++
	return min(retryAfter<<min(k.full-1, 16), longestRetry)
}

// report passes on whether the journal works.
func (k *Keeper) report(up bool) {
	if up {
		k.cause = ""
	}
	k.metrics.setUp(up)
	k.o.Apply(k.o.Node.SetJournal(up))
}

// causeOf returns the text of err without what differs between two failures of one kind.
func causeOf(err error) string {
	for e := err; e != nil; e = errors.Unwrap(e) {
		err = e
	}
	return err.Error()
}

// Stop writes all counters and marks the journal as that of a boot that has stopped in good order. Nothing is written
// after it.
func (k *Keeper) Stop(now int64) error {
	defer func() { k.state = stopped }()
	if k.state == empty && !k.loaded.live && k.o.Node.JournalIn() == math.MaxInt64 {
		return k.close()
	}
	err := k.stop(now)
	return errors.Join(err, k.close())
}

func (k *Keeper) stop(now int64) error {
	if k.state == empty || k.hasRoom() {
		if err := k.begin(now); err != nil {
			return err
		}
	}
	for k.state, k.cursor = walking, (owner.JournalCursor{}); k.state == walking; {
		if err := k.walk(now); err != nil {
			return err
		}
	}
	k.retire(now)
	return k.timed(k.journal.Stop)
}

// close closes the journal, and the journals of former boots that could not be removed.
func (k *Keeper) close() error {
	k.loaded.close()
	return k.journal.Close()
}

// Close ends the Keeper without writing anything, as a crash does.
func (k *Keeper) Close() error {
	k.state = stopped
	return k.close()
}
