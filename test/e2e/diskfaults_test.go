package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/lab"
)

// alone is a member alone whose journal is on a file system with faults.
type aloneOnDisk struct {
	t    *testing.T
	l    *lab.Lab
	disk *faultFS
	s    *lab.Sidecar
	c    rlsv3.RateLimitServiceClient
}

func newAloneOnDisk(t *testing.T) *aloneOnDisk {
	a := &aloneOnDisk{t: t, disk: mountFaultFS(t)}
	a.l = newLab(t, lab.Options{Rules: map[string]string{"app.yaml": durableRules}, Insecure: true})
	t.Cleanup(a.disk.heal) // before the lab stops its processes, of which one may wait for the disk
	s, err := a.l.AddSidecar("alone", a.args()...)
	if err != nil {
		t.Fatal(err)
	}
	a.s = s
	a.ready()
	return a
}

func (a *aloneOnDisk) args() []string { return []string{"--join", "", "--data", a.disk.dir} }

func (a *aloneOnDisk) ready() {
	a.t.Helper()
	awaitAlone(a.t, a.l)
	a.c = dial(a.t, a.s.RLS, nil)
}

// awaitAlone waits until a member alone is ready. It serves rate limit calls only when it has loaded its journals.
func awaitAlone(t testing.TB, l *lab.Lab) {
	t.Helper()
	awaitRing(t, l, "alone")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the member to be ready", func(ctx context.Context) error {
		_, err := lab.Get(ctx, "http://"+l.Sidecars[0].Metrics+"/readyz")
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// restart kills the member and starts it again.
func (a *aloneOnDisk) restart() {
	a.t.Helper()
	a.s.Kill()
	if err := a.l.Restart(a.s, a.args()...); err != nil {
		a.t.Fatal(err)
	}
	a.ready()
}

// spend sends n hits of a key, of which all must be admitted.
func (a *aloneOnDisk) spend(rule, key string, n int) {
	a.t.Helper()
	for i := range n {
		if ask(a.t, a.c, request("app", 1, rule, key)).OverallCode != rlsv3.RateLimitResponse_OK {
			a.t.Fatalf("hit %d of %s %s is refused", i, rule, key)
		}
	}
}

// used returns the count of a key.
func (a *aloneOnDisk) used(rule, key string) uint64 {
	a.t.Helper()
	c, err := lab.CounterOf(a.t.Context(), a.s.Metrics, "app", rule, key)
	if err != nil {
		a.t.Fatal(err)
	}
	return c.Count
}

// await waits until a metric of the member has a value.
func (a *aloneOnDisk) await(name string, want float64) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, fmt.Sprintf("%s %v", name, want), func(context.Context) error {
		if got := value(metrics(a.t, a.s.Metrics), name); got != want {
			return fmt.Errorf("%s is %v", name, got)
		}
		return nil
	}); err != nil {
		a.t.Fatal(err)
	}
}

// admits reports whether a hit of a caller that waits for so long is admitted.
func (a *aloneOnDisk) admits(rule, key string, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(a.t.Context(), within)
	defer cancel()
	res, err := a.c.ShouldRateLimit(ctx, request("app", 1, rule, key))
	return err == nil && res.OverallCode == rlsv3.RateLimitResponse_OK
}

// TestDiskFaults makes the file system of a real process fail in each way. Requests are answered by memory meanwhile, a
// metric reports it, the counts of before outlive a kill during the fault, and those of the fault a kill after it.
func TestDiskFaults(t *testing.T) {
	for name, fault := range map[string]func(f *faultFS){
		"failed sync": func(f *faultFS) { f.sync.Store(int32(syscall.EIO)) },
		"torn write":  func(f *faultFS) { f.write.Store(int32(syscall.EIO)); f.torn.Store(true) },
		"full": func(f *faultFS) {
			f.write.Store(int32(syscall.ENOSPC))
			f.allocate.Store(int32(syscall.ENOSPC))
		},
		"read-only": func(f *faultFS) { f.write.Store(int32(syscall.EROFS)); f.create.Store(int32(syscall.EROFS)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAloneOnDisk(t)
			a.spend("strict", "before", 100)
			fault(a.disk)
			a.spend("strict", "during", 50)
			a.spend("async", "during", 50)
			a.await("keyward_journal_up", 0)
			a.spend("strict", "during", 50)
			a.restart() // with the fault
			if n := a.used("strict", "before"); n < 100 || n > 100+durableU {
				t.Errorf("%d of 100 hits of before after a kill during the fault", n)
			}
			a.spend("strict", "again", 60)
			a.await("keyward_journal_up", 0)
			a.disk.heal()
			a.await("keyward_journal_up", 1)
			a.spend("strict", "after", 10)
			steadily(unwritten)
			a.restart()
			for key, want := range map[string]uint64{"before": 100, "again": 60, "after": 10} {
				if n := a.used("strict", key); n < want || n > want+2*durableU {
					t.Errorf("%s: %d of %d hits after the fault", key, n, want)
				}
			}
		})
	}
}

