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

// ending ends a demo. After the first Ctrl-C the demo stops its processes in order and prints what it does. After a
// second one, SIGHUP, SIGTERM or the end of the process that has started it (make, a script), it kills its processes
// at once.
type ending struct {
	inOrder func()

	mu      sync.Mutex
	asked   bool   // guarded by mu
	restore func() // guarded by mu; of the terminal, nil: nothing to do
}

// newEnding handles signals until stop is called. The context ends when the demo must stop in order.
func newEnding(ctx context.Context) (e *ending, ended context.Context, stop func()) {
	ended, cancel := context.WithCancel(ctx)
	e = &ending{inOrder: cancel}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	handling, stopHandling := context.WithCancel(context.WithoutCancel(ctx))
	abandoned := make(chan struct{})
	var handlers sync.WaitGroup
	if !detached() {
		signal.Notify(signals, syscall.SIGHUP)
		handlers.Go(func() { watchParent(handling, abandoned) })
	}
	handlers.Go(func() { e.handle(handling, signals, abandoned) })
	return e, ended, func() {
		signal.Stop(signals)
		stopHandling()
		handlers.Wait()
		cancel()
	}
}

// handle ends the demo on a signal, or when abandoned is closed. It returns when ctx ends.
func (e *ending) handle(ctx context.Context, signals <-chan os.Signal, abandoned <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			if s == os.Interrupt {
				e.ask()
				continue
			}
			e.atOnce(s.(syscall.Signal))
		case <-abandoned:
			e.atOnce(syscall.SIGHUP)
		case <-ctx.Done():
			return
		}
	}
}

// ask stops the demo in order, and at once when it is called again.
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

// onTerminal sets the function that restores the terminal.
func (e *ending) onTerminal(restore func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.restore = restore
}

// atOnce kills all processes and exits with the code of a program that a signal has ended.
func (e *ending) atOnce(s syscall.Signal) {
	lab.End()
	e.mu.Lock()
	if e.restore != nil {
		e.restore()
	}
	os.Exit(128 + int(s))
}

// endsWithParent is the environment variable by which make requires that the demo ends with it.
const endsWithParent = "KEYWARD_DEMO_ENDS_WITH_PARENT"

// detached reports whether the demo must outlive its terminal and its shell. nohup ignores SIGHUP and redirects the
// output to a file. An ignored SIGHUP alone is not enough, because it may be inherited from any background process.
func detached() bool {
	out, err := os.Stdout.Stat()
	return signal.Ignored(syscall.SIGHUP) && os.Getenv(endsWithParent) == "" && len(terminals()) == 0 && err == nil && out.Mode().IsRegular()
}

// terminals returns the standard streams that are terminals.
func terminals() (all []int) {
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if term.IsTerminal(int(f.Fd())) {
			all = append(all, int(f.Fd()))
		}
	}
	return all
}

// watchParent closes abandoned when a terminal of this process is closed, or its parent process ends. It returns then,
// or when ctx ends. A terminal sends SIGHUP only to the leader of its session, which may be a make that waits for the
// demo.
func watchParent(ctx context.Context, abandoned chan<- struct{}) {
	parent, terminals := os.Getppid(), terminals()
	closed := func(fd int) bool { return !term.IsTerminal(fd) }
	for pause(ctx, 250*time.Millisecond) {
		if os.Getppid() != parent || slices.ContainsFunc(terminals, closed) {
			close(abandoned)
			return
		}
	}
}
