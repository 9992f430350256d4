package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// newHomeRegions returns three regions. The clusters of those that the layout names coordinate; the others reach them at the
// first member of each, far away, with certificates that prove their regions. Members have further arguments.
func newHomeRegions(t *testing.T, coordinator string, shared sharedLimit, args ...string) *realRegions {
	t.Helper()
	x := &realRegions{t: t, dir: tempDir(t), limit: shared}
	var ports lab.Ports
	names := []string{"eu", "us", "ap"}
	certs := filepath.Join(x.dir, "certs")
	if out, err := exec.Command(filepath.Join(bin(t), "keyward"), "certs", "--dir", certs, "--region", strings.Join(names, ",")).CombinedOutput(); err != nil {
		t.Fatalf("keyward certs: %v\n%s", err, out)
	}
	served := map[string]string{} // the --federation-listen of the first member
	for _, name := range names {
		addr, err := ports.Addr()
		if err != nil {
			t.Fatal(err)
		}
		served[name] = addr
	}
	for _, name := range names {
		r := &realRegion{name: name}
		r.addresses = map[string]string{}
		for _, other := range names {
			address := served[other]
			if other != name {
				r.wan = startWAN(t, address, regionOneWay)
				address = r.wan.addr
			}
			r.addresses[other] = address
		}
		r.layout = filepath.Join(x.dir, name+".yaml")
		if err := os.WriteFile(r.layout, []byte(r.layoutOf(1, coordinator, time.Time{}, 1, 1, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		r.lab = newLab(t, lab.Options{Rules: map[string]string{"app.yaml": shared.rules("fail_closed")}, Expect: 3, Args: append([]string{
			"--cluster", name, "--region", name, "--federation", r.layout, "--tls-ca", filepath.Join(certs, "ca.crt"),
			"--tls-cert", filepath.Join(certs, "region-"+name+".crt"), "--tls-key", filepath.Join(certs, "region-"+name+".key"),
		}, args...)})
		if _, err := r.lab.AddSidecar("pod-a", "--federation-listen", served[name]); err != nil {
			t.Fatal(err)
		}
		for _, member := range []string{"pod-b", "pod-c"} {
			if _, err := r.lab.AddSidecar(member); err != nil {
				t.Fatal(err)
			}
		}
		x.list = append(x.list, r)
	}
	for _, r := range x.list {
		awaitRing(t, r.lab, "pod-a", "pod-b", "pod-c")
		for _, s := range r.lab.Sidecars {
			r.clients = append(r.clients, dial(t, s.RLS, nil))
		}
	}
	return x
}

// layoutOf returns a layout with these weights, as the region has it.
func (r *realRegion) layoutOf(epoch int, coordinator string, from time.Time, weights ...int) string {
	content := fmt.Sprintf("name: shop\nepoch: %d\ncoordinator: %s\n", epoch, coordinator)
	if !from.IsZero() {
		content += "from: " + from.UTC().Format(time.RFC3339) + "\n"
	}
	content += "regions:\n"
	for i, name := range []string{"eu", "us", "ap"} {
		content += fmt.Sprintf("  - {name: %s, weight: %d, address: %q}\n", name, weights[i], r.addresses[name])
	}
	return content
}

// lender returns a member of region i that lends pools, other than the first one, or nil.
func (x *realRegions) lender(i int) *lab.Sidecar {
	for _, s := range x.list[i].lab.Sidecars[1:] {
		if value(metrics(x.t, s.Metrics), "keyward_federation_pools") > 0 {
			return s
		}
	}
	return nil
}

// loadKeys is load for several keys at once.
func (x *realRegions) loadKeys(name string, keys int, rates ...int) (used []float64) {
	used = make([]float64, keys)
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			first, s := x.load("shared", fmt.Sprint(name, i), 1, rates...)
			x.check(fmt.Sprint(name, i), s)
			used[i] = s.used(first, 1)
		})
	}
	all.Wait()
	return used
}

// TestClusterCoordinatesRegions has the cluster of one region lend to all regions. A member that lends
// dies in the middle of a window. No window admits more than the limit.
func TestClusterCoordinatesRegions(t *testing.T) {
	x := newHomeRegions(t, "eu", usualLimit)
	first, s := x.load("shared", "skewed", 1, 20, 200, 20)
	x.check("skewed", s)
	if used := s.used(first, 1); used < 0.95 {
		t.Errorf("%.1f %% of the limit used at 1:10:1", 100*used)
	} else {
		t.Logf("1:10:1: %.1f %% used, p99 %v, %d failed", 100*used, s.quantile(0.99), s.failed)
	}
	var dead *lab.Sidecar
	var done sync.WaitGroup
	done.Go(func() {
		time.Sleep(time.Until(x.limit.begin(x.limit.of(time.Now()) + 1).Add(2 * time.Second)))
		if dead = x.lender(0); dead != nil {
			_ = dead.Signal(syscall.SIGKILL)
		}
	})
	used := x.loadKeys("killed", 8, 20, 20, 150)
	done.Wait()
	if dead == nil {
		t.Fatal("no pool is at another member than the first: nothing was tried")
	}
	t.Logf("%s, which lends, is killed: used %.2f", dead.Name, used)
	for i, part := range used {
		if part < 0.3 {
			t.Errorf("key %d: only %.0f %% used", i, 100*part)
		}
	}
}

// TestSpreadCoordinators has every region coordinate a part of the keys.
func TestSpreadCoordinators(t *testing.T) {
	x := newHomeRegions(t, "spread", usualLimit)
	for i, used := range x.loadKeys("key", 12, 20, 200, 20) {
		if used < 0.9 {
			t.Errorf("key %d: %.1f %% used", i, 100*used)
		}
	}
	for i := range x.list {
		if x.metric(i, "keyward_federation_pool_lent_hits_total") == 0 {
			t.Errorf("region %d lends nothing", i)
		}
	}
}
