package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keyward/keyward/internal/lab"
)

// The rules async and strict of testdata/values.yaml, whose counters are in the journals.
const (
	quotaLimit = 200
	quotaU     = quotaLimit / 100
	quotaKeys  = 6                       // keys of each rule
	unwritten  = 200 * time.Millisecond  // async rules may lose the hits of this time before a kill
	spending   = 1500 * time.Millisecond // how long clients spend quotas before all members are lost
)

// TestCountsOutlivePods deletes all pods of the members at once, and then their StatefulSet. The claims keep the counts: no quota is exceeded
// by more than docs/bounds.md states. Without volumes, the same deletion makes all quotas available again.
func TestCountsOutlivePods(t *testing.T) {
	const members = 3
	r := &release{helm: "helm4", namespace: newNamespace(t)}
	makeVolumes(t, r.namespace, members)
	r.values = []string{"--values", "testdata/values.yaml", "--set", "envoy.enabled=false,xds.enabled=false,data.storageClass=" + r.namespace}
	begin := time.Now()
	claims := []string{"keyward", chart, "--wait", "--timeout", "2m", "--set", "data.volume=pvc"}
	r.run(t, "install", append(claims, r.values...)...)
	t.Logf("install with claims took %.1f s", time.Since(begin).Seconds())
	r.agree(t, members)
	t.Run("Deleted", func(t *testing.T) {
		q := newQuotas("deleted")
		killed := r.deleteMembers(t, q)
		r.agree(t, members)
		q.finish(t, r.addresses(t))
		q.audit(t, killed)
	})
	t.Run("StatefulSet", func(t *testing.T) { outliveStatefulSet(t, r, claims) })
	t.Run("WithoutVolume", func(t *testing.T) { endWithoutVolume(t, r) })
}

// outliveStatefulSet deletes the StatefulSet, so that its members leave in good order, and creates it again by an upgrade, which finds the
// claims. Every count is the same afterwards.
func outliveStatefulSet(t *testing.T, r *release, claims []string) {
	q := newQuotas("recreated")
	begin := time.Now()
	stop := q.spend(t, r.addresses(t))
	time.Sleep(spending)
	stop() // as when a Service has no endpoints left: a member that leaves waits for clients that still send calls
	must(t, "delete", "statefulset", "keyward", "--namespace", r.namespace, "--cascade=foreground", "--timeout=90s")
	t.Logf("the StatefulSet was deleted after %.1f s", time.Since(begin).Seconds())
	if left := must(t, "get", "pods", "--namespace", r.namespace, "--output=name"); left != "" {
		t.Fatalf("pods are left: %s", left)
	}
	begin = time.Now()
	r.run(t, "upgrade", append(claims, r.values...)...)
	r.agree(t, 3)
	t.Logf("created again after %.1f s", time.Since(begin).Seconds())
	addresses := r.addresses(t)
	for _, x := range q {
		host, _, _ := strings.Cut(addresses[0], ":")
		c, err := lab.CounterOf(t.Context(), host+":9090", "example", x.rule, x.key)
		if n := len(x.admitted); err != nil || int(c.Count) < n || int(c.Count) > n+x.unanswered {
			t.Errorf("%s=%s: the count is %d after %d admitted and %d unanswered, %v", x.rule, x.key, c.Count, n, x.unanswered, err)
		}
	}
	q.finish(t, addresses)
	q.audit(t, time.Time{})
}

// endWithoutVolume upgrades to data.volume none, which the chart refuses while the StatefulSet has claims, and deletes all pods: every client
// gets its complete quota again.
func endWithoutVolume(t *testing.T, r *release) {
	none := append([]string{"keyward", chart, "--wait", "--timeout", "2m", "--set", "data.volume=none"}, r.values...)
	args := append([]string{tool(r.helm), "--kubeconfig", file("kubeconfig"), "--namespace", r.namespace, "upgrade"}, none...)
	if _, err := run(t.Context(), args...); err == nil || !strings.Contains(err.Error(), "--cascade=orphan") {
		t.Errorf("an upgrade that removes the claims of the StatefulSet: %v", err)
	}
	must(t, "delete", "statefulset", "keyward", "--namespace", r.namespace, "--cascade=orphan")
	must(t, "delete", "pod", "--all", "--namespace", r.namespace, "--force", "--grace-period=0")
	r.run(t, "upgrade", none...)
	r.agree(t, 3)
	q := newQuotas("none")
	killed := r.deleteMembers(t, q)
	r.agree(t, 3)
	q.finish(t, r.addresses(t))
	for _, x := range q {
		if again := len(x.admitted) - x.before; again != quotaLimit {
			t.Errorf("%s=%s: %d admitted after the restart, want the limit of %d", x.rule, x.key, again, quotaLimit)
		}
	}
	if n := len(q.faults(killed)); n < len(q) {
		t.Errorf("only %d of %d quotas are exceeded without volumes: the other tests show nothing", n, len(q))
	}
}

