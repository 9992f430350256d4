package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	redigo "github.com/gomodule/redigo/redis"
)

// task is a command for the server that has the keys of a hash tag.
type task struct {
	tag     byte
	script  *script // nil: SET
	args    []any   // of a script: its name or source, and then the arguments of EVALSHA
	address string  // of the server
	whole   bool    // send the source of the script
}

// maxRounds is how often a task is sent: the server may lack the script, name the one that has the slot, and then that one may
// lack the script, too.
const maxRounds = 4

func (t *task) command() command {
	switch {
	case t.script == nil:
		return command{"SET", t.args}
	case t.whole:
		t.args[0] = t.script.source
		return command{"EVAL", t.args}
	}
	t.args[0] = t.script.digest
	return command{"EVALSHA", t.args}
}

// run sends all tasks in one round trip, and once more those that a server could not process for want of the script or of
// the slot. It returns a reply for each task. Those of type redigo.Error are the server's errors.
func (c *Coordinator) run(ctx context.Context, tasks []*task) ([]any, error) {
	t, err := c.locate(ctx)
	if err != nil {
		return nil, err
	}
	replies, again := make([]any, len(tasks)), make([]int, len(tasks))
	for i, task := range tasks {
		task.address, again[i] = t.primaries[task.tag], i
	}
	for round := 0; round < maxRounds && len(again) > 0; round++ {
		if err := c.round(ctx, tasks, again, replies); err != nil {
			c.forget(t)
			return nil, err
		}
		unfinished := again[:0]
		for _, i := range again {
			e, failed := replies[i].(redigo.Error)
			if failed && tasks[i].redirect(string(e)) {
				unfinished = append(unfinished, i)
			}
			if failed && !strings.HasPrefix(string(e), noScript) {
				c.forget(t) // MOVED, CLUSTERDOWN or READONLY
			}
		}
		again = unfinished
	}
	return replies, nil
}

const noScript = "NOSCRIPT "

// redirect changes t as an error of the server requires, and reports whether it can be sent again.
func (t *task) redirect(e string) bool {
	fields := strings.Fields(e)
	switch {
	case strings.HasPrefix(e, noScript):
		again := !t.whole
		t.whole = true
		return again
	case len(fields) == 3 && fields[0] == "MOVED":
		at := strings.LastIndexByte(fields[2], ':') // IPv6 addresses have no brackets
		if at < 0 {
			return false
		}
		t.address = resolve(strings.Trim(fields[2][:at], "[]"), fields[2][at+1:], t.address)
		return true
	}
	return false
}

// round sends some tasks to their servers, and sets their replies.
func (c *Coordinator) round(ctx context.Context, tasks []*task, which []int, replies []any) error {
	parts := map[string][]int{}
	for _, i := range which {
		parts[tasks[i].address] = append(parts[tasks[i].address], i)
	}
	if len(parts) == 1 {
		return c.send(ctx, tasks, which, replies)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for address, part := range parts {
		all.Go(func() {
			if err := c.send(ctx, tasks, part, replies); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("server %s: %w", address, err))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// send sends tasks to their common server, and WAIT after them if replicas have to confirm grants.
func (c *Coordinator) send(ctx context.Context, tasks []*task, which []int, replies []any) error {
	commands := make([]command, 0, len(which)+1)
	for _, i := range which {
		commands = append(commands, tasks[i].command())
	}
	confirm := c.server.wait > 0 && tasks[which[0]].script != nil
	if confirm {
		commands = append(commands, command{"WAIT", []any{c.server.wait, ackTimeout.Milliseconds()}})
	}
	got, err := c.node(tasks[which[0]].address).do(ctx, commands...)
	if err != nil {
		return err
	}
	for at, i := range which {
		replies[i] = got[at]
	}
	if !confirm {
		return nil
	}
	acks, err := redigo.Int64(got[len(which)], nil)
	if err == nil && acks < c.server.wait {
		err = fmt.Errorf("%d of %d replicas confirmed within %v; check their connections", acks, c.server.wait, ackTimeout)
	}
	return err
}
