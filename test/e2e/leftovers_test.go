package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/keyward/keyward/internal/lab"
)

// A demo that gets a signal while it starts, at any time, and what it may leave behind: processes in whose
// environment its folder for temporary files is named, and files in there.
type demo struct {
	cmd *exec.Cmd
	tty *os.File // the terminal's other end
	tmp string

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

var started int

// startDemo starts a command on a terminal of its own and waits until it has written what is wanted. Every other one begins with SIGHUP ignored, as
// in the background of some machines.
func startDemo(t *testing.T, want string, command ...string) *demo {
	t.Helper()
	started++
	sig := [...]string{"--default-signal=HUP", "--ignore-signal=HUP"}[started%2]
	d := &demo{tmp: t.TempDir(), cmd: exec.Command("env", append([]string{sig}, command...)...)}
	d.cmd.Env = append(os.Environ(), "TMPDIR="+d.tmp, "ENVOY_BIN="+envoyBinary(t), "TERM=xterm")
	tty, screen := terminal(t)
	defer screen.Close()
	d.tty, d.cmd.Stdin, d.cmd.Stdout, d.cmd.Stderr = tty, screen, screen, screen
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = d.cmd.Wait() }()
	go d.read()
	t.Cleanup(func() {
		for _, p := range d.left() {
			pid, _, _ := strings.Cut(p, " ")
			n, _ := strconv.Atoi(pid)
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
		tty.Close()
		<-ended
	})
	d.shows(t, want)
	return d
}

// terminal makes a pseudo-terminal and opens both of its ends.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := master.SyscallConn() // Fd would have Close wait until there is something to read
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := conn.Control(func(fd uintptr) {
		if n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err == nil {
			err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// read keeps what is written to the terminal, until it is closed.
func (d *demo) read() {
	b := make([]byte, 4096)
	for {
		n, err := d.tty.Read(b)
		if err != nil {
			return
		}
		d.mu.Lock()
		d.out.Write(b[:n])
		d.mu.Unlock()
	}
}

func (d *demo) shows(t *testing.T, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := lab.Await(ctx, want, func(context.Context) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !strings.Contains(d.out.String(), want) {
			return fmt.Errorf("written so far:\n%s", d.out.String())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// left is the processes that run with the demo's folder in their environment, as "pid command".
func (d *demo) left() (found []string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		env, err := os.ReadFile(p + "/environ")
		if err == nil && bytes.Contains(env, []byte("TMPDIR="+d.tmp+"\x00")) {
			command, _ := os.ReadFile(p + "/cmdline")
			found = append(found, filepath.Base(p)+" "+strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return found
}

// process is the id of the first process whose command begins with the text.
func (d *demo) process(t *testing.T, text string) int {
	t.Helper()
	for _, p := range d.left() {
		pid, command, _ := strings.Cut(p, " ")
		if strings.HasPrefix(command, text) {
			n, _ := strconv.Atoi(pid)
			return n
		}
	}
	t.Fatalf("no %q among %q", text, d.left())
	return 0
}

// ends waits until no process is left whose command begins with the text.
func (d *demo) ends(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, text+" to end", func(context.Context) error {
		for _, p := range d.left() {
			if _, command, _ := strings.Cut(p, " "); strings.HasPrefix(command, text) {
				return fmt.Errorf("%s runs", p)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// leavesNothing waits until nothing of the demo is left, and says how long that took.
func (d *demo) leavesNothing(t *testing.T) {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "nothing to be left", func(context.Context) error {
		files, err := os.ReadDir(d.tmp)
		if left := d.left(); err != nil || len(left)+len(files) > 0 {
			return fmt.Errorf("processes %q, files %v, %w", left, files, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("nothing is left after %v", time.Since(begin).Round(10*time.Millisecond))
}

// TestDemoLeavesNothing: whatever ends a demo, its processes and folders end with it, in all stages of its life and with make or a
// script between it and the terminal.
func TestDemoLeavesNothing(t *testing.T) {
	program := filepath.Join(bin(t), "keyward")
	makefile := filepath.Join(t.TempDir(), "Makefile")
	if err := os.WriteFile(makefile, []byte("demo:\n\t@ENVOY_BIN=\"$$(echo \"$$ENVOY_BIN\")\" exec "+program+" demo\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	alone, byMake, byScript := []string{program, "demo"}, []string{"make", "-f", makefile, "demo"}, []string{"sh", "-c", program + " demo; exit $?"}
	const members, traffic = "started xds", "[q] quit"
	signal := func(s syscall.Signal, to string) func(*testing.T, *demo) {
		return func(t *testing.T, d *demo) { _ = syscall.Kill(d.process(t, to), s) }
	}
	closed := func(_ *testing.T, d *demo) { d.tty.Close() }
	keys := func(t *testing.T, d *demo, text string) {
		t.Helper()
		if _, err := d.tty.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		command []string
		stage   string
		end     func(*testing.T, *demo)
	}{
		{"terminal closed", alone, traffic, closed},
		{"terminal closed at the start", alone, members, closed},
		{"terminal closed on make", byMake, members, closed},
		{"terminal closed on a script", byScript, members, closed},
		{"SIGKILL", alone, traffic, signal(syscall.SIGKILL, program+" demo")},
		{"SIGTERM", alone, members, signal(syscall.SIGTERM, program+" demo")},
		{"SIGHUP", alone, members, signal(syscall.SIGHUP, program+" demo")},
		{"SIGQUIT", alone, members, signal(syscall.SIGQUIT, program+" demo")},
		{"SIGKILL of make", byMake, members, signal(syscall.SIGKILL, "make -f")},
		{"SIGKILL of make in a shell that lives on", []string{"sh", "-c", "make -f " + makefile + " demo; sleep 1000"}, members, func(t *testing.T, d *demo) {
			_ = syscall.Kill(d.process(t, "make -f"), syscall.SIGKILL)
			d.ends(t, program)
			d.tty.Close()
		}},
		{"SIGTERM of make", byMake, members, signal(syscall.SIGTERM, "make -f")},
		{"SIGKILL of a script", byScript, members, signal(syscall.SIGKILL, "sh -c "+program)},
		{"Ctrl-C", alone, traffic, func(t *testing.T, d *demo) { keys(t, d, "\x03") }},
		{"Ctrl-C twice", alone, traffic, func(t *testing.T, d *demo) { keys(t, d, "\x03\x03") }},
		{"Ctrl-C, and again while it stops", alone, traffic, func(t *testing.T, d *demo) {
			keys(t, d, "\x03")
			d.shows(t, "stopping Envoy")
			keys(t, d, "\x03")
		}},
		{"Ctrl-C twice on make", byMake, members, func(t *testing.T, d *demo) { keys(t, d, "\x03\x03") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := startDemo(t, tt.stage, tt.command...)
			if len(d.left()) < 5 { // three sidecars, xds, the demo
				t.Fatalf("running: %q", d.left())
			}
			tt.end(t, d)
			d.leavesNothing(t)
		})
	}
}

// TestDemoOutlivesItsShell: with nohup the demo goes on when its terminal and its shell have gone.
func TestDemoOutlivesItsShell(t *testing.T) {
	program, log := filepath.Join(bin(t), "keyward"), filepath.Join(t.TempDir(), "log")
	d := startDemo(t, "begun", "sh", "-c", "nohup "+program+" demo --for 1h </dev/null >"+log+" 2>&1 & echo begun; wait")
	written := func(want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := lab.Await(ctx, want, func(context.Context) error {
			if b, err := os.ReadFile(log); !bytes.Contains(b, []byte(want)) {
				return fmt.Errorf("%s, %w", b, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	written("started sidecar-a")
	pid := d.process(t, program+" demo")
	d.tty.Close()
	_ = syscall.Kill(pid, syscall.SIGHUP)
	written("API KEY") // Envoy has started, seconds later, and traffic flows
	_ = syscall.Kill(pid, syscall.SIGTERM)
	d.leavesNothing(t)
}
