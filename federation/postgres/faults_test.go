package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/federationtest"
	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/limit"
)

const year = 365 * 24 * time.Hour // a window whose boundary no test meets

// request returns the first request of a boot, for tokens of a pool of 1000 hits per window.
func request(window time.Duration, tokens uint64) federation.PoolRequest {
	return federation.PoolRequest{
		Key: federation.Key{1, 2}, Rule: limit.Rule{Limit: 1000, Window: window}, Pool: 1000, Epoch: testEpoch,
		Boot: 1, Seq: 1, Tokens: tokens,
	}
}

// grant sends one request, which must be granted.
func grant(t *testing.T, c federation.Coordinator, region string, r federation.PoolRequest) federation.PoolGrant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	gs, err := c.Lease(ctx, region, []federation.PoolRequest{r})
	if err != nil || len(gs) != 1 {
		t.Fatalf("%+v %v", gs, err)
	}
	return gs[0]
}

// fails requires an error that contains text.
func fails(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v does not contain %q", err, text)
	}
}

// ready returns a Coordinator of a new server, which lends whole windows.
func (s *testServer) ready() *Coordinator {
	s.Helper()
	c := s.open("")
	if err := c.Setup(s.Context()); err != nil {
		s.Fatal(err)
	}
	if err := c.Init(s.Context()); err != nil {
		s.Fatal(err)
	}
	return c
}

// TestSetup requires that Setup can be repeated and run at once, and that calls before it say what is missing.
func TestSetup(t *testing.T) {
	s := startServer(t)
	c := s.open("")
	fails(t, c.Healthy(t.Context()), "set up the schema")
	_, err := c.Lease(t.Context(), "a", []federation.PoolRequest{request(year, 1)})
	fails(t, err, "set up the schema")
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if err := s.open("").Setup(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if g := grant(t, c, "a", request(year, 1000)); g.Total == 0 || g.Total == 1000 || g.Total != g.Usable {
		t.Errorf("after Setup, the rest of the year is %+v", g)
	}
	if err := c.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g := grant(t, c, "b", request(year, 1000)); g.Usable != 1000 || g.Used != 1000 {
		t.Errorf("after Init: %+v", g)
	}
	c.federation = "another"
	fails(t, c.Healthy(t.Context()), "federation another is unknown; set up its schema")
	_, err = c.Lease(t.Context(), "a", []federation.PoolRequest{request(year, 1)})
	fails(t, err, "set up the schema")
}

// TestRealClock requires that windows end by the server's clock.
func TestRealClock(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a window")
	}
	s := startServer(t)
	c := s.ready()
	g := grant(t, c, "a", request(2*time.Second, 1000))
	if g.Total != 1000 || g.Left <= 0 || g.Left > 2*time.Second {
		t.Errorf("%+v", g)
	}
	time.Sleep(g.Left)
	if g := grant(t, c, "b", request(2*time.Second, 1000)); g.Total != 1000 {
		t.Errorf("%+v", g)
	}
}

// TestCrashInTransaction ends the server while a request is being processed. The request has no effect, and the region's
// next one gets what it asks for.
func TestCrashInTransaction(t *testing.T) {
	s := startServer(t)
	c := s.ready()
	r := request(year, 300)
	g := grant(t, c, "a", r)

	lock, err := pgx.Connect(t.Context(), s.url(""))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close(context.Background())
	if _, err := lock.Exec(t.Context(), "begin; select from keyward_window for update"); err != nil {
		t.Fatal(err)
	}
	r.Seq, r.Window, r.Have, r.Tokens = 2, g.Window, g.Total, 100
	failed := make(chan error, 1)
	go func() {
		_, err := c.Lease(t.Context(), "a", []federation.PoolRequest{r})
		failed <- err
	}()
	s.awaitLock()
	s.Crash()
	select {
	case err := <-failed:
		fails(t, err, "lease from postgres "+s.address)
	case <-time.After(10 * time.Second):
		t.Fatal("the call does not end")
	}
	s.start()
	r.Seq = 3
	if g := grant(t, c, "a", r); g.Total != 400 || g.Used != 400 {
		t.Errorf("%+v", g)
	}
	if c.Repaired() != 0 {
		t.Errorf("%d hits were repaired", c.Repaired())
	}
}

