package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/net/http2/hpack"
	"golang.org/x/sys/unix"

	"github.com/keyward/keyward/internal/ops/loadtest"
)

// floodCommand sends requests for one key, in a process that runs when no other process wants to.
const floodCommand = "flood"

// floodLoad is the load of the hot key.
type floodLoad struct {
	Message []byte // of a RateLimitRequest to members; empty: HTTP requests to Envoys
	Path    string
	Key     string // empty: without one
	Targets []loadtest.Target
	Conns   int
	Rate    float64 // requests per second
	Seconds float64 // that are measured, after floodWarmUp
}

// floodResult is the outcome of a floodLoad.
type floodResult struct {
	Sent, Admitted float64 // per second
	P99            float64 // microseconds
	Failed         int
}

// run runs the load in a process of its own.
func (l *floodLoad) run(ctx context.Context, self string) (r floodResult, err error) {
	arg, err := json.Marshal(l)
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, self, floodCommand, string(arg))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("send requests for the hot key: %w", err)
	}
	return r, json.Unmarshal(out, &r)
}

// during runs the load, and watch while it is measured. others run at their rate all the time, and for a second after it,
// in which buckets fill and queues drain.
func (l *floodLoad) during(
	ctx context.Context, self string, others *loadtest.Load, rate float64, watch func(length time.Duration) error,
) (r floodResult, err error) {
	finished := make(chan error, 1)
	go func() {
		var err error
		r, err = l.run(ctx, self)
		finished <- err
	}()
	_, err1 := runOnly(ctx, others, rate, floodWarmUp)
	err2 := watch(l.length())
	err3 := <-finished
	_, err4 := runOnly(ctx, others, rate, time.Second)
	return r, errors.Join(err1, err2, err3, err4)
}

// length is how long the load is measured.
func (l *floodLoad) length() time.Duration { return time.Duration(l.Seconds * float64(time.Second)) }

// medianOf returns the median of a figure of the rounds.
func medianOf[T any](rounds []T, figure func(T) float64) float64 {
	all := make([]float64, len(rounds))
	for i, r := range rounds {
		all[i] = figure(r)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// sendFlood sends the requests of a floodLoad, in JSON, and prints a floodResult.
func sendFlood(arg string) error {
	var l floodLoad
	if err := json.Unmarshal([]byte(arg), &l); err != nil {
		return err
	}
	if err := runIdle(os.Getpid()); err != nil {
		return err
	}
	ctx := context.Background()
	load, err := l.start(ctx)
	if err != nil {
		return err
	}
	defer load.Close()
	_, err1 := runOnly(ctx, load, l.Rate, floodWarmUp)
	got, err2 := runOnly(ctx, load, l.Rate, l.length())
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	took := got.Elapsed.Seconds()
	return json.NewEncoder(os.Stdout).Encode(floodResult{
		float64(got.Answered()) / took, float64(got.OK) / took, microseconds(got.Latency.Quantile(0.99)), got.Errors,
	})
}

// start connects the load.
func (l *floodLoad) start(ctx context.Context) (*loadtest.Load, error) {
	if len(l.Message) == 0 {
		return startFlood(ctx, l.Path, []string{l.Key}, l.Targets, l.Conns)
	}
	return loadtest.New(ctx, loadtest.Options{
		Service: loadtest.RLS(), Targets: l.Targets, Conns: l.Conns, Calls: []loadtest.LoadCall{{Message: l.Message}},
	})
}

// startFlood connects a load of requests with these keys.
func startFlood(ctx context.Context, path string, keys []string, targets []loadtest.Target, conns int) (*loadtest.Load, error) {
	o := loadtest.Options{Service: loadtest.HTTP(path), Targets: targets, Conns: conns}
	for _, key := range keys {
		var call loadtest.LoadCall
		if key != "" {
			call.Headers = []hpack.HeaderField{{Name: "x-api-key", Value: key}}
		}
		o.Calls = append(o.Calls, call)
	}
	return loadtest.New(ctx, o)
}

// runIdle gives the threads of a process only the time that no other process wants (SCHED_IDLE). Threads that they start
// later inherit it.
func runIdle(pid int) error {
	const schedIdle = 5 // linux/sched.h
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return err
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(filepath.Base(t))
		if err != nil {
			return err
		}
		a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: schedIdle}
		if err := unix.SchedSetAttr(tid, &a, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("give process %d idle time only: %w", pid, err)
		}
	}
	return nil
}