// TestDiskFailsAtStart requires that a member whose disk cannot be written at all answers, reports it, and writes
// everything when it can be.
func TestDiskFailsAtStart(t *testing.T) {
	a := newAloneOnDisk(t)
	a.disk.create.Store(int32(syscall.EACCES))
	a.restart()
	a.spend("strict", "k", 50)
	a.await("keyward_journal_up", 0)
	a.disk.heal()
	a.await("keyward_journal_up", 1)
	steadily(unwritten)
	a.restart()
	if n := a.used("strict", "k"); n < 50 {
		t.Errorf("%d of 50 hits", n)
	}
}

// TestDiskStalls requires that async rules are answered as always while the disk stalls, that strict ones fail by their
// policy for two seconds at most, and that nothing is lost.
func TestDiskStalls(t *testing.T) {
	a := newAloneOnDisk(t)
	a.spend("strict", "k", 10)
	a.disk.stall()
	if a.admits("strict", "burst", 300*time.Millisecond) {
		t.Error("a strict request is admitted while the disk does not answer")
	}
	if !a.admits("strict", "burst", 5*time.Second) {
		t.Error("a strict request waits for a disk that stalls")
	}
	a.spend("strict", "burst", 100)
	a.spend("async", "k", 200)
	a.await("keyward_journal_up", 0)
	a.disk.resume()
	a.await("keyward_journal_up", 1)
	steadily(unwritten)
	burst := a.used("strict", "burst")
	a.restart()
	if n := a.used("async", "k"); n < 200-durableU || n > 200 {
		t.Errorf("async: %d of 200 hits", n)
	}
	if n := a.used("strict", "burst"); n < burst {
		t.Errorf("strict: %d of %d hits", n, burst)
	}
}

