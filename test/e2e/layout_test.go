package e2e

import (
	"os"
	"testing"
	"time"
)

// TestLayoutChanges moves the coordinator of three regions from one to another, with other weights, while they are in use
// and run on. The window that has begun ends under the former layout. No window admits more than the limit.
func TestLayoutChanges(t *testing.T) {
	const margin = 2 * time.Second
	x := newHomeRegions(t, "eu", usualLimit, "--federation-margin", margin.String())
	next := usualLimit.of(time.Now().Add(margin+3*time.Second)) + 1 // the first window of the layout
	boundary := usualLimit.begin(next)
	from := boundary.Add(-time.Second).Truncate(time.Second)
	sum := newWindowTally(usualLimit)
	done := make(chan struct{})
	go func() {
		defer close(done)
		all := make(chan struct{})
		for i, rate := range []int{40, 360, 40} {
			go func() {
				x.spend(i, "shared", "moved", rate, boundary.Add(regionWindow*6/10), sum) // enough for the limit
				all <- struct{}{}
			}()
		}
		for range x.list {
			<-all
		}
	}()
	for _, r := range x.list {
		content := r.layoutOf(1, "eu", time.Time{}, 1, 1, 1) + "---\n" + r.layoutOf(2, "us", from, 1, 3, 2)
		if err := os.WriteFile(r.layout, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(time.Until(boundary))
	before := x.metric(0, "keyward_federation_pool_lent_hits_total")
	<-done
	x.check("the layout changes", sum)
	for i, r := range x.list {
		if epoch := x.metric(i, "keyward_federation_epoch{"); epoch != 2*3 {
			t.Errorf("the members of %s have the epochs %v in all", r.name, epoch)
		}
	}
	old, new := float64(sum.all[next-1])/regionLimit, sum.used(next, 1)
	lent := []float64{before, x.metric(0, "keyward_federation_pool_lent_hits_total"), x.metric(1, "keyward_federation_pool_lent_hits_total")}
	t.Logf("%.2f of the last window of the former layout used, %.2f of the first of the next one; eu lent %v and then %v, us %v; %d failed, p99 %v",
		old, new, lent[0], lent[1], lent[2], sum.failed, sum.quantile(0.99))
	if new < 0.9 {
		t.Errorf("only %.2f of the limit used in the first window of the layout", new)
	}
	if lent[0] == 0 || lent[2] == 0 {
		t.Error("the coordinator has not moved")
	}
}