// awaitLock waits until a transaction waits for a lock.
func (s *testServer) awaitLock() {
	s.Helper()
	watcher := s.open("")
	ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
	defer cancel()
	err := lab.Await(ctx, "a transaction that waits", func(ctx context.Context) (err error) {
		var n int
		err = watcher.pool.QueryRow(ctx, "select count(*) from pg_locks where not granted").Scan(&n)
		if err == nil && n == 0 {
			err = fmt.Errorf("none")
		}
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	watcher.Close()
}

// TestStandby requires that a standby is refused, and that one which lacks the last transactions charges what a region
// reports.
func TestStandby(t *testing.T) {
	if testing.Short() {
		t.Skip("copies a server")
	}
	primary := startServer(t)
	c := primary.ready()
	r := request(year, 300)
	grant(t, c, "a", r)
	standby := newServer(t)
	standby.command("pg_basebackup", "-D", standby.dir, "-R", "-c", "fast", "-X", "stream", "-d", primary.url(""))
	standby.start()
	behind := standby.open("")
	fails(t, behind.Healthy(t.Context()), "this is a standby; use the address of the primary")
	_, err := behind.Lease(t.Context(), "a", []federation.PoolRequest{r})
	fails(t, err, "use the address of the primary")

	primary.Crash()
	standby.command("pg_ctl", "promote", "-D", standby.dir, "-w")
	r.Seq, r.Tokens = 2, 100
	r.Window, r.Have = r.Rule.Index(time.Now().UnixNano()), 700 // of which the standby has seen 300
	if g := grant(t, behind, "a", r); g.Total != 800 || g.Used != 800 || behind.Repaired() != 400 {
		t.Errorf("%d repaired, %+v", behind.Repaired(), g)
	}
	if err := behind.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestIsolation runs the suite with the strictest defaults of a server. The transactions set their own level.
func TestIsolation(t *testing.T) {
	s := startServer(t)
	federationtest.Run(t, s.empty("default_transaction_isolation=serializable"))
	fails(t, s.open("default_transaction_read_only=on").Healthy(t.Context()), "transactions are read-only")
}

// TestNoDeadlock has many transactions use the same keys in different orders, while records are swept.
func TestNoDeadlock(t *testing.T) {
	s := startServer(t)
	c := s.ready()
	const askers, keys, rounds = 6, 23, 15 // a prime, so that each factor below makes another order of all keys
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const age = `update keyward_window set ends = ends - interval '1 hour'
		where key = (select key from keyward_window limit 1 for update skip locked)`
	var all sync.WaitGroup
	for i := range askers {
		all.Go(func() {
			for round := range rounds {
				rs := make([]federation.PoolRequest, keys)
				for k := range rs {
					rs[k] = request(time.Second, 10)
					rs[k].Key[0], rs[k].Seq = uint64((k*(2*i+1)+round)%keys), uint64(round+1)
				}
				if gs, err := c.Lease(ctx, fmt.Sprint("region ", i), rs); err != nil || len(gs) != keys {
					t.Errorf("%d grants: %v", len(gs), err)
				}
				if _, err := c.pool.Exec(ctx, age); err != nil {
					t.Error(err)
				}
				if _, err := c.Sweep(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if log := s.Tail(1 << 20); strings.Contains(log, "deadlock detected") {
		t.Error("deadlock detected; the transactions were repeated")
	}
}

// TestSweep requires that records are deleted when no window needs them any more, and no earlier.
func TestSweep(t *testing.T) {
	s := startServer(t)
	c := s.ready()
	for k := range uint64(3) {
		r := request(time.Hour, 1)
		r.Key[0] = k
		grant(t, c, "a", r)
	}
	sweep := func(want int64) {
		t.Helper()
		var lines, windows int64
		n, err := c.Sweep(t.Context())
		if err != nil || n != want {
			t.Errorf("%d deleted: %v", n, err)
		}
		const count = "select (select count(*) from keyward_line), (select count(*) from keyward_window)"
		err = c.pool.QueryRow(t.Context(), count).Scan(&lines, &windows)
		if err != nil || lines != 3-want || windows != 3-want {
			t.Errorf("%d lines, %d windows: %v", lines, windows, err)
		}
	}
	sweep(0)
	const age = `update keyward_window set ends = clock_timestamp() - $1::text::interval
		where key <> '00000000-0000-0001-0000-000000000002'`
	for _, tt := range []struct {
		since string
		want  int64
	}{{"50 seconds", 0}, {"70 seconds", 2}} {
		if _, err := c.pool.Exec(t.Context(), age, tt.since); err != nil {
			t.Fatal(err)
		}
		sweep(tt.want)
	}
}

// TestSweepNeverWaits requires that Sweep skips a key that a transaction uses.
func TestSweepNeverWaits(t *testing.T) {
	s := startServer(t)
	c := s.ready()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for k := range uint64(2) {
		r := request(time.Hour, 1)
		r.Key[0] = k
		grant(t, c, "a", r)
	}
	if _, err := c.pool.Exec(ctx, "update keyward_window set ends = ends - interval '1 day'"); err != nil {
		t.Fatal(err)
	}
	lock, err := c.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background())
	if _, err := lock.Exec(ctx, "select from keyward_window limit 1 for update"); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Sweep(ctx); n != 1 || err != nil {
		t.Errorf("%d deleted: %v", n, err)
	}
}

func TestErrorsHideThePassword(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://u:hidden@%zz":                              "malformed URL",
		"postgres://u:hidden@host:port/db":                     "malformed URL",
		"postgres://u:hidden@host/db?sslmode=hidden":           "malformed URL or parameter",
		"postgres://u:hidden@127.0.0.1:1/db?connect_timeout=1": "127.0.0.1:1",
	} {
		c, err := Open(t.Context(), Options{URL: url})
		if err == nil {
			err = c.Healthy(t.Context())
			c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestEarlierLayout requires that regions with an earlier layout get nothing of a window once one with a later layout has
// sent a request.
func TestEarlierLayout(t *testing.T) {
	s := startServer(t)
	earlier, later := s.ready(), s.open("")
	later.terms = federation.Always(testEpoch + 1)
	r := request(year, 1)
	grant(t, earlier, "a", r)
	r.Epoch++
	grant(t, later, "b", r)
	r.Epoch, r.Seq = testEpoch, 2
	if gs, err := earlier.Lease(t.Context(), "a", []federation.PoolRequest{r}); err != nil || len(gs) != 0 {
		t.Errorf("%+v %v", gs, err)
	}
	earlier.now = func() int64 { return time.Now().Add(year).UnixMicro() * 1000 }
	grant(t, earlier, "a", r) // no region has used the later layout in the next window
}