// TestFlippedBits damages a journal. What is damaged is counted, and the other keys keep their counts.
func TestFlippedBits(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": durableRules}, Insecure: true})
	data := filepath.Join(l.Dir, "data")
	args := []string{"--join", "", "--data", data}
	s, err := l.AddSidecar("alone", args...)
	if err != nil {
		t.Fatal(err)
	}
	awaitAlone(t, l)
	c := dial(t, s.RLS, nil)
	const keys = 40
	for i := range keys {
		for range 10 {
			ask(t, c, request("app", 1, "strict", fmt.Sprint(i)))
		}
	}
	s.Kill()
	files, err := filepath.Glob(filepath.Join(data, "*", "*", "*.seg"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	const at = 3*4096 + 100 // in a block with records
	b[at] ^= 0x10
	if err := os.WriteFile(files[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Restart(s, args...); err != nil {
		t.Fatal(err)
	}
	awaitAlone(t, l)
	if n := value(metrics(t, s.Metrics), "keyward_journal_bad_blocks_total"); n == 0 {
		t.Error("no metric reports the damage")
	}
	kept := 0
	for i := range keys {
		n, err := lab.CounterOf(t.Context(), s.Metrics, "app", "strict", fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		if n.Count >= 10 {
			kept++
		}
	}
	if kept < keys-2 {
		t.Errorf("%d of %d keys keep their counts", kept, keys)
	}
}

// TestSharedData requires that members may share a directory: each leaves the journal of the other alone while that runs,
// and takes over its counts when it is gone.
func TestSharedData(t *testing.T) {
	members := names(2)
	c := &durableCluster{newLab(t, lab.Options{Rules: map[string]string{"app.yaml": durableRules}}), t}
	c.boot(members, []string{"shared", "shared"})
	q := newQuotas(t, "k")
	killed := c.killUnderLoad(q, 300*time.Millisecond)
	if dirs, err := os.ReadDir(filepath.Join(c.Dir, "data", "shared")); err != nil || len(dirs) != 1 {
		t.Errorf("%d directories of clusters, %v", len(dirs), err)
	}
	c.boot(members, []string{"shared", "shared"})
	q.spend(c.clients(), nil)
	for _, f := range q.faults(killed, 1, 0) {
		t.Error(f)
	}
	out, err := os.ReadDir(filepath.Join(c.Dir, "data", "shared"))
	if err != nil {
		t.Fatal(err)
	}
	if boots, err := os.ReadDir(filepath.Join(c.Dir, "data", "shared", out[0].Name())); err != nil || len(boots) != 2 {
		t.Errorf("%d journals, %v", len(boots), err)
	}
}

// TestBackup requires that a copy of the directory, taken while the member writes, is loaded.
func TestBackup(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": durableRules}, Insecure: true})
	data, backup := filepath.Join(l.Dir, "data"), filepath.Join(l.Dir, "backup")
	s, err := l.AddSidecar("alone", "--join", "", "--data", data)
	if err != nil {
		t.Fatal(err)
	}
	awaitAlone(t, l)
	c := dial(t, s.RLS, nil)
	for range 100 {
		ask(t, c, request("app", 1, "strict", "k"))
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_, _ = c.ShouldRateLimit(t.Context(), request("app", 1, "async", fmt.Sprint(i%100)))
			}
		}
	}()
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	close(stop)
	<-done
	s.Kill()
	if err := l.Restart(s, "--join", "", "--data", backup); err != nil {
		t.Fatal(err)
	}
	awaitAlone(t, l)
	n, err := lab.CounterOf(t.Context(), s.Metrics, "app", "strict", "k")
	if err != nil {
		t.Fatal(err)
	}
	if n.Count < 100 || n.Count > 100+durableU {
		t.Errorf("%d of 100 hits", n.Count)
	}
}

// TestHeldJournal requires that a member waits for the journal of its former process while that is still ending, alone and
// in a cluster, and admits nothing meanwhile.
func TestHeldJournal(t *testing.T) {
	hold := func(t *testing.T, dir string) (release func()) {
		t.Helper()
		locks, err := filepath.Glob(filepath.Join(dir, "*", "*", "LOCK"))
		if err != nil || len(locks) != 1 {
			t.Fatalf("%v, %v", locks, err)
		}
		f, err := os.Open(locks[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		return func() { _ = f.Close() }
	}
	t.Run("alone", func(t *testing.T) {
		l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": durableRules}, Insecure: true})
		args := []string{"--join", "", "--data", filepath.Join(l.Dir, "data")}
		s, err := l.AddSidecar("alone", args...)
		if err != nil {
			t.Fatal(err)
		}
		awaitAlone(t, l)
		q := newQuotas(t, "k")
		q.spend([]rlsv3.RateLimitServiceClient{dial(t, s.RLS, nil)}, nil)
		s.Kill()
		time.AfterFunc(2*time.Second, hold(t, filepath.Join(l.Dir, "data")))
		killed := time.Now()
		if err := l.Restart(s, args...); err != nil {
			t.Fatal(err)
		}
		awaitAlone(t, l)
		q.spend([]rlsv3.RateLimitServiceClient{dial(t, s.RLS, nil)}, nil)
		for _, f := range q.faults(killed, 1, 0) {
			t.Error(f)
		}
	})
	t.Run("cluster", func(t *testing.T) {
		members := names(2)
		c := newDurableCluster(t, members...)
		q := newQuotas(t, "k")
		q.spend(c.clients(), nil)
		killed := c.killAll()
		for _, m := range members {
			time.AfterFunc(2*time.Second, hold(t, c.volume(m)))
		}
		c.boot(members, members)
		q.spend(c.clients(), nil)
		for _, f := range q.faults(killed, 1, 0) {
			t.Error(f)
		}
	})
}

// TestMembersWithoutCounters requires that members without counters are not missed after a restart of all.
func TestMembersWithoutCounters(t *testing.T) {
	members := names(4)
	c := newDurableCluster(t, members...)
	ask(t, c.clients()[0], request("app", 50, "strict", "k"))
	c.killAll()
	begun := time.Now()
	c.boot(members, members)
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("the members have waited for %v", took)
	}
	if n := value(metrics(t, c.Sidecars[0].Metrics), "keyward_journal_missing"); n != 0 {
		t.Errorf("%v journals are missing", n)
	}
}
