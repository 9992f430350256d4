package kube

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// inside runs a command of this machine in the network namespace of a pod.
func inside(ctx context.Context, p object, command ...string) (string, error) {
	pid, err := processOf(ctx, p)
	if err != nil {
		return "", err
	}
	return run(ctx, append([]string{"nsenter", "--net=/proc/" + strconv.Itoa(pid) + "/ns/net", "--"}, command...)...)
}

// processOf is the process of one of the pod's running containers.
func processOf(ctx context.Context, p object) (int, error) {
	out, err := ctr(ctx, "tasks", "list")
	if err != nil {
		return 0, err
	}
	pids := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "RUNNING" {
			pids[f[0]] = f[1]
		}
	}
	for _, c := range p.containers() {
		if pid := pids[c.id()]; pid != "" {
			return strconv.Atoi(pid)
		}
	}
	return 0, fmt.Errorf("%s has no running container", p.Metadata.Name)
}

// ctr runs containerd's own client.
func ctr(ctx context.Context, args ...string) (string, error) {
	return run(ctx, append([]string{"ctr", "--address", crSocket, "--namespace", "k8s.io"}, args...)...)
}

// envoys reads the rate-limit statistics of all of a namespace's Envoys until it is stopped; those of pods that have ended stay as they were
// last seen.
type envoys struct {
	namespace string
	cancel    context.CancelFunc
	done      sync.WaitGroup

	mu   sync.Mutex
	seen map[string]map[string]int // by pod's UID: error, failure_mode_allowed, ok, over_limit, upstream_rq_retry; guarded by mu
}

func watchEnvoys(t *testing.T, namespace string) *envoys {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	e := &envoys{namespace: namespace, cancel: cancel, seen: map[string]map[string]int{}}
	e.done.Go(func() {
		for ctx.Err() == nil {
			e.look(ctx)
			time.Sleep(500 * time.Millisecond)
		}
	})
	t.Cleanup(e.stop)
	return e
}

func (e *envoys) stop() {
	e.cancel()
	e.done.Wait()
}

// look reads what it can: a pod may end, or not listen yet, meanwhile. What never can be read, audit misses.
func (e *envoys) look(ctx context.Context) {
	list, err := allPods(ctx, e.namespace, "app.kubernetes.io/component=envoy")
	if err != nil {
		return
	}
	for _, p := range list {
		page, err := inside(ctx, p, filepath.Join(images, "pod"), "get", `http://127.0.0.1:9901/stats?filter=\.ratelimit\.|cluster\.keyward\.upstream_rq_retry$`)
		if err != nil {
			continue
		}
		found := map[string]int{}
		for line := range strings.Lines(page) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			n, err := strconv.Atoi(value)
			if err == nil {
				found[name[strings.LastIndexByte(name, '.')+1:]] += n
			}
		}
		e.mu.Lock()
		e.seen[p.Metadata.UID] = found
		e.mu.Unlock()
	}
}

// audit wants none of at least n Envoys ever to have missed an answer. It returns how often they asked again.
func (e *envoys) audit(t testing.TB, n int) (retries int) {
	t.Helper()
	e.look(t.Context())
	e.stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	total := map[string]int{}
	for _, found := range e.seen {
		for stat, n := range found {
			total[stat] += n
		}
	}
	t.Logf("statistics of %d Envoys: %v", len(e.seen), total)
	if len(e.seen) < n {
		t.Errorf("%d Envoys were seen, there were at least %d", len(e.seen), n)
	}
	if total["error"] != 0 || total["failure_mode_allowed"] != 0 || total["ok"] == 0 {
		t.Errorf("Envoys' rate-limit statistics: %v", total)
	}
	return total["upstream_rq_retry"]
}
