package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/test/kube/apiserver"
)

// Addresses inside the network namespace.
const (
	nodeIP     = "10.250.0.1" // the node's, and the cluster's name server's
	podRange   = "10.244.0.0/24"
	podGateway = "10.244.0.1"
	serviceNet = apiserver.ServiceNet
	apiAddress = "https://127.0.0.1:" + apiserver.Port
	crSocket   = "/run/containerd/containerd.sock"
	adminToken = apiserver.Token
)

// servers lists what runs, in the order of its start.
var servers []*lab.Process

// runTests starts the cluster, brings the images in and runs the tests.
func runTests(m *testing.M) (code int, err error) {
	begin := time.Now()
	defer func() {
		if code != 0 || err != nil {
			fmt.Printf("test/kube: what the servers said is in %s\n", filepath.Join(work, "servers"))
		}
		stopServers()
	}()
	if err := startCluster(); err != nil {
		return 1, err
	}
	fmt.Printf("test/kube: a cluster of one node was Ready after %.1f s\n", time.Since(begin).Seconds())
	go keepLogs()
	begin = time.Now()
	if err := bringImages(); err != nil {
		return 1, err
	}
	fmt.Printf("test/kube: images were imported in %.1f s\n", time.Since(begin).Seconds())
	return m.Run(), nil
}

// keepLogs gives what pods say a second name under logs, for the kubelet deletes it with the pod.
func keepLogs() {
	const from = "log/pods"
	for range time.Tick(500 * time.Millisecond) {
		_ = filepath.WalkDir(file(from), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil //nolint:nilerr // the pod is gone
			}
			to := file("logs", strings.TrimPrefix(path, file(from)))
			if os.MkdirAll(filepath.Dir(to), 0o755) == nil {
				_ = os.Link(path, to)
			}
			return nil
		})
	}
}

// stopServers ends them; what they leave behind ends with the namespaces.
func stopServers() {
	for _, p := range servers {
		_ = p.Signal(syscall.SIGKILL)
	}
}

func file(parts ...string) string { return filepath.Join(append([]string{work}, parts...)...) }

// startCluster returns when the node is Ready.
func startCluster() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	for _, step := range []func(context.Context) error{prepareNetwork, writeFiles, startServers, awaitReady} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepareNetwork gives the node an address that is not loopback, which the kubelet insists on, and a route for what leaves pods.
func prepareNetwork(ctx context.Context) error {
	for _, line := range []string{
		"ip link set lo up",
		"ip link add br-node type bridge",
		"ip addr add " + nodeIP + "/24 dev br-node",
		"ip link set br-node up",
		"ip route add default dev br-node",
	} {
		if _, err := run(ctx, strings.Fields(line)...); err != nil {
			return err
		}
	}
	settings := []string{"/proc/sys/net/ipv4/ip_forward"}
	// Without it pods of one node reach each other past iptables, and no Service has an address there. The kernel may lack it.
	if bridged := "/proc/sys/net/bridge/bridge-nf-call-iptables"; exists(bridged) {
		settings = append(settings, bridged)
	}
	for _, s := range settings {
		if err := os.WriteFile(s, []byte("1"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// run runs a command to its end; its output is part of the error.
func run(ctx context.Context, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s%s", strings.Join(command, " "), err, out, stderr.String())
	}
	return string(out), nil
}

func start(name, program string, args ...string) error {
	p, err := lab.StartProcess(file("servers"), lab.Spec{Name: name, Path: program, Args: args, Env: []string{"KUBECONFIG=" + file("kubeconfig")}})
	if err == nil {
		servers = append(servers, p)
	}
	return err
}

func startServers(ctx context.Context) error {
	kubeconfig := "--kubeconfig=" + file("kubeconfig")
	begin := []func() error{
		func() error { return start("containerd", "containerd", "--config", file("containerd.toml")) },
		func() error {
			started, err := apiserver.Start(work, file("servers"), tool("kube-apiserver"), nodeIP)
			servers = append(servers, started...)
			return err
		},
		func() error { return await(ctx, "the API server", answersReady) },
		func() error {
			return start("kube-controller-manager", tool("kube-controller-manager"), kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1",
				"--service-account-private-key-file="+file("accounts.key"), "--root-ca-file="+file("certs", "apiserver.crt"))
		},
		func() error {
			return start("kube-scheduler", tool("kube-scheduler"), kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1")
		},
		func() error { // without --node-ip it would look its name up, in vain and for seconds, at every status it writes
			return start("kubelet", tool("kubelet"), kubeconfig, "--config="+file("kubelet.yaml"), "--hostname-override=node", "--node-ip="+nodeIP)
		},
		func() error {
			return start("kube-proxy", tool("kube-proxy"), kubeconfig, "--hostname-override=node", "--proxy-mode=iptables", "--cluster-cidr="+podRange,
				"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
		},
		func() error {
			return start("events", "ctr", "--address", crSocket, "events") // for the tests to read when what started and ended
		},
		func() error { return start("coredns", tool("coredns"), "-conf", file("Corefile")) },
	}
	for _, step := range begin {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func tool(name string) string { return filepath.Join(binaries, name) }

func answersReady(ctx context.Context) error {
	_, err := kubectl(ctx, "get", "--raw", "/readyz")
	return err
}

// awaitReady waits for the node and for the account that pods need.
func awaitReady(ctx context.Context) error {
	return await(ctx, "the node", func(ctx context.Context) error {
		if err := running(); err != nil {
			return errors.Join(errEnded, err)
		}
		ready, err := kubectl(ctx, "get", "node", "node", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && ready != "True" {
			err = fmt.Errorf("Ready is %q", ready)
		}
		if err == nil {
			_, err = kubectl(ctx, "get", "serviceaccount", "default")
		}
		return err
	})
}

var errEnded = errors.New("a server has ended")

func running() error {
	for _, p := range servers {
		if !p.Running() {
			return fmt.Errorf("%s ended: %s", p.Name, p.Tail(2000))
		}
	}
	return nil
}

// await tries until it succeeds or the context ends; then the last error of a try that was not cut short is the reason.
func await(ctx context.Context, what string, try func(context.Context) error) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := try(ctx)
		if err == nil || errors.Is(err, errEnded) {
			return err
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; at last: %w", what, ctx.Err(), last)
		case <-tick.C:
		}
	}
}

// kubectl runs it as the administrator.
func kubectl(ctx context.Context, args ...string) (string, error) {
	return run(ctx, append([]string{tool("kubectl"), "--kubeconfig=" + file("kubeconfig")}, args...)...)
}
