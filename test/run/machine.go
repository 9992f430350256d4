package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// logs is the folder of the jobs' complete outputs.
const logs = ".cache/test/log"

// machine describes where the jobs run.
type machine struct {
	root    string
	install bool           // may install packages
	require bool           // nothing may be skipped
	match   *regexp.Regexp // of jobs' names
	stages  []*stage       // all that were chosen
	alone   string         // why jobs get no network namespace of their own; empty: they do
	env     []string       // in addition to the environment of this program
}

func newMachine(root string, install, require bool) (*machine, error) {
	m := &machine{root: root, install: install, require: require}
	m.env = []string{"CGO_ENABLED=0", "GOFLAGS=" + strings.TrimSpace(os.Getenv("GOFLAGS")+" -trimpath")}
	switch _, err := exec.LookPath("ip"); {
	case runtime.GOOS != "linux":
		m.alone = "network namespaces are Linux's"
	case os.Getuid() != 0:
		m.alone = "making network namespaces needs root"
	case err != nil && !install:
		m.alone = "ip is missing (iproute2)"
	}
	return m, os.MkdirAll(logs, 0o755)
}

// outcome is the result of a job.
type outcome struct {
	results []result
	err     error
	took    time.Duration
	cpu     time.Duration // of it and all that it started and waited for
	log     string
	tail    []string
}

// excerptEnds is how many lines of a failed test's output are printed, of the first and of the last ones.
var excerptEnds = [2]int{40, 40}

// excerpt returns the part of a failed job's output to print: that of the failed tests, or else the last lines.
func (o *outcome) excerpt() string {
	var b strings.Builder
	for _, r := range o.results {
		if r.verdict == "FAIL" {
			lines := strings.Split(strings.TrimRight(r.output, "\n"), "\n")
			if n := len(lines); n > excerptEnds[0]+excerptEnds[1] { // what failed comes first, logs follow
				lines = slices.Concat(lines[:excerptEnds[0]], []string{"[...]"}, lines[n-excerptEnds[1]:])
			}
			fmt.Fprintf(&b, "--- FAIL: %s %s\n%s\n", r.pkg, r.name, strings.Join(lines, "\n"))
		}
	}
	b.WriteString(o.buildFaults())
	if b.Len() == 0 {
		b.WriteString(strings.Join(o.tail, "\n"))
	}
	return b.String()
}

// compilerLine is a line of a compiler about a fault.
var compilerLine = regexp.MustCompile(`(?m)^\S+\.go:\d+:\d+: .*$`)

// buildFaults returns what the compiler has written about packages that could not be built, which is no result of a test.
func (o *outcome) buildFaults() string {
	b, err := os.ReadFile(o.log)
	if err != nil || !bytes.Contains(b, []byte("[build failed]")) {
		return ""
	}
	return string(bytes.Join(compilerLine.FindAll(b, 50), []byte("\n"))) + "\n"
}

// execute runs a job. When ctx ends it sends SIGTERM, and after ten seconds kills the job and all that it has started.
func (m *machine) execute(ctx context.Context, j *job) (o outcome) {
	begin := time.Now()
	defer func() { o.took = time.Since(begin) }()
	name := strings.ReplaceAll(strings.TrimSuffix(j.stage.name+"-"+j.name, "-"), "/", "-")
	o.log = filepath.Join(logs, name+".log")
	file, err := os.Create(o.log)
	if err != nil {
		o.err = err
		return o
	}
	defer file.Close()
	cmd := m.command(ctx, j)
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	p, done := newParser(), make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewReader(io.TeeReader(read, file))
		for {
			line, err := lines.ReadString('\n')
			if line = strings.TrimRight(line, "\r\n"); line != "" || err == nil {
				p.line(line)
				if o.tail = append(o.tail, line); len(o.tail) > 60 {
					o.tail = o.tail[1:]
				}
			}
			if err != nil {
				return
			}
		}
	}()
	if o.err = cmd.Start(); o.err == nil {
		j.pid.Store(int64(cmd.Process.Pid))
		o.err = cmd.Wait()
	}
	write.Close()
	<-done
	o.results = p.results
	if o.err != nil {
		o.results = append(o.results, p.unfinished()...)
	}
	if s := cmd.ProcessState; s != nil {
		o.cpu = s.UserTime() + s.SystemTime()
		endSession(s.Pid())
	}
	return o
}

// command returns the program of a job, in its own session, by which endSession finds what it leaves behind.
func (m *machine) command(ctx context.Context, j *job) *exec.Cmd {
	args, attr := j.args, &syscall.SysProcAttr{Setsid: true}
	if j.apart && m.alone == "" {
		args = append([]string{"sh", "-c", `ip link set lo up && exec "$0" "$@"`}, args...)
		setApart(attr)
	}
	if j.idle {
		if path, err := exec.LookPath("chrt"); err == nil {
			args = append([]string{path, "--idle", "0"}, args...)
		} else {
			args = append([]string{"nice", "-n", "19"}, args...)
		}
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = filepath.Join(m.root, j.dir)
	cmd.Env = append(append(os.Environ(), m.env...), j.env...)
	cmd.SysProcAttr = attr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// endSession kills the remaining processes of a session: programs that a test started and did not end.
func endSession(id int) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		// The fields after the name, which is in parentheses: state, parent, group, session.
		fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if len(fields) < 4 || string(fields[3]) != strconv.Itoa(id) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// output runs a short command and returns what it prints.
func (m *machine) output(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), m.env...)
	cmd.Dir = m.root
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
