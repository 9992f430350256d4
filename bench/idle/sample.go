package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/promtext"
)

// use is the memory of a process, in bytes, and the processor time it takes.
type use struct {
	rss, pss, anonymous float64 // on average
	core                float64 // processor time, user and system, as a part of one processor's
	switches            float64 // a second, voluntary, of all threads: as often a thread went to sleep
}

// watch looks at a process from outside for so long. It asks nothing of it.
func watch(p *lab.Process, over time.Duration) (u use, err error) {
	const looks = 6
	proc := "/proc/" + strconv.Itoa(p.PID())
	began := time.Now()
	before, err1 := p.CPU()
	slept, err2 := switches(proc)
	var errs []error
	for range looks {
		time.Sleep(over / looks)
		rss, pss, anonymous, err := memory(proc)
		u.rss, u.pss, u.anonymous = u.rss+rss/looks, u.pss+pss/looks, u.anonymous+anonymous/looks
		errs = append(errs, err)
	}
	took := time.Since(began).Seconds()
	after, err3 := p.CPU()
	switched, err4 := switches(proc)
	u.core, u.switches = (after-before).Seconds()/took, (switched-slept)/took
	return u, errors.Join(append(errs, err1, err2, err3, err4)...)
}

// said are the figures that a sidecar reports about itself.
type said struct {
	heap, stacks  float64 // in use, bytes
	goroutines    float64
	mallocs       float64 // since its start, or a second
	inbound, live float64 // streams from others and to them
}

// ask has the sidecar say what it is like, and how much it allocates a second over a time, less what it takes to say so.
func (c *cluster) ask(over time.Duration) (said, error) {
	first, err1 := c.said()
	before, err2 := c.said()
	time.Sleep(over)
	after, err3 := c.said()
	saying := before.mallocs - first.mallocs
	first.mallocs = max(0, after.mallocs-before.mallocs-saying) / over.Seconds()
	return first, errors.Join(err1, err2, err3)
}

func (c *cluster) said() (said, error) {
	m, err := c.metrics()
	return said{
		heap: m.Sum("go_memstats_heap_inuse_bytes"), stacks: m.Sum("go_memstats_stack_inuse_bytes"),
		goroutines: m.Sum("go_goroutines"), mallocs: m.Sum("go_memstats_mallocs_total"),
		inbound: m.Sum("keyward_peer_inbound"), live: m.Sum("keyward_peer_connected"),
	}, err
}

// memory reads smaps_rollup, where a page that is shared with other processes counts in PSS by its share.
func memory(proc string) (rss, pss, anonymous float64, err error) {
	b, err := os.ReadFile(proc + "/smaps_rollup")
	if err != nil {
		return 0, 0, 0, fmt.Errorf("read memory: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		kib, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "Rss:":
			rss = kib * 1024
		case "Pss:":
			pss = kib * 1024
		case "Anonymous:":
			anonymous = kib * 1024
		}
	}
	return rss, pss, anonymous, nil
}

// switches adds up the voluntary context switches of all threads.
func switches(proc string) (n float64, err error) {
	tasks, err := filepath.Glob(proc + "/task/*/status")
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(b)) {
			if v, found := strings.CutPrefix(line, "voluntary_ctxt_switches:"); found {
				x, _ := strconv.ParseFloat(strings.TrimSpace(v), 64)
				n += x
			}
		}
	}
	return n, err
}

// metrics returns the metrics of the measured sidecar.
func (c *cluster) metrics() (promtext.Page, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	b, err := lab.Get(ctx, "http://"+c.measured.Metrics+"/metrics")
	if err != nil {
		return nil, err
	}
	return promtext.Parse(b)
}
