// Package gateways runs the control planes of real gateways with their Envoys and Keyward behind them, and applies the same
// cases to each. `make gateways` runs it.
//
// A run has its own network, mount and process namespaces, which end with it, however it ends. In them, each program has the
// network address and the files that it would have in a pod.
package gateways

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/keyward/keyward/internal/lab"
)

// The test program runs once for each stage.
const (
	stageVar   = "KEYWARD_GATEWAYS_STAGE"
	stageInit  = "init"  // process 1 of the new namespaces: prepares mounts and reaps ended processes
	stageTests = "tests" // runs the gateways and the tests
	stageHook  = "hook"  // enters a running pod and executes another program there
	stagePod   = "pod"   // enters the namespaces and the root folder of a pod and executes its program
)

// The runner, scripts/gateways, sets these.
var (
	programs = os.Getenv("KEYWARD_GATEWAYS_BIN")  // folder of Keyward's programs
	work     = os.Getenv("KEYWARD_GATEWAYS_WORK") // folder for all that a run writes
)

// long reports whether the tests may take minutes.
func long() bool { return os.Getenv("KEYWARD_LONG") != "" }

func TestMain(m *testing.M) {
	flag.Parse()
	stage := os.Getenv(stageVar)
	if stage == "" {
		if why := missing(); why != "" {
			fmt.Println("test/gateways: skipped:", why)
			if os.Getenv("KEYWARD_REQUIRE") == "all" && programs != "" {
				os.Exit(1)
			}
			return
		}
	}
	code, err := 0, error(nil)
	switch stage {
	case stageInit:
		code, err = initialize()
	case stageTests:
		code, err = runTests(m)
	case stageHook:
		err = enterRunning(os.Args[1], os.Args[2:])
	case stagePod:
		err = enterPod(os.Args[1])
	default:
		code, err = enclose()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/gateways:", err)
		code = 1
	}
	os.Exit(code)
}

// missing returns why the tests cannot run, or an empty string.
func missing() string {
	switch {
	case programs == "" || work == "":
		return "`make gateways` builds the gateways and runs these tests"
	case runtime.GOOS != "linux":
		return "network namespaces need Linux"
	case os.Getuid() != 0:
		return "network namespaces need root"
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return "ip is missing (iproute2)"
	}
	return ""
}

// enclose runs the tests in new namespaces.
func enclose() (int, error) {
	runtime.LockOSThread() // the kernel kills the child when this thread ends
	const apart = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	cmd := again(stop, stageInit)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: apart, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// again returns this program in another stage.
func again(ctx context.Context, stage string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stageVar+"="+stage)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// initialize is process 1.
func initialize() (int, error) {
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"none", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0}, // ip keeps the names of network namespaces there
	} {
		if err := syscall.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return 0, fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	cmd := again(context.Background(), stageTests)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return lab.Reap(cmd.Process.Pid)
}

// runTests prepares the network and runs the tests.
func runTests(m *testing.M) (int, error) {
	for _, dir := range []string{"log", "pods", "files"} {
		if err := os.MkdirAll(file(dir), 0o755); err != nil {
			return 1, err
		}
	}
	if err := prepareNetwork(); err != nil {
		return 1, err
	}
	code := m.Run()
	printTable()
	if code != 0 {
		return code, nil
	}
	return 0, checkTable()
}

// file returns a path below the folder of this run.
func file(parts ...string) string { return filepath.Join(append([]string{work}, parts...)...) }