// outliveContainers kills the processes of all n members at once, under load. The kubelet starts their containers again in the same pods, and
// the emptyDir of each pod keeps the counts.
func outliveContainers(t *testing.T, r *release, n int) {
	members, err := r.members(t.Context())
	if err != nil || len(members) != n {
		t.Fatalf("%d members, %v", len(members), err)
	}
	var pids []int
	for _, p := range members {
		pid, err := processOf(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	q := newQuotas("killed")
	stop := q.spend(t, r.addresses(t))
	time.Sleep(spending)
	killed := time.Now()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	stop()
	for _, p := range members {
		r.eventually(t, "a member to be started again", p.Metadata.Name, func(now object) bool {
			return now.Metadata.UID == p.Metadata.UID && now.restarts("keyward") == 1 && now.ready()
		})
	}
	r.agree(t, n)
	t.Logf("all members were back after %.1f s", time.Since(killed).Seconds())
	q.finish(t, r.addresses(t))
	q.audit(t, killed)
}

// makeVolumes creates a storage class with the given name and n volumes of it, which are directories of the node. They belong to root: the
// fsGroup of the pods has to make them writable.
func makeVolumes(t *testing.T, name string, n int) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
`, name)
	for i := range n {
		dir := file("volumes", name, strconv.Itoa(i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[2]d}
spec:
  storageClassName: %[1]s
  capacity: {storage: 2Gi}
  accessModes: [ReadWriteOnce]
  local: {path: %[3]s}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node]}]}]}
`, name, i, dir)
	}
	manifest := filepath.Join(t.TempDir(), "volumes.yaml")
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "create", "--filename", manifest)
	t.Cleanup(func() {
		if _, err := kubectl(context.Background(), "delete", "--filename", manifest, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
}

// deleteMembers deletes all pods at once while clients spend q, and returns when. The processes end up to two seconds later, so the new pods
// find journals that the former ones still hold.
func (r *release) deleteMembers(t *testing.T, q quotas) (at time.Time) {
	t.Helper()
	stop := q.spend(t, r.addresses(t))
	time.Sleep(spending)
	at = time.Now()
	must(t, "delete", "pod", "--all", "--namespace", r.namespace, "--force", "--grace-period=0")
	stop()
	return at
}

// addresses returns the addresses of the members' rate-limit service.
func (r *release) addresses(t testing.TB) (list []string) {
	t.Helper()
	members, err := r.members(t.Context())
	if err != nil || len(members) == 0 {
		t.Fatalf("%d members, %v", len(members), err)
	}
	for _, p := range members {
		list = append(list, p.Status.PodIP+":8081")
	}
	return list
}

// quota is one key of a rule, and what its client has seen of it.
type quota struct {
	rule, key  string
	admitted   []time.Time // when each hit was admitted
	before     int         // how many hits were admitted before the members were lost
	unanswered int         // hits without an answer, which may have been charged
}

type quotas []*quota

// newQuotas returns quotas of both rules, with keys that begin with prefix.
func newQuotas(prefix string) (q quotas) {
	for i := range quotaKeys {
		for _, rule := range []string{"async", "strict"} {
			q = append(q, &quota{rule: rule, key: fmt.Sprintf("%s-%d", prefix, i)})
		}
	}
	return q
}

// hit sends one hit and reports whether it was admitted.
func (x *quota) hit(ctx context.Context, c rlsv3.RateLimitServiceClient) (admitted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	res, err := c.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "example", HitsAddend: 1, Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: x.rule, Value: x.key}}},
	}})
	if err != nil {
		x.unanswered++
		return false, err
	}
	if admitted = res.OverallCode == rlsv3.RateLimitResponse_OK; admitted {
		x.admitted = append(x.admitted, time.Now())
	}
	return admitted, nil
}

