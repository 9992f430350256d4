//go:build linux

package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The tests start their own program again as the process whose end is watched.
const parentMode = "KEYWARD_LAB_TEST_PARENT"

func TestMain(m *testing.M) {
	if mode := os.Getenv(parentMode); mode != "" {
		if err := parent(mode); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}

// parent starts a process that has a child, creates a folder with a busy writer in it, prints them, and ends in the
// given way.
func parent(mode string) error {
	if mode == "network" {
		return parentOfNetwork()
	}
	dir, err := TempDir("lab-test-")
	if err != nil {
		return err
	}
	family := Spec{Name: "family", Path: "sh", Dir: dir, Args: []string{"-c", "sleep 1000 & while :; do echo >$$; mkdir -p a/$$; done"}}
	first := 0
	switch mode {
	case "shell alone": // as where the kernel does nothing
		cmd := exec.Command(family.Path, family.Args...)
		cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
		if err := leftovers.know(cmd.Process.Pid); err != nil {
			return err
		}
		first = cmd.Process.Pid
	case "kernel alone": // which knows nothing of grandchildren
		family.Args = []string{"-c", "exec sleep 1000"}
		fallthrough
	default:
		p, err := StartProcess(dir, family)
		if err != nil {
			return err
		}
		first = p.PID()
	}
	ended, err := StartProcess(dir, Spec{Name: "ended", Path: "true"})
	if err != nil {
		return err
	}
	<-ended.Exited()
	if mode == "kernel alone" {
		_ = leftovers.cmd.Process.Kill()
		_ = leftovers.cmd.Wait()
	}
	fmt.Println(dir, first, leftovers.cmd.Process.Pid)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	switch mode {
	case "End":
		End()
		select {} // and lives on
	case "panic":
		panic("out of something")
	}
	os.Exit(0)
	return nil
}

// parentOfNetwork makes a network with two hosts, says what it is called, and waits.
func parentOfNetwork() error {
	n, err := NewNetwork()
	if err == nil {
		err = errors.Join(n.add("a"), n.add("b"))
	}
	if err != nil {
		return err
	}
	fmt.Println(n.id)
	select {}
}

// TestNoNetworkIsLeft: the namespaces and devices of a process that was killed go after it.
func TestNoNetworkIsLeft(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), parentMode+"=network")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatalf("%v: %s", err, complaints.Bytes())
	}
	id = strings.TrimSpace(id)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := Await(ctx, "no network to be left", func(context.Context) error {
		spaces, err1 := exec.Command("ip", "netns", "list").Output()
		devices, err2 := exec.Command("ip", "-o", "link").Output()
		if all := string(spaces) + string(devices); strings.Contains(all, id) || err1 != nil || err2 != nil {
			return fmt.Errorf("%s: %w", all, errors.Join(err1, err2))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// family describes the processes and the folder of a parent.
type family struct {
	cmd   *exec.Cmd
	in    interface{ Close() error }
	dir   string
	pids  []int
	tmp   string
	mode  string
	shell int
}

func startFamily(t *testing.T, mode string) *family {
	t.Helper()
	f := &family{tmp: t.TempDir(), mode: mode, cmd: exec.Command("env", "--default-signal=HUP", os.Args[0])} // which nohup has all ignore
	f.cmd.Env = append(os.Environ(), parentMode+"="+mode, "TMPDIR="+f.tmp)
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := f.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaints bytes.Buffer
	f.cmd.Stderr = &complaints
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.cmd.Process.Kill(); _ = f.cmd.Wait() })
	f.in = in
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %s", err, complaints.Bytes())
	}
	var first int
	if _, err := fmt.Sscan(line, &f.dir, &first, &f.shell); err != nil {
		t.Fatalf("%v in %q", err, line)
	}
	f.pids = []int{first, f.shell}
	t.Cleanup(func() { // what a failed test has found
		if runs(first) {
			_ = syscall.Kill(-first, syscall.SIGKILL)
		}
	})
	return f
}

// gone waits until nothing of the family runs and its folder is away.
func (f *family) gone(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := Await(ctx, "nothing to be left", func(context.Context) error {
		for _, pid := range f.pids {
			if runs(pid) {
				return fmt.Errorf("%d runs", pid)
			}
		}
		if left, err := os.ReadDir(f.tmp); f.mode != "kernel alone" && (err != nil || len(left) > 0) {
			return fmt.Errorf("left: %v, %w", left, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// runs reports whether a process is there and is no zombie: in a container, no process may wait for orphans.
func runs(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, ok := bytes.Cut(stat, []byte(") "))
	return err == nil && ok && len(rest) > 0 && rest[0] != 'Z'
}

// TestNothingIsLeft: however a process ends, what it has started with this package and its temporary folders end with
// it.
func TestNothingIsLeft(t *testing.T) {
	kill := func(s syscall.Signal) func(*family) { return func(f *family) { _ = f.cmd.Process.Signal(s) } }
	tell := func(f *family) { _ = f.in.Close() }
	for _, tt := range []struct {
		name, mode string
		end        func(*family)
	}{
		{"SIGKILL", "both", kill(syscall.SIGKILL)},
		{"SIGHUP", "both", kill(syscall.SIGHUP)},
		{"SIGTERM", "both", kill(syscall.SIGTERM)},
		{"SIGKILL of the group", "both", func(f *family) { _ = syscall.Kill(-f.cmd.Process.Pid, syscall.SIGKILL) }},
		{"exit", "both", tell},
		{"panic", "panic", tell},
		{"End", "End", tell},
		{"the shell alone", "shell alone", kill(syscall.SIGKILL)},
		{"the kernel alone", "kernel alone", kill(syscall.SIGKILL)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := startFamily(t, tt.mode)
			if tt.mode != "kernel alone" {
				f.pids = append(f.pids, f.grandchild(t))
			}
			for _, pid := range f.pids {
				if !runs(pid) && pid != f.shell {
					t.Fatalf("%d does not run", pid)
				}
			}
			tt.end(f)
			f.gone(t)
		})
	}
}

// grandchild is the process that the first one has started.
func (f *family) grandchild(t *testing.T) (pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := Await(ctx, "a grandchild", func(context.Context) error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", f.pids[0], f.pids[0]))
		if err != nil {
			return err
		}
		for _, c := range strings.Fields(string(children)) {
			name, _ := os.ReadFile(filepath.Join("/proc", c, "comm"))
			if strings.TrimSpace(string(name)) == "sleep" {
				pid, err = strconv.Atoi(c)
				return err
			}
		}
		return fmt.Errorf("children %q", children)
	}); err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestProcessOutlivesItsStarter: what a goroutine has started lives on when its thread ends.
func TestProcessOutlivesItsStarter(t *testing.T) {
	var p *Process
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // and so the thread ends with the goroutine
		p, err = StartProcess(t.TempDir(), Spec{Name: "sleep", Path: "sleep", Args: []string{"1000"}})
	}()
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	for range 100 { // threads come and go
		done := make(chan struct{})
		go func() { defer close(done); runtime.LockOSThread() }()
		<-done
	}
	select {
	case <-p.Exited():
		t.Error("it has ended")
	default:
	}
	if !runs(p.PID()) {
		t.Error("it has ended")
	}
}
