package app

import (
	"context"
	"sync"
)

// tasks are the goroutines that run while a process serves. All end when stop is called.
type tasks struct {
	ctx    context.Context // ends when they are to end
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newTasks() *tasks {
	t := &tasks{}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// start runs task in a goroutine. task returns soon after its context ends.
func (t *tasks) start(task func(ctx context.Context)) { t.wg.Go(func() { task(t.ctx) }) }

// stop ends all tasks and waits for them. It may be called several times.
func (t *tasks) stop() {
	t.cancel()
	t.wg.Wait()
}
