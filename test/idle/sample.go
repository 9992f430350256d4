package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/keyward/keyward/lab"
)

// sample is what a process has used and holds, in bytes.
type sample struct {
	at                  time.Time
	cpu                 time.Duration // user and system
	rss, pss, anonymous float64
	switches            float64 // voluntary, of all threads: as often a thread went to sleep
	heap, stacks        float64 // in use
	goroutines, mallocs float64
	inbound, live       float64 // streams from others and to them
}

// sample measures the sidecar from outside, and by what it says of itself.
func (c *cluster) sample() (s sample, err error) {
	s.at = time.Now()
	var errs [4]error
	s.cpu, errs[0] = c.measured.CPU()
	proc := "/proc/" + strconv.Itoa(c.measured.PID())
	s.rss, s.pss, s.anonymous, errs[1] = memory(proc)
	s.switches, errs[2] = switches(proc)
	m, err := c.metrics()
	errs[3] = err
	s.heap, s.stacks = m["go_memstats_heap_inuse_bytes"], m["go_memstats_stack_inuse_bytes"]
	s.goroutines, s.mallocs = m["go_goroutines"], m["go_memstats_mallocs_total"]
	s.inbound, s.live = m["keyward_peer_inbound"], m["keyward_peer_connected"]
	return s, errors.Join(errs[:]...)
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

// metrics are the sidecar's metrics; those of one name are added up.
func (c *cluster) metrics() (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	b, err := lab.Get(ctx, "http://"+c.measured.Metrics+"/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(b))
	sums := map[string]float64{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			sums[name] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sums, err
}