// spend sends 25 hits of each key a second, to the members in turn, until stop is called. The client of a key no longer calls a member that
// did not answer it.
func (q quotas) spend(t testing.TB, addresses []string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	for _, x := range q {
		clients := dial(t, addresses)
		done.Go(func() {
			tick := time.NewTicker(40 * time.Millisecond)
			defer tick.Stop()
			for i := 0; len(clients) > 0; i++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if _, err := x.hit(t.Context(), clients[i%len(clients)]); err != nil {
					clients = slices.Delete(clients, i%len(clients), i%len(clients)+1)
				}
			}
		})
	}
	return func() {
		cancel()
		done.Wait()
		for _, x := range q {
			x.before = len(x.admitted)
		}
	}
}

// finish sends hits of each key until two in succession are refused.
func (q quotas) finish(t testing.TB, addresses []string) {
	t.Helper()
	var done sync.WaitGroup
	for _, x := range q {
		clients := dial(t, addresses)
		done.Go(func() {
			for i, refused := 0, 0; refused < 2; i++ {
				switch admitted, err := x.hit(t.Context(), clients[i%len(clients)]); {
				case err != nil || i > 2*quotaLimit:
					t.Errorf("%s=%s: %d admitted, %v", x.rule, x.key, len(x.admitted), err)
					return
				case admitted:
					refused = 0
				default:
					refused++
					time.Sleep(100 * time.Millisecond)
				}
			}
		})
	}
	done.Wait()
}

// dial returns a client of each address.
func dial(t testing.TB, addresses []string) (clients []rlsv3.RateLimitServiceClient) {
	t.Helper()
	for _, a := range addresses {
		c, err := grpc.NewClient("passthrough:///"+a, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients = append(clients, rlsv3.NewRateLimitServiceClient(c))
	}
	return clients
}

// faults returns which quotas were exceeded, or not used up, by more than docs/bounds.md states for members that were killed at the given
// time and have kept their volumes. The zero time is for members that have left in good order.
func (q quotas) faults(killed time.Time) (out []string) {
	for _, x := range q {
		n, most, least := len(x.admitted), quotaLimit, quotaLimit-x.unanswered
		switch {
		case killed.IsZero():
		case x.rule == "strict":
			least -= quotaU
		default:
			most += quotaU + x.late(killed)
		}
		if n < least || n > most {
			out = append(out, fmt.Sprintf("%s=%s: %d admitted, want %d to %d", x.rule, x.key, n, least, most))
		}
	}
	return out
}

// late returns the number of hits whose record may not have been written when the members were killed.
func (x *quota) late(killed time.Time) (n int) {
	if killed.IsZero() {
		return 0
	}
	for _, at := range x.admitted[:x.before] {
		if at.After(killed.Add(-unwritten)) {
			n++
		}
	}
	return n
}

// audit fails the test for each of the faults. It also fails it if too few hits were admitted before the members were lost: then the loss of
// their counts would not be a fault.
func (q quotas) audit(t testing.TB, killed time.Time) {
	t.Helper()
	for _, rule := range []string{"async", "strict"} {
		least, early, late, unanswered, most := 9*quotaLimit, 9*quotaLimit, 0, 0, 0
		for _, x := range q {
			if x.rule == rule {
				l := x.late(killed)
				early, late, unanswered = min(early, x.before-l), max(late, l), max(unanswered, x.unanswered)
				least, most = min(least, len(x.admitted)), max(most, len(x.admitted))
			}
		}
		t.Logf("%s: at least %d of %d admitted before, at most %d at that moment, at most %d unanswered; %d to %d in total",
			rule, early, quotaLimit, late, unanswered, least, most)
		if early < 10*quotaU {
			t.Errorf("%s: %d admitted before: the test shows nothing", rule, early)
		}
	}
	for _, f := range q.faults(killed) {
		t.Error(f)
	}
}
