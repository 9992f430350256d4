package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/keyward/keyward/internal/lab"
)

// ending is how a demo ends: by the first Ctrl-C in order, with all that can be seen of it; by a second one, a hang-up, SIGTERM or the end
// of whatever has started it (make, a script) at once, with nothing left behind.
type ending struct {
	inOrder func()

	mu      sync.Mutex
	asked   bool   // guarded by mu
	restore func() // guarded by mu; of the terminal, nil: nothing to do
}

// newEnding watches for what ends the demo until stop is called. The context ends when it is to end in order.
func newEnding(ctx context.Context) (e *ending, ended context.Context, stop func()) {
	ended, cancel := context.WithCancel(ctx)
	e = &ending{inOrder: cancel}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	left := (<-chan struct{})(nil)
	if !detached() {
		signal.Notify(signals, syscall.SIGHUP)
		left = leftAlone(ctx)
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				if s == os.Interrupt {
					e.ask()
					continue
				}
				e.atOnce(s.(syscall.Signal))
			case <-left:
				e.atOnce(syscall.SIGHUP)
			case <-done:
				return
			}
		}
	}()
	return e, ended, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// ask ends the demo in order, and at once when it is asked again.
func (e *ending) ask() {
	e.mu.Lock()
	again := e.asked
	e.asked = true
	e.mu.Unlock()
	if again {
		e.atOnce(syscall.SIGINT)
	}
	e.inOrder()
}

// onTerminal says how the terminal is made what it was.
func (e *ending) onTerminal(restore func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.restore = restore
}

// atOnce ends the program as a shell expects it of one that a signal has ended.
func (e *ending) atOnce(s syscall.Signal) {
	lab.End()
	e.mu.Lock()
	if e.restore != nil {
		e.restore()
	}
	os.Exit(128 + int(s))
}

// endsWithParent is the variable with which make says that the demo is its own.
const endsWithParent = "KEYWARD_DEMO_ENDS_WITH_PARENT"

// detached reports whether the demo is to outlive its terminal and its shell: nohup has it ignore SIGHUP, and leaves it no terminal but a file to write
// to. That SIGHUP is ignored says nothing by itself, since whatever runs in the background of a machine may have passed it on.
func detached() bool {
	out, err := os.Stdout.Stat()
	return signal.Ignored(syscall.SIGHUP) && os.Getenv(endsWithParent) == "" && len(terminals()) == 0 && err == nil && out.Mode().IsRegular()
}

// terminals are those of the standard streams that are one.
func terminals() (all []int) {
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if term.IsTerminal(int(f.Fd())) {
			all = append(all, int(f.Fd()))
		}
	}
	return all
}

// leftAlone is closed when a terminal that this process had at first is closed, or when what has started it is gone. A terminal sends SIGHUP
// to the leader of its session alone, which may be a make that waits for the demo to end.
func leftAlone(ctx context.Context) <-chan struct{} {
	left, parent, terminals := make(chan struct{}), os.Getppid(), terminals()
	closed := func(fd int) bool { return !term.IsTerminal(fd) }
	go func() {
		for pause(ctx, 250*time.Millisecond) {
			if os.Getppid() != parent || slices.ContainsFunc(terminals, closed) {
				close(left)
				return
			}
		}
	}()
	return left
}
