package gateways

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/keyward/keyward/internal/lab"
)

// pod is a program with its own network address and root folder, as in a container.
type pod struct {
	Name    string
	Host    string // its host's name in the network
	Command []string
	Env     []string
	User    int               // user and group; 0: root
	Mounts  map[string]string // files and folders by their paths in the pod; an empty value is an empty, writable folder
	Space   string            // its namespace; start sets it
	System  bool              // the pod sees the machine's shared libraries and programs

	process *lab.Process
}

// start starts the pod's program. Its output is in the log of that name.
func (p *pod) start() error {
	p.Space = namespace
	spec, err := json.Marshal(p)
	if err != nil {
		return err
	}
	path := file("pods", p.Name+".json")
	if err := os.WriteFile(path, spec, 0o600); err != nil {
		return err
	}
	if err := os.MkdirAll(p.root(), 0o755); err != nil {
		return err
	}
	p.process, err = lab.StartProcess(file("log"), lab.Spec{
		Name: p.Name, Path: "/proc/self/exe", Args: []string{path}, Env: []string{stageVar + "=" + stagePod, "KEYWARD_GATEWAYS_WORK=" + work},
	})
	return err
}

func (p *pod) root() string { return file("pods", p.Name) }

// stop sends SIGTERM and waits. It does nothing if p is nil.
func (p *pod) stop(grace time.Duration) error {
	if p == nil || p.process == nil {
		return nil
	}
	return p.process.Stop(grace)
}

// await waits until ready returns no error. It returns an error if the pod ends before.
func (p *pod) await(ctx context.Context, what string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return lab.Await(ctx, what+" of "+p.Name, func(ctx context.Context) error {
		if !p.process.Running() {
			return fmt.Errorf("%s has ended: %s", p.Name, p.process.Tail(5000))
		}
		return ready(ctx)
	})
}

// awaitPort waits until the pod accepts connections to an address.
func (p *pod) awaitPort(ctx context.Context, address string) error {
	return p.await(ctx, "port "+address, func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// awaitPage waits until a page of the pod, such as that of its readiness probe, is there.
func (p *pod) awaitPage(ctx context.Context, page string) error {
	return p.await(ctx, page, func(ctx context.Context) error {
		_, err := lab.Get(ctx, "http://"+page)
		return err
	})
}

// run runs a program in the running pod, as its user, and waits until it ends.
func (p *pod) run(command []string) error {
	cmd := exec.Command("/proc/self/exe", append([]string{fmt.Sprintf("%d:%d", p.process.PID(), p.User)}, command...)...)
	cmd.Env = append(slices.Clone(p.Env), stageVar+"="+stageHook)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %v: %w: %s", p.Name, command, err, out)
	}
	return nil
}

// enterRunning replaces this process with a program in a pod. where is the process and the user of the pod.
func enterRunning(where string, command []string) error {
	runtime.LockOSThread()
	var pid, user int
	if _, err := fmt.Sscanf(where, "%d:%d", &pid, &user); err != nil {
		return err
	}
	dir := fmt.Sprintf("/proc/%d/", pid)
	root, err := os.Open(dir + "root")
	if err != nil {
		return err
	}
	mounts, err := os.Open(dir + "ns/mnt")
	if err != nil {
		return err
	}
	network, err := os.Open(dir + "ns/net")
	if err != nil {
		return err
	}
	if err := errors.Join(
		unix.Setns(int(network.Fd()), unix.CLONE_NEWNET),
		unix.Unshare(unix.CLONE_FS), // the mounts of a thread that shares its folders cannot be changed
		unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS),
		unix.Fchdir(int(root.Fd())), unix.Chroot("."), unix.Chdir("/"),
		syscall.Setgroups(nil), syscall.Setgid(user), syscall.Setuid(user),
	); err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", command[0], syscall.Exec(command[0], command, os.Environ()))
}

// enterPod replaces this process with the program of the pod in a file.
func enterPod(path string) error {
	runtime.LockOSThread()
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var p pod
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	if err := p.enterNetwork(); err != nil {
		return fmt.Errorf("pod %s: network: %w", p.Name, err)
	}
	if err := p.enterRoot(); err != nil {
		return fmt.Errorf("pod %s: root folder: %w", p.Name, err)
	}
	if p.User != 0 {
		if err := os.Stdout.Chmod(0o666); err != nil { // Envoy opens /dev/stdout for its access log
			return err
		}
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(p.User), syscall.Setuid(p.User)); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", p.Command[0], syscall.Exec(p.Command[0], p.Command, p.Env))
}

func (p *pod) enterNetwork() error {
	ns, err := os.Open("/run/netns/" + p.Host)
	if err != nil {
		return err
	}
	defer ns.Close()
	return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
}

// enterRoot builds the pod's root folder in memory, in a new mount namespace, and makes it the root of this process.
func (p *pod) enterRoot() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	root := p.root()
	if err := errors.Join(
		unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755"),
	); err != nil {
		return err
	}
	binds := map[string]string{"/dev": "/dev", "/proc": "/proc"}
	if p.System {
		for _, dir := range []string{"/usr", "/lib", "/lib64", "/bin", "/sbin"} {
			binds[dir] = dir
		}
	}
	for to, from := range p.Mounts {
		binds[to] = from
	}
	for to, from := range binds {
		if err := bind(from, filepath.Join(root, to), p.User); err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
	}
	if err := unix.Mount("tmpfs", filepath.Join(root, "dev/shm"), "tmpfs", 0, "mode=1777"); err != nil { // Envoys of other pods use the same names
		return err
	}
	if err := p.writeEtc(filepath.Join(root, "etc")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, "tmp"), 0o777); err != nil {
		return err
	}
	return errors.Join(unix.Chroot(root), unix.Chdir("/"))
}

// bind shows a file or folder of the machine at another path. Symbolic links are copied. An empty from makes a folder that the
// user may write.
func bind(from, to string, user int) error {
	if from == "" {
		return errors.Join(os.MkdirAll(to, 0o755), os.Chown(to, user, user))
	}
	info, err := os.Lstat(from)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil // the machine's layout lacks it
	case err != nil:
		return err
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case info.IsDir():
		err = os.MkdirAll(to, 0o755)
	default:
		err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, nil, 0o644))
	}
	if err != nil {
		return err
	}
	return unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
}

// writeEtc writes the files by which programs resolve names, as a kubelet does.
func (p *pod) writeEtc(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	for name, text := range map[string]string{
		"hosts":         "127.0.0.1 localhost\n",
		"hostname":      p.Name + "\n",
		"resolv.conf":   "nameserver " + bridgeIP + "\nsearch " + strings.Join([]string{p.Space + ".svc." + clusterDomain, "svc." + clusterDomain, clusterDomain}, " ") + "\noptions ndots:5\n",
		"nsswitch.conf": "hosts: files dns\n",
		"passwd":        "root:x:0:0::/:/bin/false\nnobody:x:65534:65534::/:/bin/false\n",
	} {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return errors.Join(errs...)
}
