package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// status is the state of a stage.
type status struct {
	*stage
	jobs       []*job // not started yet
	all        int
	running    int
	opened     bool      // it was asked for its jobs
	begin, end time.Time // of the first job, and of the last
	cpu        time.Duration
	results    []result
	passed     int
	failures   []string
	skipped    string // why the whole stage was
	bring      string // the command that brings what it needs
	done       bool
}

// most is the largest number of jobs at a time, whatever their loads.
const most = 8

// queue runs the jobs of the stages: as many at a time as their loads allow, and one idle job in addition.
type queue struct {
	m      *machine
	cores  float64
	out    io.Writer
	begin  time.Time
	stages []*status
	active map[*job]time.Time
	ended  chan ending
	mu     sync.Mutex // guards out
}

type ending struct {
	job *job
	outcome
}

func newQueue(m *machine, stages []*stage, cores float64, out io.Writer) *queue {
	q := &queue{m: m, cores: cores, out: out, begin: time.Now(), active: map[*job]time.Time{}, ended: make(chan ending)}
	for _, s := range stages {
		q.stages = append(q.stages, &status{stage: s})
	}
	return q
}

// say prints a line of progress.
func (q *queue) say(format string, args ...any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	fmt.Fprintf(q.out, "%6s  %s\n", short(time.Since(q.begin)), fmt.Sprintf(format, args...))
}

// run runs all jobs and returns when they have ended.
func (q *queue) run(ctx context.Context) {
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for {
		if ctx.Err() == nil {
			q.open(ctx)
			q.start(ctx)
		}
		if len(q.active) == 0 {
			return
		}
		select {
		case e := <-q.ended:
			q.close(e)
		case <-tick.C:
			q.say("%s", q.now())
		}
	}
}

// open creates the jobs of the stages whose predecessors have ended.
func (q *queue) open(ctx context.Context) {
	for _, s := range q.stages {
		if s.opened || slices.ContainsFunc(s.after, q.pending) {
			continue
		}
		s.opened = true
		if why, bring := q.m.lacking(s.needs); why != "" {
			s.skipped, s.bring, s.done = why, bring, true
			q.say("%-9s skipped: %s", s.name, why)
			continue
		}
		jobs, err := s.stage.jobs(ctx, q.m)
		if err != nil {
			s.failures = append(s.failures, err.Error())
			s.done = true
			q.say("%-9s FAILED: %v", s.name, err)
			continue
		}
		for _, j := range jobs {
			j.stage = s.stage
		}
		s.jobs, s.all = jobs, len(jobs)
		s.done = len(jobs) == 0
	}
}

func (q *queue) pending(name string) bool {
	return slices.ContainsFunc(q.stages, func(s *status) bool { return s.name == name && !s.done })
}

// start starts every job that fits next to the running ones.
func (q *queue) start(ctx context.Context) {
	for _, s := range q.stages {
		s.jobs = slices.DeleteFunc(s.jobs, func(j *job) bool {
			if !q.fits(j) {
				return false
			}
			if s.begin.IsZero() {
				s.begin = time.Now()
				q.say("%-9s begins: %s", s.name, s.about)
			}
			s.running++
			q.active[j] = time.Now()
			if j.alone {
				q.signalIdle(syscall.SIGSTOP)
			}
			go func() { q.ended <- ending{j, q.m.execute(ctx, j)} }()
			return true
		})
	}
}

// fits reports whether a job may start now.
func (q *queue) fits(j *job) bool {
	load, idle, others := 0.0, 0, 0
	for a := range q.active {
		switch {
		case a.alone:
			return false
		case a.idle:
			idle++
		default:
			load += a.load
			others++
		}
	}
	switch {
	case j.alone:
		return others == 0 // an idle job is made to stand still meanwhile
	case j.idle:
		return idle == 0
	}
	return others < most && (others == 0 || load+j.load <= q.cores)
}

// signalIdle pauses or continues the running idle jobs.
func (q *queue) signalIdle(s syscall.Signal) {
	for j := range q.active {
		if pid := int(j.pid.Load()); j.idle && pid > 0 {
			_ = syscall.Kill(-pid, s)
		}
	}
}

// close records the end of a job, and of its stage if it was the last.
func (q *queue) close(e ending) {
	delete(q.active, e.job)
	if e.job.alone {
		q.signalIdle(syscall.SIGCONT)
	}
	i := slices.IndexFunc(q.stages, func(s *status) bool { return s.stage == e.job.stage })
	s := q.stages[i]
	s.running--
	s.cpu += e.cpu
	s.results = append(s.results, e.results...)
	label := strings.TrimSuffix(s.name+" "+e.job.name, " ")
	if len(e.results) == 0 && e.err == nil {
		s.passed++ // a command that is no test program, and went well
	}
	if e.err != nil && e.job.optional {
		q.say("%s did not go well: %v; output in %s", label, e.err, e.log)
	} else if e.err != nil {
		s.failures = append(s.failures, label)
		q.say("%s FAILED after %s: %v; output in %s\n%s", label, short(e.took), e.err, e.log, e.excerpt())
	} else if s.all > 1 {
		q.say("%-9s %d of %d: %s in %s, %.1f processors", s.name, s.all-len(s.jobs)-s.running, s.all, e.job.name, short(e.took), e.cpu.Seconds()/e.took.Seconds())
	}
	if len(s.jobs)+s.running > 0 {
		return
	}
	s.done, s.end = true, time.Now()
	q.say("%-9s %s in %s%s", s.name, s.verdict(), short(s.took()), s.over())
}

// took returns the time from the start of the first job to the end of the last.
func (s *status) took() time.Duration { return s.end.Sub(s.begin) }

func (s *status) verdict() string {
	switch {
	case len(s.failures) > 0:
		return "FAILED"
	case s.skipped != "":
		return "skipped"
	}
	return "passed"
}

// over describes by how much a stage exceeded its budget.
func (s *status) over() string {
	if s.skipped != "" || s.took() <= s.budget {
		return ""
	}
	return fmt.Sprintf("   OVER ITS BUDGET of %s", short(s.budget))
}

// now describes the running jobs.
func (q *queue) now() string {
	var parts []string
	for j, begin := range q.active {
		parts = append(parts, strings.TrimSuffix(j.stage.name+" "+j.name, " ")+" "+short(time.Since(begin)))
	}
	slices.Sort(parts)
	return "running: " + strings.Join(parts, ", ")
}

// failed returns the stages that failed; with KEYWARD_REQUIRE=all also those with skipped tests.
func (q *queue) failed() (out []string) {
	for _, s := range q.stages {
		switch {
		case len(s.failures) > 0 || !s.done:
			out = append(out, s.name)
		case q.m.require && len(s.skips()) > 0:
			out = append(out, s.name+" (skipped, and everything is required)")
		}
	}
	return out
}

// short formats a duration as 4:05.
func short(d time.Duration) string {
	s := int(d.Round(time.Second) / time.Second)
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}
