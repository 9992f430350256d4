package durable

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// stallAfter is how long the disk may take before requests stop waiting for it.
	stallAfter = 2 * time.Second
	// restFactor is how many times its working time a Loop pauses between two parts of a generation, so that a walk over
	// many counters uses a fifth of a core.
	restFactor = 4
	// findEvery is the time between two searches for journals that other processes held before, and findFirst is the same
	// until Settle: the process of a former boot may end a moment after this one has started.
	findEvery = 10 * time.Second
	findFirst = 500 * time.Millisecond
)

// Loop drives a Keeper. It is safe for concurrent use.
type Loop struct {
	keeper  *Keeper
	now     func() int64 // Unix nanoseconds
	wake    chan struct{}
	waiting atomic.Int64 // how long run waits, in nanoseconds
	kicked  atomic.Bool  // a round is to be made at once
	settled atomic.Bool  // see Settle
	found   func(Recovery)
	cancel  context.CancelFunc
	done    sync.WaitGroup

	stall *time.Timer // runs stalls if a round takes too long

	mu      sync.Mutex
	working bool // a round is going on
	stalled bool // no request waits, because it takes too long
}

// Run starts rounds of k, which has loaded what other processes did not hold. It calls found for what it loads later; nil
// is none. now returns the time in Unix nanoseconds.
func Run(k *Keeper, now func() int64, found func(Recovery)) *Loop {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Loop{keeper: k, now: now, wake: make(chan struct{}, 1), cancel: cancel, found: found}
	r.stall = time.AfterFunc(math.MaxInt64, r.stalls)
	k.Start()
	r.done.Go(func() { r.run(ctx) })
	return r
}

// Decided wakes the Loop if a decision left something to write earlier than it would look. It is cheap if none did.
func (r *Loop) Decided() {
	if in := r.keeper.o.Node.JournalIn(); in < math.MaxInt64 && int64(in) < r.waiting.Load() {
		r.signal()
	}
}

// Settle records that the member has joined its cluster, so that journals which other processes hold are needed less
// urgently.
func (r *Loop) Settle() { r.settled.Store(true) }

// searchIn returns the time between two searches for journals that other processes hold.
func (r *Loop) searchIn() time.Duration {
	if r.settled.Load() {
		return findEvery
	}
	return findFirst
}

// search loads the journals that other processes no longer hold.
func (r *Loop) search(ctx context.Context) {
	res := r.keeper.Load(ctx, r.now)
	r.keeper.ChargeAhead(r.now(), true)
	if res.Boots > 0 && r.found != nil {
		r.found(res)
	}
}

// RingComplete makes the Loop record the last ring that was complete, if anything is recorded.
func (r *Loop) RingComplete() {
	r.kicked.Store(true)
	r.signal()
}

func (r *Loop) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Loop) run(ctx context.Context) {
	k := r.keeper
	timer := time.NewTimer(0)
	defer timer.Stop()
	rest, found := time.Duration(0), time.Now()
	for ctx.Err() == nil {
		if !r.sleep(ctx, timer, rest) {
			return
		}
		start := time.Now()
		again := r.round()
		if k.loaded.waits() && time.Since(found) >= r.searchIn() {
			found = time.Now()
			r.search(ctx)
		}
		switch took := time.Since(start); {
		case again == 0:
			rest = restFactor * took
		case again > 0:
			rest = time.Duration(again)
		default:
			rest = math.MaxInt64
		}
		if k.loaded.waits() {
			rest = min(rest, r.searchIn())
		}
	}
}

// sleep waits for rest, for as long as the Node allows, or until ctx ends; then it returns false.
func (r *Loop) sleep(ctx context.Context, timer *time.Timer, rest time.Duration) bool {
	began := time.Now()
	for {
		in := min(rest, r.due())
		left := in - time.Since(began)
		if in == math.MaxInt64 {
			left = math.MaxInt64
		}
		if left <= 0 || r.kicked.Swap(false) {
			return ctx.Err() == nil
		}
		if r.keeper.state == failed {
			r.waiting.Store(0) // Decided need not wake a journal that cannot be written
		} else if r.waiting.Store(int64(in)); r.due() < in {
			continue // Decided may have compared with the previous value
		}
		timer.Reset(left)
		select {
		case <-timer.C:
			return true
		case <-r.wake:
		case <-ctx.Done():
			return false
		}
	}
}

// due returns within which time the Node needs a round. A journal that has failed is tried again after its own time.
func (r *Loop) due() time.Duration {
	if r.keeper.state == failed {
		return math.MaxInt64
	}
	return r.keeper.o.Node.JournalIn()
}

// round makes one round. If it takes too long, requests stop waiting for the journal until it ends.
func (r *Loop) round() (again int64) {
	r.mu.Lock()
	r.working = true
	r.mu.Unlock()
	r.stall.Reset(stallAfter)
	again = r.keeper.Round(r.now())
	r.stall.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.working = false; r.stalled {
		r.stalled = false
		if r.keeper.state != failed {
			r.keeper.report(true)
			r.keeper.log.Info("journal writes again")
			r.keeper.changed(Change{Kind: Up})
		}
	}
	return again
}

// stalls makes requests wait no longer for a round that takes too long.
func (r *Loop) stalls() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.working && !r.stalled {
		r.stalled = true
		r.keeper.report(false)
		r.keeper.log.Error("journal stalled; durability: strict does not wait for the disk until it writes again")
		r.keeper.changed(Change{Kind: Stalled})
	}
}

// Stop ends the rounds, writes all counters, and marks the journal as that of a boot that has stopped in good order. If
// ctx ends before, it returns the error of ctx, and what is not written then is lost if no other member has it.
func (r *Loop) Stop(ctx context.Context) error {
	r.cancel()
	end := make(chan error, 1)
	go func() {
		r.done.Wait()
		end <- r.keeper.Stop(r.now())
	}()
	select {
	case err := <-end:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
