// Package kube installs the chart on a real Kubernetes of one node and watches what becomes of requests: API server, controllers, scheduler,
// kubelet, kube-proxy and containerd are the real programs, in namespaces of their own that end with the tests. `make kube` runs it.
package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/keyward/keyward/internal/lab"
)

// The test program runs three times over, each started by the one before.
const (
	stageVar = "KEYWARD_KUBE_STAGE"
	stageOne = "init"  // process 1 of the new namespaces: prepares mounts and collects ended processes
	stageTwo = "tests" // runs the cluster and the tests
)

// binaries is the folder of what scripts/kube has built; images that of what goes into images; work is for everything the cluster writes.
var (
	binaries = os.Getenv("KEYWARD_KUBE_BIN")
	images   = os.Getenv("KEYWARD_KUBE_IMAGES")
	work     = os.Getenv("KEYWARD_KUBE_WORK")

	modules = os.Getenv("KEYWARD_MODULES") // folder of the dynamic module's files; empty if there is none

	definitions = os.Getenv("KEYWARD_DEFINITIONS") // folder of the gateways' CustomResourceDefinitions
)

func TestMain(m *testing.M) {
	if binaries == "" {
		fmt.Println("test/kube: skipped: `make kube` builds a Kubernetes and runs these tests")
		return
	}
	code, err := 0, error(nil)
	switch os.Getenv(stageVar) {
	case stageOne:
		code, err = initialise()
	case stageTwo:
		code, err = runTests(m)
	default:
		code, err = enclose()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/kube:", err)
		code = 1
	}
	os.Exit(code)
}

// global names the settings of the whole machine that a kubelet changes.
var global = []string{"/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/panic", "/proc/sys/kernel/panic_on_oops"}

// enclose runs the tests in namespaces of their own, so that no address, mount or process of theirs is left when they end, however they end.
// Three settings and the control groups belong to the whole machine and are put back.
func enclose() (int, error) {
	runtime.LockOSThread() // for the kernel the parent is a thread
	before := make([][]byte, len(global))
	for i, file := range global {
		b, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		before[i] = b
	}
	defer func() {
		for i, file := range global {
			_ = os.WriteFile(file, before[i], 0o644)
		}
	}()
	group := "keyward-kube-" + strconv.Itoa(os.Getpid())
	if err := makeGroups(group); err != nil {
		return 0, err
	}
	defer removeGroups(group)
	const apart = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	cmd := again(stop, stageOne, groupVar+"="+group)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: apart, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// again is this program in its next stage.
func again(ctx context.Context, stage string, env ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(append(os.Environ(), stageVar+"="+stage), env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// initialise is process 1. /run, /var/lib and /var/log of the machine are hidden: what containerd, the kubelet and CNI write there by
// default is of this run alone.
func initialise() (int, error) {
	for _, dir := range []string{"lib", "log"} {
		if err := os.MkdirAll(filepath.Join(work, dir), 0o755); err != nil {
			return 0, err
		}
	}
	resolv := filepath.Join(work, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver "+nodeIP+"\n"), 0o644); err != nil {
		return 0, err
	}
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"none", "/", "", syscall.MS_REC | syscall.MS_PRIVATE},
		{"none", "/", "", syscall.MS_REC | syscall.MS_SHARED}, // containers see the volumes that the kubelet mounts
		{"proc", "/proc", "proc", 0},
		{"tmpfs", "/run", "tmpfs", 0},
		{filepath.Join(work, "lib"), "/var/lib", "", syscall.MS_BIND},
		{filepath.Join(work, "log"), "/var/log", "", syscall.MS_BIND},
		{resolv, "/etc/resolv.conf", "", syscall.MS_BIND},
	} {
		if err := syscall.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return 0, fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	cmd := again(context.Background(), stageTwo)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return lab.Reap(cmd.Process.Pid)
}

// groupVar names the environment variable with the control group that all pods are in.
const groupVar = "KEYWARD_KUBE_GROUP"

// hierarchies lists where control groups are mounted: one folder each in version 1, one in all in version 2.
func hierarchies() ([]string, error) {
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && (f[2] == "cgroup" || f[2] == "cgroup2") {
			dirs = append(dirs, f[1])
		}
	}
	return dirs, nil
}

// makeGroups makes the group in which all pods are. It weighs as much as sixteen processes outside: else a busy machine's other processes
// would each get as much time as all pods together.
func makeGroups(name string) error {
	dirs, err := hierarchies()
	for _, dir := range dirs {
		err = errors.Join(err, os.Mkdir(filepath.Join(dir, name), 0o755))
		for file, weight := range map[string]string{"cpu.shares": "16384", "cpu.weight": "1600"} { // versions 1 and 2
			if path := filepath.Join(dir, name, file); exists(path) {
				err = errors.Join(err, os.WriteFile(path, []byte(weight), 0o644))
			}
		}
	}
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// removeGroups removes a control group with all below it, the deepest first. Their processes have ended.
func removeGroups(name string) {
	dirs, _ := hierarchies()
	for _, dir := range dirs {
		var all []string
		_ = filepath.WalkDir(filepath.Join(dir, name), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for _, path := range slices.Backward(all) {
			_ = syscall.Rmdir(path)
		}
	}
}
