package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program that was started. Its output goes to a log file. Exited reports its end.
type Process struct {
	Name   string
	Log    string // path of the log file
	cmd    *exec.Cmd
	exited chan struct{}
	mu     sync.Mutex
	err    error // guarded by mu; set before exited is closed
}

// Spec describes a program to start.
type Spec struct {
	Name string
	Path string   // the program
	Args []string // its arguments
	Env  []string // KEY=VALUE, added to a small clean environment
	Dir  string   // working directory
}

// StartProcess starts a program with its output in logDir. The program is killed when this process ends, however it
// ends.
func StartProcess(logDir string, s Spec) (*Process, error) {
	p := &Process{Name: s.Name, Log: filepath.Join(logDir, s.Name+".log"), exited: make(chan struct{})}
	out, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	p.cmd = exec.Command(s.Path, s.Args...)
	p.cmd.Dir = s.Dir
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}, s.Env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = child()
	if err := p.start(); err != nil {
		out.Close()
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	go func() {
		err := p.cmd.Wait()
		leftovers.forget(p.PID())
		out.Close()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(p.exited)
	}()
	return p, nil
}

// start starts the process so that it ends with this one.
func (p *Process) start() (err error) {
	onLastingThread(func() { err = p.cmd.Start() })
	if err != nil {
		return err
	}
	if err := leftovers.know(p.PID()); err != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		return err
	}
	return nil
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Running reports whether the process has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// ExitCode returns the exit code, or -1 while the process runs or if a signal ended it.
func (p *Process) ExitCode() int {
	if p.Running() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal. It returns an error if the process has ended.
func (p *Process) Signal(s syscall.Signal) error {
	if !p.Running() {
		return fmt.Errorf("%s has ended", p.Name)
	}
	return p.cmd.Process.Signal(s)
}

// Pause stops the process with SIGSTOP until it gets SIGCONT. It waits until all threads have stopped: until then
// they may answer.
func (p *Process) Pause() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for range 1000 {
		if p.isStopped() {
			return nil
		}
		<-time.After(5 * time.Millisecond)
	}
	return fmt.Errorf("%s does not stand still 5 s after SIGSTOP", p.Name)
}

// isStopped reports whether all threads of the process are stopped.
func (p *Process) isStopped() bool {
	stats, err := filepath.Glob("/proc/" + strconv.Itoa(p.PID()) + "/task/*/stat")
	for _, f := range stats {
		stat, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue // the thread has ended
		}
		// The state follows the name in parentheses, see proc_pid_stat(5).
		if _, rest, ok := bytes.Cut(stat, []byte(") ")); err != nil || !ok || len(rest) == 0 || rest[0] != 'T' {
			return false
		}
	}
	return err == nil && len(stats) > 0
}

// Stop sends SIGTERM and waits. After the grace period it kills the process and returns an error.
func (p *Process) Stop(grace time.Duration) error {
	if !p.Running() {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		return nil
	case <-time.After(grace):
		p.Kill()
		return fmt.Errorf("%s did not stop within %s and was killed: see %s", p.Name, grace, p.Log)
	}
}

// Kill ends the process with SIGKILL, as a crash would, and waits for it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// CPU returns the user and system time of the process.
func (p *Process) CPU() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("cpu time of %s: %w", p.Name, err)
	}
	// The name in parentheses may contain blanks; utime and stime are the 14th and 15th fields of proc_pid_stat(5).
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	u, err1 := strconv.ParseInt(f[11], 10, 64)
	s, err2 := strconv.ParseInt(f[12], 10, 64)
	const ticksPerSecond = 100 // USER_HZ, fixed on every Linux that Go runs on
	return time.Duration(u+s) * time.Second / ticksPerSecond, errors.Join(err1, err2)
}

// RSS returns the resident memory in bytes.
func (p *Process) RSS() (int64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID()) + "/statm")
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.Name, err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// Tail returns the end of the log, for error messages.
func (p *Process) Tail(n int64) string {
	f, err := os.Open(p.Log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err == nil && end > n {
		_, _ = f.Seek(-n, io.SeekEnd)
	} else {
		_, _ = f.Seek(0, io.SeekStart)
	}
	b, _ := io.ReadAll(f)
	return string(b)
}
